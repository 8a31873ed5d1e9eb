package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// The tests of this file are named after what went wrong for users of other
// lock libraries; each asserts what should have happened.

// Unlock ran on another pooled connection and "succeeded".
func TestCase01UnlockRunsWhereTheLockIs(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m := w.manager(t, db)
		lock := acquire(t, m, "k")
		var wg sync.WaitGroup
		for range 20 { // other work goes through the pool meanwhile
			wg.Go(func() { db.Exec(`SELECT pg_sleep(0.01)`) })
		}
		if pids := w.holders(t, m.KeyID("k"), ports.Exclusive); fmt.Sprint(pids) != fmt.Sprint([]int{lock.Info().PID}) {
			t.Fatalf("held by %v, said to be held by %d", pids, lock.Info().PID)
		}
		must(t, lock.Release(bg))
		wg.Wait()
		if n := w.held(t, "k"); n != 0 {
			t.Fatalf("held %d times after the release", n)
		}

		// A false from the server becomes an error, and the session is ended.
		lock = acquire(t, m, "k")
		undo := errors.New("undo")
		err := sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_unlock_all()`); err != nil {
				return err
			}
			return undo
		})
		if !errors.Is(err, undo) {
			t.Fatal(err)
		}
		wraps(t, lock.Release(bg), ports.ErrLost)
		eventually(t, "the session has ended", func() bool { return !alive(t, lock.Info().PID) })
	})
}

// The waiter died of 40P01 while the holder built an index concurrently on its
// own connection.
func TestCase04AnIndexIsBuiltConcurrentlyWhileOthersWait(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		_, err := db.Exec(`CREATE TABLE t AS SELECT generate_series(1, 1000) AS v`)
		must(t, err)
		holder, waiter := w.manager(t, db), w.manager(t, w.db(t, 4))
		lock := acquire(t, holder, "migrations")
		got := acquireLater(waiter, "migrations")
		eventually(t, "somebody waits", func() bool { return w.waiting(t, "migrations") == 1 })
		err = sqllock.RunConn(bg, lock, func(ctx context.Context, conn *sql.Conn) error {
			_, err := conn.ExecContext(ctx, `CREATE INDEX CONCURRENTLY i ON t (v)`)
			return err
		})
		must(t, err)
		if len(got) > 0 {
			t.Fatalf("the waiter has ended: %+v", <-got)
		}
		must(t, lock.Release(bg))
		r := receive(t, "the lock", got)
		must(t, r.err)
		must(t, r.lock.Release(bg))
		var valid bool
		must(t, db.QueryRow(`SELECT indisvalid FROM pg_index WHERE indexrelid = 'i'::regclass`).Scan(&valid))
		if !valid {
			t.Fatal("the index is not valid")
		}
	})
}

// The job was cancelled, and the lock survived in the pool because unlock used
// the dead context.
func TestCase05ReleaseWorksWithADeadContext(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		m := w.manager(t, w.db(t, 2))
		var pid int
		for i := range 10 {
			ctx, cancel := context.WithCancel(bg)
			lock, err := m.Acquire(ctx, "k")
			must(t, err)
			cancel()
			must(t, lock.Release(ctx))
			if n := w.held(t, "k"); n != 0 {
				t.Fatalf("held %d times after the release", n)
			}
			if i > 0 && lock.Info().PID != pid {
				t.Fatal("a connection was burnt")
			}
			pid = lock.Info().PID
		}
	})
}

// A cancelled acquire left a lock behind.
func TestCase06ACancelledAcquireLeavesNoLock(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		raceGrants(t, w, 400, func(i int) (opts []ports.AcquireOption, cancelAfter time.Duration) {
			return nil, 20 * time.Duration(i) * time.Microsecond // to 8 ms
		})
	})
}

// Two leaders: the backend was killed, and an in-memory flag stayed true.
func TestCase08ALossIsTold(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		window := pglock.MinLivenessWindow
		if w.watches {
			window = time.Hour // so that no check comes first
		}
		m, rival := w.manager(t, w.db(t, 4), pglock.WithLivenessWindow(window)), w.manager(t, w.db(t, 4))
		lock := acquire(t, m, "k")
		time.Sleep(50 * time.Millisecond)
		kill(t, lock.Info().PID)
		receive(t, "the end of the hold", lock.Done())
		wraps(t, lock.Err(), ports.ErrLost)
		if m.IsHeld("k") {
			t.Fatal("a lost lock is said to be held")
		}
		wraps(t, lock.Release(bg), ports.ErrLost)
		must(t, acquire(t, rival, "k").Release(bg))
		must(t, acquire(t, m, "k").Release(bg))

		// A release that comes before the loss was noticed finds it out.
		lock = acquire(t, m, "k")
		kill(t, lock.Info().PID)
		wraps(t, lock.Release(bg), ports.ErrLost)
	})
}

// The application froze: waiters occupied every connection of the pool, and the
// holder needed one more.
func TestCase09WaitersLeaveAConnectionToTheHolder(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m, rival := w.manager(t, db), w.manager(t, w.db(t, 10))
		lock := acquire(t, m, "mine")
		for i := range 6 {
			acquire(t, rival, fmt.Sprint("k", i))
			go m.Acquire(bg, fmt.Sprint("k", i)) // until the manager closes
		}
		eventually(t, "the waiters have their connections", func() bool { return m.Stats().Sessions == 3 })
		ctx, cancel := context.WithTimeout(bg, patience/2)
		defer cancel()
		for range 10 {
			var one int
			must(t, db.QueryRowContext(ctx, `SELECT 1`).Scan(&one))
		}
		must(t, lock.Release(bg))
	})
}

// Waiters died of a global lock_timeout or statement_timeout.
func TestCase11OnlyTheCallersBoundsEndAWait(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.open(t, param(param(w.dsn, "lock_timeout", "300"), "statement_timeout", "500"), 4)
		m := w.manager(t, db)
		conn := w.lockRaw(t, "k")
		_, err := m.Acquire(bg, "k", ports.WithTimeout(1200*time.Millisecond))
		wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
		got := acquireLater(m, "k")
		time.Sleep(2 * time.Second)
		unlockRaw(t, conn)
		r := receive(t, "the lock", got)
		must(t, r.err)
		must(t, r.lock.Release(bg))
		must(t, db.QueryRow(`SHOW lock_timeout`).Scan(new(string)))
	})
}

// A statement_timeout below a slice must neither end a wait nor make it spin.
func TestAWaitUnderATinyStatementTimeoutDoesNotSpin(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		m := w.manager(t, w.open(t, param(w.dsn, "statement_timeout", "100"), 4))
		must(t, m.Verify(bg))
		conn := w.lockRaw(t, "k")
		before := w.transactions(t)
		_, err := m.Acquire(bg, "k", ports.WithTimeout(2*time.Second))
		wraps(t, err, ports.ErrNotAcquired)
		if n := w.transactions(t) - before; n > 400 {
			t.Errorf("%d transactions in 2 s", n)
		}
		unlockRaw(t, conn)
	})
}

// The timeout was not obeyed, or cost the connection.
func TestCase12ATimeoutIsObeyed(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		m := w.manager(t, w.db(t, 2))
		must(t, acquire(t, m, "warm").Release(bg))
		conn := w.lockRaw(t, "k")
		sessions := w.sessions(t)
		for _, how := range []string{"option", "context", "both"} {
			ctx, cancel := context.WithTimeout(bg, time.Hour)
			var opts []ports.AcquireOption
			if how != "context" {
				opts = append(opts, ports.WithTimeout(500*time.Millisecond))
			}
			if how != "option" {
				ctx, cancel = context.WithTimeout(ctx, 500*time.Millisecond)
			}
			start := time.Now()
			_, err := m.Acquire(ctx, "k", opts...)
			elapsed := time.Since(start)
			cancel()
			wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
			if elapsed < 490*time.Millisecond || elapsed > 5*time.Second {
				t.Errorf("%s: returned after %v", how, elapsed)
			}
			eventually(t, "the connection is back in the pool", func() bool { return m.Stats().Sessions == 0 })
			if n := w.sessions(t); n != sessions || m.Stats().Destroyed != 0 {
				t.Errorf("%s: %d sessions, were %d; destroyed %d", how, n, sessions, m.Stats().Destroyed)
			}
		}
		unlockRaw(t, conn)
	})
}

// A waiter that was killed with SIGKILL stayed queued.
func TestCase15AKilledWaiterLeavesTheQueue(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		conn := w.lockRaw(t, "k")
		p := startRole(t, "wait", w, "k")
		eventually(t, "the process waits", func() bool { return w.waiting(t, "k") == 1 })
		must(t, p.Process.Kill())
		p.Wait()
		eventually(t, "nothing of it is queued", func() bool { return w.waiting(t, "k") == 0 })
		unlockRaw(t, conn)
	})
}

// The code went on after a silent reconnect.
func TestCase18ALossIsFinal(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		m := w.manager(t, w.db(t, 4), pglock.WithLivenessWindow(pglock.MinLivenessWindow))
		rival := w.manager(t, w.db(t, 4))
		lock := acquire(t, m, "k")
		kill(t, lock.Info().PID)
		receive(t, "the end of the hold", lock.Done())
		theirs := acquire(t, rival, "k")
		err := sqllock.RunTx(bg, lock, nil, func(context.Context, *sql.Tx) error { t.Error("it ran"); return nil })
		wraps(t, err, ports.ErrLost)
		_, acquired, err := m.TryAcquire(bg, "k")
		must(t, err)
		if acquired {
			t.Fatal("two hold the lock")
		}
		must(t, theirs.Release(bg))
		time.Sleep(100 * time.Millisecond)
		if w.held(t, "k") != 0 || lock.Err() == nil {
			t.Fatal("the lost lock was taken again")
		}
	})
}

// The lock vanished: idle_in_transaction_session_timeout.
func TestCase19AHolderIsIdleNotInATransaction(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		m := w.manager(t, w.open(t, param(w.dsn, "idle_in_transaction_session_timeout", "300"), 4))
		lock := acquire(t, m, "k")
		must(t, sqllock.RunTx(bg, lock, nil, func(context.Context, *sql.Tx) error { return nil }))
		for range 20 {
			if state := scan[string](t, `SELECT state FROM pg_stat_activity WHERE pid = $1`, lock.Info().PID); state != "idle" {
				t.Fatalf("the holder is %q", state)
			}
			time.Sleep(50 * time.Millisecond)
		}
		must(t, lock.Release(bg))
	})
}

// Leadership was lost hourly: the pool recycled the connection.
func TestCase21ThePoolDoesNotRecycleAHold(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		db.SetConnMaxLifetime(200 * time.Millisecond)
		db.SetConnMaxIdleTime(100 * time.Millisecond)
		m := w.manager(t, db)
		lock := acquire(t, m, "k")
		for range 12 {
			time.Sleep(100 * time.Millisecond)
			must(t, db.Ping())
		}
		if lock.Err() != nil || w.held(t, "k") != 1 {
			t.Fatalf("%v, held %d times", lock.Err(), w.held(t, "k"))
		}
		must(t, lock.Release(bg))
	})
}

// Tables bloated during a long wait: the waiter pinned backend_xmin.
func TestCase22AWaitHoldsBackNoVacuum(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		conn := w.lockRaw(t, "k")
		m := w.manager(t, w.db(t, 4))
		got := acquireLater(m, "k")
		eventually(t, "somebody waits", func() bool { return w.waiting(t, "k") == 1 })
		// The oldest snapshot in the database must follow the clock. Two
		// seconds are four slices.
		for start := time.Now(); time.Since(start) < 5*time.Second; time.Sleep(50 * time.Millisecond) {
			oldest := scan[float64](t, `SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
				FROM pg_stat_activity WHERE datid = $1 AND backend_xmin IS NOT NULL`, w.oid)
			if oldest > 2 {
				t.Fatalf("a snapshot is %v s old", oldest)
			}
		}
		unlockRaw(t, conn)
		r := receive(t, "the lock", got)
		must(t, r.err)
		must(t, r.lock.Release(bg))
	})
}

// Two goroutines both owned it: the session was re-entrant.
func TestCase26TwoGoroutinesDoNotBothOwnIt(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		small := w.manager(t, w.db(t, 1))
		_, err := small.Acquire(bg, "k")
		wraps(t, err, ports.ErrPoolExhausted)

		for size, m := range map[int]*pglock.Manager{
			1: w.manager(t, w.db(t, 1), pglock.WithMaxSessions(1)),
			2: w.manager(t, w.db(t, 2)),
		} {
			lock := acquire(t, m, "k")
			_, acquired, err := m.TryAcquire(bg, "k")
			must(t, err)
			if acquired {
				t.Fatalf("size %d: two own the lock", size)
			}
			got := acquireLater(m, "k")
			time.Sleep(50 * time.Millisecond)
			if len(got) > 0 {
				t.Fatalf("size %d: two own the lock", size)
			}
			must(t, lock.Release(bg))
			r := receive(t, "the lock", got)
			must(t, r.err)
			must(t, r.lock.Release(bg))
			if n := w.held(t, "k"); n != 0 {
				t.Fatalf("size %d: held %d times", size, n)
			}
		}
	})
}

// Release did not release: counts were stacked by slices that were lost in the
// moment of the grant.
func TestCase27ReleaseReleasesWhatTimeoutsHaveStacked(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		// The server's own timeout ends each statement after 100 ms, about when
		// the rival unlocks; the wait goes on.
		m := w.manager(t, w.open(t, param(w.dsn, "statement_timeout", "100"), 4))
		rival := w.raw(t)
		id := pglock.SHA256Key("k")
		for i := range 40 {
			_, err := rival.Exec(bg, `SELECT pg_advisory_lock($1)`, id)
			must(t, err)
			got := acquireLater(m, "k")
			eventually(t, "somebody waits", func() bool { return w.waiting(t, "k") == 1 })
			time.Sleep(time.Duration(94+i%12) * time.Millisecond)
			unlockRaw(t, rival)
			r := receive(t, "the lock", got)
			must(t, r.err)
			must(t, r.lock.Release(bg))
			if n := w.held(t, "k"); n != 0 {
				t.Fatalf("held %d times after the release", n)
			}
		}
	})
}

// A failed query leaked the lock: unlock ran in an aborted transaction.
func TestCase29NoWorkOnTheSessionLeaksTheLock(t *testing.T) {
	failed := errors.New("failed")
	run := map[string]func(context.Context, ports.Lock) error{
		"tx fails": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunTx(ctx, lock, nil, func(context.Context, *sql.Tx) error { return failed })
		},
		"tx fails in SQL": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunTx(ctx, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `SELECT 1/0`)
				return err
			})
		},
		"tx fails in SQL and says nothing": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunTx(ctx, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
				tx.ExecContext(ctx, `SELECT 1/0`)
				return nil
			})
		},
		"tx panics": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunTx(ctx, lock, nil, func(context.Context, *sql.Tx) error { panic("boom") })
		},
		"tx exits": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunTx(ctx, lock, nil, func(context.Context, *sql.Tx) error { runtime.Goexit(); return nil })
		},
		"tx leaves rows open": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunTx(ctx, lock, nil, func(_ context.Context, tx *sql.Tx) error {
				rows, err := tx.QueryContext(bg, `SELECT generate_series(1, 100000)`)
				if err == nil && !rows.Next() {
					err = rows.Err()
				}
				return err
			})
		},
		"tx is ended by hand": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunTx(ctx, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `COMMIT`)
				return err
			})
		},
		"tx is cancelled": func(ctx context.Context, lock ports.Lock) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			return sqllock.RunTx(ctx, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
				time.AfterFunc(20*time.Millisecond, cancel)
				_, err := tx.ExecContext(ctx, `SELECT pg_sleep(10)`)
				return err
			})
		},
		"conn fails in SQL": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
				_, err := conn.ExecContext(ctx, `SELECT 1/0`)
				return err
			})
		},
		"conn panics in a transaction": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
				if _, err := conn.ExecContext(ctx, `BEGIN`); err != nil {
					return err
				}
				panic("boom")
			})
		},
		"conn leaves a transaction open": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
				_, err := conn.ExecContext(ctx, `BEGIN; CREATE TABLE left_open ()`)
				return err
			})
		},
		"conn leaves a failed transaction open": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
				conn.ExecContext(ctx, `BEGIN`)
				conn.ExecContext(ctx, `SELECT 1/0`)
				return nil
			})
		},
		"conn leaves a sql.Tx open": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
				_, err := conn.BeginTx(ctx, nil)
				return err
			})
		},
		"conn leaves rows open": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
				rows, err := conn.QueryContext(ctx, `SELECT generate_series(1, 100000)`)
				if err == nil && !rows.Next() {
					err = rows.Err()
				}
				return err
			})
		},
		"conn takes locks of its own": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
				_, err := conn.ExecContext(ctx, `SELECT pg_advisory_lock(g) FROM generate_series(1, 10) g`)
				return err
			})
		},
		"conn drops the lock": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
				_, err := conn.ExecContext(ctx, `DISCARD ALL`)
				return err
			})
		},
		"conn is closed": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error { return conn.Close() })
		},
		"conn makes odd settings": func(ctx context.Context, lock ports.Lock) error {
			return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
				_, err := conn.ExecContext(ctx, `SET statement_timeout = 1`)
				return err
			})
		},
	}
	lost := map[string]bool{ // where the session cannot be trusted afterwards
		"tx is cancelled": true, "conn drops the lock": true, "conn is closed": true,
	}
	succeeds := map[string]bool{
		"tx leaves rows open": true, "conn leaves a transaction open": true, "conn leaves a failed transaction open": true,
		"conn takes locks of its own": true,
	}
	either := map[string]bool{ // the drivers differ in what they make of it
		"tx is ended by hand": true, "conn leaves a sql.Tx open": true, "conn leaves rows open": true, "conn makes odd settings": true,
	}
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m := w.manager(t, db)
		for name, work := range run {
			lock := acquire(t, m, "k")
			done := make(chan error, 1)
			go func() {
				err := error(nil)
				defer func() {
					if p := recover(); p != nil {
						err = fmt.Errorf("panic: %v", p)
					}
					done <- err
				}()
				err = work(bg, lock)
			}()
			err := receive(t, name, done)
			if !either[name] && name != "tx exits" && (err == nil) != succeeds[name] {
				t.Errorf("%s: %v", name, err)
			}
			released := lock.Release(bg)
			if !either[name] && lost[name] != errors.Is(released, ports.ErrLost) || released != nil && !errors.Is(released, ports.ErrLost) {
				t.Errorf("%s: the release says %v", name, released)
			}
			eventually(t, name+": no lock and no transaction is left", func() bool {
				return w.locks(t) == 0 && db.Stats().InUse == 0 &&
					scan[int](t, `SELECT count(*) FROM pg_stat_activity WHERE datid = $1 AND xact_start IS NOT NULL`, w.oid) == 0
			})
			var oddities int
			must(t, db.QueryRow(`SELECT count(*) FROM pg_settings WHERE name = 'statement_timeout' AND setting <> '0'`).Scan(&oddities))
			if oddities > 0 {
				t.Errorf("%s: the pool has inherited odd settings", name)
			}
		}
		if left := scan[int](t, `SELECT count(*) FROM pg_database WHERE oid = $1`, w.oid); left != 1 {
			t.Fatal("the world is gone")
		}
		var table *string
		must(t, db.QueryRow(`SELECT to_regclass('left_open')::text`).Scan(&table))
		if table != nil {
			t.Error("a transaction that was left open has been committed")
		}
	})
}

// Later queries inherited odd settings.
func TestCase31SettingsAreFoundAsTheyWere(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.open(t, param(param(w.dsn, "lock_timeout", "12345"), "statement_timeout", "54321"), 2)
		m := w.manager(t, db)
		settings := func() map[int]string { // by server process, of both connections
			t.Helper()
			all := make(map[int]string)
			var conns []*sql.Conn
			for range 2 {
				conn, err := db.Conn(bg)
				must(t, err)
				conns = append(conns, conn)
				var pid int
				var text string
				must(t, conn.QueryRowContext(bg, `SELECT pg_backend_pid(), string_agg(name || '=' || coalesce(setting, ''), ' ' ORDER BY name) FROM pg_settings`).Scan(&pid, &text))
				all[pid] = text
			}
			for _, conn := range conns {
				conn.Close()
			}
			return all
		}
		before := settings()
		conn := w.raw(t)
		id := pglock.SHA256Key("k")
		must(t, acquire(t, m, "k").Release(bg))
		must(t, acquire(t, m, "k", ports.WithShared()).Release(bg))
		_, err := conn.Exec(bg, `SELECT pg_advisory_lock($1)`, id)
		must(t, err)
		_, err = m.Acquire(bg, "k", ports.WithTimeout(600*time.Millisecond))
		wraps(t, err, ports.ErrNotAcquired)
		_, _, err = m.TryAcquire(bg, "k")
		must(t, err)
		unlockRaw(t, conn)
		lock := acquire(t, m, "k")
		err = sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `SELECT 1/0`)
			return err
		})
		if err == nil {
			t.Fatal("no error")
		}
		must(t, lock.Release(bg))
		eventually(t, "both connections are back", func() bool { return db.Stats().InUse == 0 })
		if after := settings(); !maps.Equal(before, after) {
			t.Fatalf("settings or connections have changed:\nbefore %v\nafter  %v", before, after)
		}
	})
}

// Key errors: unsigned or 32-bit overflow.
func TestCase32TheFullRangeOfIDsWorks(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		parse := func(key string) int64 {
			id, err := strconv.ParseInt(key, 10, 64)
			if err != nil {
				panic(err)
			}
			return id
		}
		m := w.manager(t, w.db(t, 4), pglock.WithKeyFunc(parse))
		for _, id := range []int64{math.MinInt64, -1, 0, math.MaxInt64} {
			key := fmt.Sprint(id)
			lock := acquire(t, m, key)
			if pids := w.holders(t, id, ports.Exclusive); len(pids) != 1 || lock.Info().ID != id {
				t.Errorf("%d is held by %v, info %+v", id, pids, lock.Info())
			}
			// A transaction's lock and a session's have one ID.
			tx, err := outside.Begin()
			must(t, err)
			_, err = sqllock.TryAcquireTx(bg, tx, key, sqllock.TxKeyID(m.KeyID))
			must(t, err)
			must(t, tx.Rollback())
			must(t, lock.Release(bg))
			if n := w.locks(t); n != 0 {
				t.Errorf("%d locks are left", n)
			}
		}
	})
}

// The same key in two databases: no exclusion. That is how advisory locks are;
// the hold says in which database it is.
func TestCase36ALockSaysInWhichDatabaseItIs(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t, drivers[0]), newWorld(t, drivers[1])
	first := acquire(t, a.manager(t, a.db(t, 2)), "k")
	second := acquire(t, b.manager(t, b.db(t, 2)), "k")
	if first.Info().Database == second.Info().Database || !strings.Contains(a.dsn, first.Info().Database) {
		t.Errorf("%q and %q", first.Info().Database, second.Info().Database)
	}
	must(t, first.Release(bg))
	must(t, second.Release(bg))
}

// The lock was stuck after a recovered panic.
func TestCase42TheLockGoesBackHoweverTheCallbackEnds(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m := w.manager(t, db)
		for name, callback := range map[string]func(context.Context) error{
			"panic":  func(context.Context) error { panic("boom") },
			"Goexit": func(context.Context) error { runtime.Goexit(); return nil }, // as t.FailNow does
		} {
			panicked := make(chan any, 1)
			go func() {
				defer func() { panicked <- recover() }()
				pglock.Do(bg, m, "k", callback)
			}()
			if p := receive(t, name, panicked); (p == "boom") != (name == "panic") {
				t.Errorf("%s: recovered %v", name, p)
			}
			if w.held(t, "k") != 0 || db.Stats().InUse != 0 {
				t.Errorf("%s: held %d times, %d connections in use", name, w.held(t, "k"), db.Stats().InUse)
			}
		}
	})
}

// Double, late or concurrent release.
func TestCase43ReleaseIsIdempotentOrSaysWhy(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m, rival := w.manager(t, db), w.manager(t, w.db(t, 4))
		lock := acquire(t, m, "k")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := lock.Release(bg); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		theirs := acquire(t, rival, "k")
		must(t, lock.Release(bg)) // late
		wraps(t, m.Release(bg, "k"), ports.ErrNotHeld)
		if n := w.held(t, "k"); n != 1 {
			t.Fatalf("the newer owner's lock is held %d times", n)
		}
		must(t, theirs.Release(bg))

		lock = acquire(t, m, "k")
		kill(t, lock.Info().PID)
		wraps(t, lock.Release(bg), ports.ErrLost) // after a loss
		wraps(t, lock.Release(bg), ports.ErrLost)

		lock = acquire(t, m, "k")
		db.Close()
		if err := lock.Release(bg); err != nil {
			var typed *ports.LockError
			if !errors.As(err, &typed) {
				t.Errorf("after db.Close: %v", err)
			}
		}
		eventually(t, "the lock is free", func() bool { return w.held(t, "k") == 0 })
	})
}

// alive reports whether a server process exists.
func alive(t testing.TB, pid int) bool {
	t.Helper()
	return scan[int](t, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid) > 0
}

// transactions counts what the server has run in the database. The statistics
// are a little late.
func (w world) transactions(t testing.TB) int {
	t.Helper()
	time.Sleep(1100 * time.Millisecond)
	return scan[int](t, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datid = $1`, w.oid)
}

// acquire takes a key and expects to get it.
func acquire(t testing.TB, m *pglock.Manager, key string, opts ...ports.AcquireOption) ports.Lock {
	t.Helper()
	lock, err := m.Acquire(bg, key, append([]ports.AcquireOption{ports.WithTimeout(patience)}, opts...)...)
	must(t, err)
	return lock
}

type result struct {
	lock ports.Lock
	err  error
}

// acquireLater takes a key on a goroutine of its own.
func acquireLater(m *pglock.Manager, key string, opts ...ports.AcquireOption) <-chan result {
	c := make(chan result, 1)
	go func() {
		lock, err := m.Acquire(bg, key, opts...)
		c <- result{lock, err}
	}()
	return c
}

// startRole starts this test binary as another process that plays a role; see
// role. It is killed when the test ends, if it has not ended by then.
func startRole(t testing.TB, role string, w world, key string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], key)
	cmd.Env = append(os.Environ(), "HOLDFAST_TEST_ROLE="+role, "HOLDFAST_TEST_SETUP="+w.name, "HOLDFAST_TEST_DSN="+w.dsn)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}
