package integration

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// acquireMany takes keys at once, each on a goroutine of its own.
func acquireMany(t testing.TB, m *pglock.Manager, n int) []ports.Lock {
	t.Helper()
	locks := make([]ports.Lock, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			lock, err := m.Acquire(bg, fmt.Sprint("key", i))
			if err != nil {
				t.Error(err)
				return
			}
			locks[i] = lock
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return locks
}

func TestAThousandLocksSitOnOneSession(t *testing.T) {
	each(t, setups, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m := w.manager(t, db, pglock.WithSharedSessions(1), pglock.WithHolderID("shared"))
		must(t, m.Verify(bg))
		locks := acquireMany(t, m, 1000)
		pid := locks[0].Info().PID
		held := `FROM pg_locks WHERE locktype = 'advisory' AND database = $1 AND granted`
		if n := scan[int](t, `SELECT count(*) `+held+` AND pid = $2`, w.oid, pid); n != 1000 || w.locks(t) != 1000 {
			t.Errorf("%d locks, %d of them on session %d", w.locks(t), n, pid)
		}
		if n := db.Stats().InUse; n != 1 {
			t.Errorf("%d connections are in use", n)
		}
		name := `SELECT application_name FROM pg_stat_activity WHERE pid = $1`
		if got := scan[string](t, name, pid); !strings.HasPrefix(got, "holdfast ") || !strings.HasSuffix(got, " shared") {
			t.Errorf("the session is called %q", got)
		}
		in, err := m.Inspect(bg, "key7")
		must(t, err)
		if len(in.Holders) != 1 || in.Holders[0].PID != pid || in.Holders[0].HolderID != "shared" {
			t.Errorf("%v", in)
		}
		for _, lock := range locks[:500] {
			must(t, lock.Release(bg))
		}
		if n := w.locks(t); n != 500 {
			t.Errorf("%d locks are left of 500", n)
		}
		n, err := m.ReleaseAll(bg)
		must(t, err)
		if n != 500 || w.locks(t) != 0 {
			t.Errorf("released %d, %d are left", n, w.locks(t))
		}
		eventually(t, "the session goes back to the pool", func() bool { return db.Stats().InUse == 0 })
		if got := scan[string](t, name, pid); strings.HasPrefix(got, "holdfast") {
			t.Errorf("an idle session of the pool is called %q", got)
		}
	})
}

func TestALostSessionTakesAllItsLocksAndNoOthers(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		m := w.manager(t, w.db(t, 5), pglock.WithSharedSessions(2), pglock.WithLivenessWindow(pglock.MinLivenessWindow))
		locks := acquireMany(t, m, 100)
		killed := locks[0].Info().PID
		kill(t, killed)
		lost := 0
		for _, lock := range locks {
			if lock.Info().PID != killed {
				must(t, lock.Err())
				continue
			}
			lost++
			receive(t, "the end of the hold", lock.Done())
			wraps(t, lock.Err(), ports.ErrLost)
			wraps(t, lock.Release(bg), ports.ErrLost)
		}
		if lost < 20 || lost > 80 || m.HeldCount() != 100-lost || w.locks(t) != 100-lost {
			t.Errorf("%d lost, %d held, %d at the server", lost, m.HeldCount(), w.locks(t))
		}
		lock, ok, err := m.TryAcquire(bg, "key0")
		must(t, err)
		if !ok || lock.Info().PID == killed {
			t.Errorf("%v", ok)
		}
	})
}

func TestASharedSessionIsNotLent(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		m := w.manager(t, w.db(t, 4), pglock.WithSharedSessions(1))
		lock, err := m.Acquire(bg, "k")
		must(t, err)
		wraps(t, sqllock.RunTx(bg, lock, nil, func(context.Context, *sql.Tx) error { t.Error("ran"); return nil }), ports.ErrUnsupported)
		wraps(t, sqllock.RunConn(bg, lock, func(context.Context, *sql.Conn) error { t.Error("ran"); return nil }), ports.ErrUnsupported)
		must(t, lock.Err())
	})
}

// Tokens of one statement are drawn when all of its locks are taken, so a lock
// that was passed around by others meanwhile has not seen a greater one.
func TestTokensOfABatchGrowPerKey(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		const keys, managers, rounds = 8, 3, 40
		last := make([]ports.Token, keys) // each guarded by its lock
		var wg sync.WaitGroup
		for i := range managers {
			opts := []pglock.Option{pglock.WithSharedSessions(1)}
			if i == 0 {
				opts = nil
			}
			m := w.manager(t, w.db(t, 12), opts...)
			for k := range keys {
				wg.Go(func() {
					for range rounds {
						lock, err := m.Acquire(bg, fmt.Sprint("key", k), ports.WithFencing(), ports.WithTimeout(time.Minute))
						if err != nil {
							t.Error(err)
							return
						}
						if token := lock.Info().Token; token <= last[k] {
							t.Errorf("key %d: token %d after %d", k, token, last[k])
						} else {
							last[k] = token
						}
						if err := lock.Release(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
	})
}
