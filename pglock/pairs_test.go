package pglock_test

import (
	"math"
	"testing"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// onlyNumbers is a pool without locks of two integers.
type onlyNumbers struct{ ports.SessionPool }

func ones(string) (int32, int32) { return 1, 1 }

func TestAPairAndItsNumberDoNotExcludeEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		for _, pair := range [][2]int32{{1, 2}, {0, 0}, {-1, -1}, {-1, 2}, {1, -2}, {math.MinInt32, math.MinInt32}, {math.MaxInt32, math.MaxInt32}, {math.MinInt32, math.MaxInt32}} {
			id := ports.PairID(pair[0], pair[1])
			if first, second := ports.IDPair(id); [2]int32{first, second} != pair {
				t.Fatalf("%v came back as %d, %d", pair, first, second)
			}
			of := func(string) (int32, int32) { return pair[0], pair[1] }
			number := manager(t, server.Pool(), pglock.WithKeyFunc(func(string) int64 { return id }))
			here, there := manager(t, server.Pool(), pglock.WithTwoIntegerKeys(of)), manager(t, server.Pool(), pglock.WithTwoIntegerKeys(of))
			one, two := acquire(t, number, "k"), acquire(t, here, "k")
			if one.Info().ID != id || two.Info().ID != id || here.KeyID("k") != id {
				t.Errorf("%v: IDs %d, %d, %d, want %d", pair, one.Info().ID, two.Info().ID, here.KeyID("k"), id)
			}
			if _, acquired, err := there.TryAcquire(bg, "k"); acquired || err != nil {
				t.Errorf("%v: two hold one pair: %v", pair, err)
			}
			for _, lock := range []ports.Lock{one, two} {
				if err := lock.Release(bg); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestTheLastOptionDecidesAboutTheSpace(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		acquire(t, manager(t, server.Pool(), pglock.WithTwoIntegerKeys(ones), pglock.WithKeyFunc(pglock.FNV1aKey)), "k")
		acquire(t, manager(t, server.Pool(), pglock.WithKeyFunc(pglock.FNV1aKey), pglock.WithTwoIntegerKeys(ones)), "k")
		if a, b := len(server.Holders(pglock.FNV1aKey("k"))), len(server.Pairs().Holders(1<<32|1)); a != 1 || b != 1 {
			t.Errorf("%d holders of the number, %d of the pair", a, b)
		}
	})
}

// What a manager asks of its pool beside its sessions goes to the space of its
// locks, too.
func TestPairsAreInspectedAndEvicted(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pairs := pglock.WithTwoIntegerKeys(func(key string) (int32, int32) { return -7, int32(len(key)) })
		m, other := manager(t, server.Pool(), pairs), manager(t, server.Pool(), pairs)
		number := manager(t, server.Pool(), pglock.WithKeyFunc(m.KeyID))
		theirs := acquire(t, number, "k")
		set, err := m.AcquireAll(bg, []string{"k", "kk", "kkk"})
		if err != nil {
			t.Fatal(err)
		}
		in, err := other.Inspect(bg, "k")
		if err != nil || len(in.Holders) != 1 || in.Holders[0].PID != set.Info().PID || in.Holders[0].PID == theirs.Info().PID {
			t.Errorf("%+v %v", in, err)
		}
		if n, err := other.Evict(bg, "kk"); n != 1 || err != nil {
			t.Errorf("evicted %d: %v", n, err)
		}
		<-set.Done()
		if theirs.Err() != nil {
			t.Error("the holder of the number was evicted")
		}
	})
}
