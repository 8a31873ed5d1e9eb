package integration

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/pglock/keys"
	"github.com/holdfast-go/holdfast/ports"
)

// extremes are pairs whose halves have signs, or are as far out as they can be.
var extremes = [][2]int32{
	{1, 2}, {0, 0}, {0, -1}, {-1, 0}, {-1, -1}, {1, -2}, {-1, 2},
	{math.MinInt32, math.MinInt32}, {math.MinInt32, math.MaxInt32}, {math.MaxInt32, math.MinInt32}, {math.MaxInt32, math.MaxInt32},
}

// The server shows the two integers themselves, and the bigint of the same bits is
// another lock.
func TestAPairIsThePairThatTheServerShows(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db, raw := w.db(t, 4), w.raw(t)
		for _, pair := range extremes {
			id := ports.PairID(pair[0], pair[1])
			m := w.manager(t, db, pglock.WithTwoIntegerKeys(keys.AlwaysPair(pair[0], pair[1])), pglock.WithoutVerification())
			lock := acquire(t, m, "k")
			got := scan[string](t, `SELECT string_agg(format('%s %s %s by %s', classid, objid, objsubid, pid), '; ') FROM pg_locks WHERE locktype = 'advisory' AND database = $1`, w.oid)
			if want := fmt.Sprintf("%d %d 2 by %d", uint32(pair[0]), uint32(pair[1]), lock.Info().PID); got != want || lock.Info().ID != id {
				t.Errorf("%v, ID %d: %s, want %s", pair, lock.Info().ID, got, want)
			}
			var pairs, number bool
			must(t, raw.QueryRow(bg, `SELECT pg_try_advisory_lock($1::int, $2::int), pg_try_advisory_lock($3::bigint)`, pair[0], pair[1], id).Scan(&pairs, &number))
			if pairs || !number {
				t.Errorf("%v: somebody else gets the pair: %v, and the number: %v", pair, pairs, number)
			}
			unlockRaw(t, raw)
			must(t, lock.Release(bg))
			if n := w.locks(t); n != 0 {
				t.Fatalf("%v: %d locks are left", pair, n)
			}
		}
	})
}

// Two managers, one a space, on the same number.
func TestTheSpacesDoNotMeet(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 8)
		const id = 0x0000000100000002
		number := w.manager(t, db, pglock.WithKeyFunc(keys.Always(id)))
		pairs := pglock.WithTwoIntegerKeys(keys.AlwaysPair(1, 2))
		pair, rival := w.manager(t, db, pairs), w.manager(t, db, pairs)
		one, two := acquire(t, number, "k"), acquire(t, pair, "k")
		if _, acquired, err := rival.TryAcquire(bg, "k"); acquired || err != nil {
			t.Fatalf("two hold one pair: %v", err)
		}
		for m, pid := range map[*pglock.Manager]int{number: one.Info().PID, pair: two.Info().PID} {
			in, err := m.Inspect(bg, "k")
			must(t, err)
			if len(in.Holders) != 1 || in.Holders[0].PID != pid || in.ID != id {
				t.Errorf("%v, want process %d", in, pid)
			}
		}
		if n, err := rival.Evict(bg, "k"); n != 1 || err != nil {
			t.Fatalf("evicted %d: %v", n, err)
		}
		receive(t, "the loss of the pair", two.Done())
		must(t, acquire(t, rival, "k").Release(bg))
		must(t, one.Release(bg))
	})
}

