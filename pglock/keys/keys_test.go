package keys_test

import (
	"math"
	"testing"

	"github.com/holdfast-go/holdfast/pglock/keys"
	"github.com/holdfast-go/holdfast/ports"
)

// The vectors were computed by the software itself or, for the hashes of
// PostgreSQL, by a server. Those of Flyway, DistributedLock, with_advisory_lock and
// River's prefix were computed anew from their sources in another language.
func TestKeysMatchTheirEcosystems(t *testing.T) {
	pair := func(f func(string) (int32, int32)) func(string) int64 {
		return func(key string) int64 { return ports.PairID(f(key)) }
	}
	net := func(name string) int64 { id, _ := keys.DistributedLock(name); return id }
	for scheme, c := range map[string]struct {
		derive func(string) int64
		ids    map[string]int64
	}{
		"RailsMigration": {keys.RailsMigration, map[string]int64{"postgres": 737815420147457505, "myapp_production": 8572362244439197575}},
		"SQLxMigrate":    {keys.SQLxMigrate, map[string]int64{"postgres": 368907709894077238, "myapp_production": 4286181120132304570}},
		"SQLx": {keys.SQLx, map[string]int64{"my-lock": -7577905956304869515, "migration:tenant-abc": 735764702469015513, "日本語": 7559688324711292789, "": 8559922135585776354,
			"my first Postgres advisory lock!": -5560419505042474287}},
		"River": {keys.River(0), map[string]int64{"my-lock": -6813972007262348819, "migration:tenant-abc": 3326337670175488524, "日本語": 6754750132552792403,
			"some content for hashing purposes": 1854036014321452184}},
		"River, prefix 7":   {keys.River(7), map[string]int64{"my-lock": 33566542317, "日本語": 33511879411}},
		"River, prefix -7":  {keys.River(-7), map[string]int64{"my-lock": -26562999827, "日本語": -26617662733}},
		"GoodJob":           {keys.GoodJob, map[string]int64{"my-lock": -1323429866322628863, "migration:tenant-abc": 6093710658136721278, "日本語": 4797137895898867}},
		"DjangoPGLock":      {keys.DjangoPGLock, map[string]int64{"my-lock": 6170642704201584368, "migration:tenant-abc": 2201529434516709283, "日本語": -6643004304765849225}},
		"DjangoPGLocks":     {keys.DjangoPGLocks, map[string]int64{"my-lock": -994442763, "migration:tenant-abc": 702698958, "日本語": -1475652891, "": 0}},
		"HashTextExtended":  {keys.HashTextExtended(0), map[string]int64{"my-lock": 7574172786964069059, "migration:tenant-abc": 776826543503024536, "日本語": 2870829529307104068, "": -6939563903564495251}},
		"GolangMigrate":     {func(db string) int64 { return keys.GolangMigrate(db, "public", "schema_migrations") }, map[string]int64{"postgres": 143310882, "/postgres": 3280485947}},
		"Flyway":            {func(table string) int64 { return keys.Flyway("public", table) }, map[string]int64{"flyway_schema_history": 77433833903597}},
		"Flyway, elsewhere": {func(schema string) int64 { return keys.Flyway(schema, "verlauf_ü") }, map[string]int64{"migrations": 77429969801316}},
		"WithAdvisoryLock":  {pair(keys.WithAdvisoryLock), map[string]int64{"my-lock": 1153040885 << 32, "migration:tenant-abc": 702698958 << 32, "日本語": 671830757 << 32, "": 0}},
		"Always":            {keys.Always(keys.Goose), map[string]int64{"": 4097083626, "x": 4097083626}},
		"AlwaysPair":        {pair(keys.AlwaysPair(1, 2)), map[string]int64{"": 1<<32 | 2, "x": 1<<32 | 2}},
		"AlwaysPair, to -1": {pair(keys.AlwaysPair(math.MinInt32, -1)), map[string]int64{"x": math.MinInt64 | math.MaxUint32}},
		"DistributedLock": {net, map[string]int64{
			"my-lock": -2601551378812387329, "nine char": -2474879366648798748, "": math.MaxInt64,
			"migration:tenant-abc": 5234811584265427027, "日本語": 7270416183457751489,
			"00000001,00000002": 1<<32 | 2, "0000000100000002": 1<<32 | 2, "FFFFFFFF,fffffffe": -2, "8000000000000000": math.MinInt64}},
	} {
		for key, want := range c.ids {
			if got := c.derive(key); got != want {
				t.Errorf("%s(%q) = %d, want %d", scheme, key, got, want)
			}
		}
	}
	if keys.Prisma != 72707369 {
		t.Errorf("Prisma = %d", keys.Prisma)
	}
}

func TestTheNameOfADistributedLockDecidesAboutTheSpace(t *testing.T) {
	for name, want := range map[string]bool{
		"": true, "x": true, "nine char": true, "ten chars!": false, "日本語": false, "\x80": false, "\x7f": true,
		"0123abcd,ABCDEF01": true, "0123456789abcdef": false,
		"0123abcd,ABCDEF0": false, "0123abcd,ABCDEF0g": false, "0123abcd,+BCDEF01": false, "0123abcd,0xCDEF01": false, "0123abcd, BCDEF01": false, "0123abcd,0_23abcd": false,
		"0123ab,d,ABCDEF01": false, "0123abcd;ABCDEF01": false, "0123abc,dABCDEF01": false,
	} {
		if _, got := keys.DistributedLock(name); got != want {
			t.Errorf("%q is a pair: %v, want %v", name, got, want)
		}
	}
	// A name that only looks like numbers is hashed.
	number, _ := keys.DistributedLock("0123456789abcdef")
	if text, _ := keys.DistributedLock("0123456789abcdeg"); text == number || number != 0x0123456789abcdef {
		t.Errorf("%x, %x", number, text)
	}
}

// Names of up to nine characters have each a lock of its own.
func FuzzShortNamesOfDistributedLocksDiffer(f *testing.F) {
	f.Add("a", "\x00a")
	f.Add("", "\x7f")
	f.Add("nine char", "nine chas")
	f.Fuzz(func(t *testing.T, a, b string) {
		idA, pairA := keys.DistributedLock(a)
		idB, pairB := keys.DistributedLock(b)
		if pairA && pairB && len(a) <= 9 && len(b) <= 9 && (idA == idB) != (a == b) {
			t.Errorf("%q is %d, %q is %d", a, idA, b, idB)
		}
	})
}

func FuzzHashText(f *testing.F) {
	f.Add("my-lock", int64(0))
	f.Add("a text of more than twelve bytes", int64(-1))
	f.Fuzz(func(t *testing.T, key string, seed int64) {
		// The low half of the extended hash without a seed is the short hash.
		if extended, short := keys.HashTextExtended(0)(key), keys.HashText(key); int32(extended) != int32(short) || short != int64(int32(short)) {
			t.Errorf("%q: %x and %x", key, extended, short)
		}
		if first, second := keys.HashTextPair(int32(seed))(key); first != int32(seed) || int64(second) != keys.HashText(key) {
			t.Errorf("%q: %d, %d", key, first, second)
		}
		keys.HashTextExtended(seed)(key) // must not panic, whatever the length
	})
}