// Everything that looks whether a lock is still there looks in its space.
func TestThePairIsLookedForWhereItIs(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		numbers := w.pool
		w = w.inPairs()
		db := w.db(t, 8)
		m := w.manager(t, db, pglock.WithLivenessWindow(pglock.MinLivenessWindow))
		pool := w.pool(db)
		set, err := m.AcquireAll(bg, []string{"a", "b"}, ports.WithShared())
		must(t, err)
		var ids []int64
		for _, key := range []string{"a", "b"} {
			ids = append(ids, m.KeyID(key))
			if pids := w.holders(t, m.KeyID(key), ports.Shared); len(pids) != 1 || pids[0] != set.Info().PID {
				t.Fatalf("%s is held by %v", key, pids)
			}
		}
		for _, c := range []struct {
			ids  []int64
			want bool
		}{{ids, true}, {append(ids[:1:1], m.KeyID("c")), false}} {
			if held, err := pool.(ports.Witness).Holds(bg, set.Info().PID, c.ids); held != c.want || err != nil {
				t.Errorf("a witness says %v of %v: %v", held, c.ids, err)
			}
		}
		if held, err := numbers(db).(ports.Witness).Holds(bg, set.Info().PID, ids); held || err != nil {
			t.Errorf("a witness of numbers says %v: %v", held, err)
		}
		must(t, set.Release(bg))

		lock := acquire(t, m, "k")
		must(t, sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
			// The transaction holds the lock as well: who unlocks it by hand
			// does not let anybody in.
			if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_unlock_all()`); err != nil {
				return err
			}
			if n := w.held(t, "k"); n != 1 {
				t.Errorf("held by %d", n)
			}
			first, second := sha256Pair("k")
			_, err := tx.ExecContext(ctx, fmt.Sprintf(`SELECT pg_advisory_lock(%d, %d)`, first, second))
			return err
		}))
		// The number of the same bits is no substitute.
		err = sqllock.RunConn(bg, lock, func(ctx context.Context, conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, fmt.Sprintf(`SELECT pg_advisory_unlock_all(), pg_advisory_lock(%d)`, m.KeyID("k")))
			return err
		})
		wraps(t, err, ports.ErrLost)
		receive(t, "the loss", lock.Done())
		eventually(t, "nothing is left", func() bool { return w.locks(t) == 0 })
	})
}

func TestATransactionsPairAndASessionsExcludeEachOther(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		w = w.inPairs()
		db := w.db(t, 8)
		m := w.manager(t, db)
		pairs := sqllock.TxTwoIntegerKeys(sha256Pair)
		tx := begin(t, db)
		must(t, sqllock.AcquireTx(bg, tx, "k", pairs))
		if n := w.held(t, "k"); n != 1 {
			t.Fatalf("held by %d", n)
		}
		_, acquired, err := m.TryAcquire(bg, "k")
		must(t, err)
		other := begin(t, db)
		if ok, err := sqllock.TryAcquireTx(bg, other, "k", pairs, sqllock.TxShared()); acquired || ok || err != nil {
			t.Fatalf("a pair is held twice: %v %v %v", acquired, ok, err)
		}
		if ok, err := sqllock.TryAcquireTx(bg, other, "k"); !ok || err != nil {
			t.Fatalf("the number is not free: %v", err)
		}
		got := acquireLater(m, "k", ports.WithShared())
		eventually(t, "somebody waits", func() bool { return w.waiting(t, "k") == 1 })
		must(t, tx.Commit())
		r := receive(t, "the lock", got)
		must(t, r.err)
		wraps(t, sqllock.AcquireTx(bg, other, "k", pairs, sqllock.TxTimeout(50*time.Millisecond)), ports.ErrNotAcquired)
		must(t, sqllock.AcquireTx(bg, other, "k", pairs, sqllock.TxShared()))
		must(t, r.lock.Release(bg))
		must(t, other.Commit())
	})
}

// A timeout in the moment of the grant leaves no pair behind, on a session that
// holds another one as well.
func TestARacedWaitLeavesNoPairBehind(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		w = w.inPairs()
		m := w.manager(t, w.db(t, 8))
		for i := range 60 {
			theirs := acquire(t, m, "b")
			var wg sync.WaitGroup
			wg.Go(func() {
				time.Sleep(20*time.Millisecond + time.Duration(i%20-10)*100*time.Microsecond)
				theirs.Release(bg)
			})
			set, err := m.AcquireAll(bg, []string{"a", "b"}, ports.WithTimeout(20*time.Millisecond))
			wg.Wait()
			if err == nil {
				must(t, set.Release(bg))
			}
			if n := w.held(t, "a") + w.held(t, "b"); n != 0 {
				t.Fatalf("%d locks are left after %v", n, err)
			}
		}
	})
}

// What the server computes for a neighbour's key is what package keys computes, and
// whoever locks with the neighbour's own SQL is excluded, in both directions.
func TestNeighboursAndAManagerExcludeEachOther(t *testing.T) {
	const ruby = `pg_%s(('x' || substr(md5($1::text), 1, 16))::bit(64)::bigint)`
	names := []string{"my-lock", "migration:tenant-abc", "日本語", "", "x", "twelve bytes", "thirteen byte", "a name of some length, of more than one block"}
	pair := func(f func(string) (int32, int32)) pglock.Option { return pglock.WithTwoIntegerKeys(f) }
	each(t, drivers, func(t *testing.T, w world) {
		db, neighbour := w.db(t, 4), w.raw(t)
		for scheme, c := range map[string]struct {
			option pglock.Option
			call   string // of a lock function of the server, on the name $1
		}{
			"GoodJob":               {pglock.WithKeyFunc(keys.GoodJob), ruby},
			"hashtext":              {pglock.WithKeyFunc(keys.HashText), `pg_%s(hashtext($1::text))`},
			"hashtext, pair":        {pair(keys.HashTextPair(-7)), `pg_%s(-7, hashtext($1::text))`},
			"hashtextextended":      {pglock.WithKeyFunc(keys.HashTextExtended(0)), `pg_%s(hashtextextended($1::text, 0))`},
			"hashtextextended, -7":  {pglock.WithKeyFunc(keys.HashTextExtended(-7)), `pg_%s(hashtextextended($1::text, -7))`},
			"hashtextextended, 2⁴⁰": {pglock.WithKeyFunc(keys.HashTextExtended(1 << 40)), `pg_%s(hashtextextended($1::text, 1099511627776))`},
			"django-pglock":         {pglock.WithKeyFunc(keys.DjangoPGLock), littleEndian},
		} {
			m := w.manager(t, db, c.option, pglock.WithoutVerification())
			for _, name := range names {
				try := func() (ok bool) {
					must(t, neighbour.QueryRow(bg, `SELECT `+fmt.Sprintf(c.call, `try_advisory_lock`), name).Scan(&ok))
					return ok
				}
				lock := acquire(t, m, name)
				if try() {
					t.Errorf("%s: the neighbour has the lock of %q, too", scheme, name)
				}
				must(t, lock.Release(bg))
				if !try() {
					t.Errorf("%s: the neighbour does not get %q", scheme, name)
				}
				if _, acquired, err := m.TryAcquire(bg, name); acquired || err != nil {
					t.Errorf("%s: the manager has the neighbour's %q: %v", scheme, name, err)
				}
				unlockRaw(t, neighbour)
			}
		}
	})
}

// littleEndian reads the first eight bytes of a SHA-256 sum from the last to the
// first.
const littleEndian = `pg_%s((SELECT ('x' || string_agg(lpad(to_hex(get_byte(sha256(convert_to($1::text, 'UTF8')), 7 - i)), 2, '0'), '' ORDER BY i))::bit(64)::bigint FROM generate_series(0, 7) AS i))`
