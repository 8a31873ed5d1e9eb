package integration

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.Begin()
	must(t, err)
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func TestATransactionsLockAndASessionsExcludeEachOther(t *testing.T) {
	each(t, setups, func(t *testing.T, w world) {
		db := w.db(t, 8)
		m := w.manager(t, db, pglock.WithNamespace("app:"))
		same := sqllock.TxKeyID(m.KeyID)

		tx := begin(t, db)
		must(t, sqllock.AcquireTx(bg, tx, "k", same))
		_, acquired, err := m.TryAcquire(bg, "k")
		must(t, err)
		if acquired {
			t.Fatal("a session has the lock of a transaction")
		}
		other := begin(t, db)
		if ok, err := sqllock.TryAcquireTx(bg, other, "k", same); ok || err != nil {
			t.Fatalf("two transactions have one lock: %v %v", ok, err)
		}
		must(t, other.Rollback())
		must(t, tx.Commit())

		lock := acquire(t, m, "k")
		tx = begin(t, db)
		if ok, err := sqllock.TryAcquireTx(bg, tx, "k", same); ok || err != nil {
			t.Fatalf("a transaction has the lock of a session: %v %v", ok, err)
		}
		if ok, err := sqllock.TryAcquireTx(bg, tx, "k"); !ok || err != nil {
			t.Fatalf("another namespace is another lock: %v %v", ok, err)
		}
		must(t, lock.Release(bg))
		if ok, err := sqllock.TryAcquireTx(bg, tx, "k", same, sqllock.TxShared()); !ok || err != nil {
			t.Fatalf("%v %v", ok, err)
		}
		shared := acquire(t, m, "k", ports.WithShared())
		must(t, shared.Release(bg))
		must(t, tx.Rollback())
		if n := w.locks(t); n != 0 {
			t.Fatalf("%d locks are left", n)
		}
	})
}

func TestAcquireTxWaitsAndKeepsTheTransactionUsable(t *testing.T) {
	each(t, setups, func(t *testing.T, w world) {
		db := w.db(t, 8)
		m := w.manager(t, db)
		for _, opts := range [][]sqllock.TxOption{nil, {sqllock.TxShared()}} {
			lock := acquire(t, m, "k")
			tx := begin(t, db)
			_, err := tx.Exec(`SET LOCAL lock_timeout = '7s'`)
			must(t, err)
			unchanged := func() {
				t.Helper()
				var timeout string
				must(t, tx.QueryRow(`SHOW lock_timeout`).Scan(&timeout))
				if timeout != "7s" {
					t.Fatalf("lock_timeout has become %s", timeout)
				}
			}
			err = sqllock.AcquireTx(bg, tx, "k", append(opts, sqllock.TxTimeout(700*time.Millisecond))...)
			wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
			unchanged()
			ctx, cancel := context.WithTimeout(bg, time.Second)
			err = sqllock.AcquireTx(ctx, tx, "k", opts...)
			cancel()
			wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
			unchanged()
			err = sqllock.AcquireTx(bg, tx, "k", append(opts, sqllock.TxTimeout(0))...)
			wraps(t, err, ports.ErrNotAcquired)
			unchanged()

			got := make(chan error, 1)
			go func() { got <- sqllock.AcquireTx(bg, tx, "k", opts...) }()
			eventually(t, "the transaction waits", func() bool { return w.waiting(t, "k") == 1 })
			must(t, lock.Release(bg))
			must(t, receive(t, "the lock", got))
			unchanged()
			if n := w.held(t, "k"); n != 1 {
				t.Fatalf("held %d times", n)
			}
			must(t, tx.Commit())
			if n := w.held(t, "k"); n != 0 {
				t.Fatalf("held %d times after the commit", n)
			}
		}
	})
}

func TestAcquireTxUnderATinyStatementTimeout(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.open(t, param(w.dsn, "statement_timeout", "50"), 4)
		conn := w.lockRaw(t, "k")
		tx := begin(t, db)
		got := make(chan error, 1)
		go func() { got <- sqllock.AcquireTx(bg, tx, "k") }()
		time.Sleep(400 * time.Millisecond)
		unlockRaw(t, conn)
		must(t, receive(t, "the lock", got))
		must(t, tx.Commit())
	})
}

func TestACancelledAcquireTxReturns(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		conn := w.lockRaw(t, "k")
		tx := begin(t, db)
		why := errors.New("never mind")
		ctx, cancel := context.WithCancelCause(bg)
		got := make(chan error, 1)
		go func() { got <- sqllock.AcquireTx(ctx, tx, "k") }()
		eventually(t, "the transaction waits", func() bool { return w.waiting(t, "k") == 1 })
		cancel(why)
		err := receive(t, "the end of the wait", got)
		if err == nil || errors.Is(err, ports.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
		tx.Rollback()
		_, err = sqllock.TryAcquireTx(ctx, tx, "k")
		wraps(t, err, why)
		unlockRaw(t, conn)
		eventually(t, "nothing is left", func() bool { return w.locks(t) == 0 && w.waiting(t, "k") == 0 })
	})
}

func TestASavepointDropsLaterLocks(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		tx := begin(t, w.db(t, 4))
		must(t, sqllock.AcquireTx(bg, tx, "before"))
		_, err := tx.Exec(`SAVEPOINT s`)
		must(t, err)
		must(t, sqllock.AcquireTx(bg, tx, "after"))
		_, err = tx.Exec(`ROLLBACK TO SAVEPOINT s`)
		must(t, err)
		if w.held(t, "before") != 1 || w.held(t, "after") != 0 {
			t.Errorf("held: before %d, after %d", w.held(t, "before"), w.held(t, "after"))
		}
		must(t, tx.Commit())
	})
}

func TestTryDoTxCommitsOnlyASuccess(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		_, err := db.Exec(`CREATE TABLE runs (how text)`)
		must(t, err)
		insert := func(ctx context.Context, tx *sql.Tx, how string) {
			_, err := tx.ExecContext(ctx, `INSERT INTO runs VALUES (`+"'"+how+"'"+`)`)
			must(t, err)
			if w.held(t, "job") != 1 {
				t.Error("the job runs without the lock")
			}
			ran, err := sqllock.TryDoTx(ctx, db, "job", func(context.Context, *sql.Tx) error {
				t.Error("the job runs twice at once")
				return nil
			})
			if ran || err != nil {
				t.Errorf("%v %v", ran, err)
			}
		}
		failed := errors.New("failed")
		for how, end := range map[string]func() error{
			"succeeds": func() error { return nil },
			"fails":    func() error { return failed },
			"panics":   func() error { panic("boom") },
			"exits":    func() error { runtime.Goexit(); return nil },
		} {
			done := make(chan error, 1)
			go func() {
				var err error
				defer func() {
					recover()
					done <- err
				}()
				_, err = sqllock.TryDoTx(bg, db, "job", func(ctx context.Context, tx *sql.Tx) error {
					insert(ctx, tx, how)
					return end()
				})
			}()
			if err := receive(t, how, done); (how == "fails") != errors.Is(err, failed) {
				t.Errorf("%s: %v", how, err)
			}
			eventually(t, "the lock is free", func() bool { return w.held(t, "job") == 0 })
		}
		var written string
		must(t, db.QueryRow(`SELECT string_agg(how, ',') FROM runs`).Scan(&written))
		if written != "succeeds" {
			t.Errorf("written by: %s", written)
		}
	})
}

func TestRunTxCommitsOnTheLocksSession(t *testing.T) {
	each(t, setups, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m := w.manager(t, db)
		_, err := db.Exec(`CREATE TABLE t (v int)`)
		must(t, err)
		for _, opts := range [][]ports.AcquireOption{nil, {ports.WithShared()}} {
			lock := acquire(t, m, "k", opts...)
			err = sqllock.RunTx(bg, lock, &sql.TxOptions{Isolation: sql.LevelSerializable}, func(ctx context.Context, tx *sql.Tx) error {
				var pid int
				must(t, tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid))
				if carried, ok := pglock.FromContext(ctx); !ok || carried != lock || pid != lock.Info().PID {
					t.Errorf("process %d, lock %v", pid, lock.Info())
				}
				_, err := tx.ExecContext(ctx, `INSERT INTO t VALUES (1)`)
				return err
			})
			must(t, err)
			must(t, sqllock.RunTx(bg, lock, &sql.TxOptions{ReadOnly: true}, func(context.Context, *sql.Tx) error { return nil }))
			must(t, sqllock.RunConn(bg, lock, func(ctx context.Context, conn *sql.Conn) error { return conn.PingContext(ctx) }))
			must(t, lock.Release(bg))
			if n := w.locks(t); n != 0 {
				t.Fatalf("%d locks are left", n)
			}
		}
		var n int
		must(t, db.QueryRow(`SELECT count(*) FROM t`).Scan(&n))
		if n != 2 {
			t.Errorf("%d rows", n)
		}
	})
}

func TestNothingIsCommittedOnceTheLockIsGone(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m, rival := w.manager(t, db), w.manager(t, w.db(t, 4))
		_, err := db.Exec(`CREATE TABLE t (v text)`)
		must(t, err)
		write := func(ctx context.Context, tx *sql.Tx, v string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO t VALUES ('`+v+`')`)
			return err
		}

		// The session ends within the transaction.
		lock := acquire(t, m, "k")
		err = sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
			must(t, write(ctx, tx, "ended"))
			kill(t, lock.Info().PID)
			must(t, acquire(t, rival, "k").Release(bg))
			return nil
		})
		wraps(t, err, ports.ErrLost)
		wraps(t, lock.Err(), ports.ErrLost)

		// The lock is dropped within the transaction: it keeps rivals out
		// until the commit.
		lock = acquire(t, m, "k")
		err = sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `SELECT pg_advisory_unlock_all()`)
			must(t, err)
			if _, acquired, err := rival.TryAcquire(bg, "k"); acquired || err != nil {
				t.Errorf("a rival got in before the commit: %v %v", acquired, err)
			}
			return write(ctx, tx, "dropped within")
		})
		must(t, err)
		// The lock was dropped before: nothing runs.
		theirs := acquire(t, rival, "k")
		err = sqllock.RunTx(bg, lock, nil, func(context.Context, *sql.Tx) error {
			t.Error("a stale holder's transaction runs")
			return nil
		})
		wraps(t, err, ports.ErrLost)
		wraps(t, lock.Release(bg), ports.ErrLost)
		must(t, theirs.Release(bg))

		// The lock was released.
		lock = acquire(t, m, "k")
		must(t, lock.Release(bg))
		err = sqllock.RunTx(bg, lock, nil, func(context.Context, *sql.Tx) error { t.Error("it runs"); return nil })
		wraps(t, err, ports.ErrReleased)

		var written string
		must(t, db.QueryRow(`SELECT string_agg(v, ',') FROM t`).Scan(&written))
		if written != "dropped within" {
			t.Errorf("written: %s", written)
		}
	})
}

// foreign is a lock that is no lock manager's of this library.
type foreign struct{ ports.Lock }

func (foreign) Info() ports.LockInfo  { return ports.LockInfo{Key: "k"} }
func (foreign) Done() <-chan struct{} { return nil }
func (foreign) Err() error            { return nil }

func TestRunTxIsUnsupportedWithoutASession(t *testing.T) {
	m := memlock.New(memlock.NewServer())
	defer m.Close(bg)
	wraps(t, sqllock.RunTx(bg, nil, nil, func(context.Context, *sql.Tx) error { t.Error("it runs"); return nil }), ports.ErrUnsupported)
	for _, lock := range []ports.Lock{foreign{}, acquire(t, m, "k")} {
		wraps(t, sqllock.RunTx(bg, lock, nil, func(context.Context, *sql.Tx) error { t.Error("it runs"); return nil }), ports.ErrUnsupported)
		wraps(t, sqllock.RunConn(bg, lock, func(context.Context, *sql.Conn) error { t.Error("it runs"); return nil }), ports.ErrUnsupported)
		if lock.Err() != nil {
			t.Error("the lock is lost")
		}
	}
}

func TestWhatATransactionSetsDoesNotReachThePool(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 2)
		m := w.manager(t, db)
		lock := acquire(t, m, "k")
		must(t, sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `SET statement_timeout = 1234`)
			return err
		}))
		must(t, lock.Release(bg))
		for range 3 {
			var timeout string
			must(t, db.QueryRow(`SHOW statement_timeout`).Scan(&timeout))
			if timeout != "0" {
				t.Fatalf("the pool has inherited statement_timeout = %s", timeout)
			}
		}
		if n := m.Stats().Destroyed; n != 1 {
			t.Errorf("%d sessions were ended", n)
		}
	})
}

// A release while the session is lent, and idle, ends the session, and puts no
// connection with the lock into any pool.
func TestAReleaseDoesNotWaitForABorrowerForEver(t *testing.T) {
	each(t, setups, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m := w.manager(t, db, pglock.WithLivenessWindow(pglock.MinLivenessWindow))
		lock := acquire(t, m, "k")
		err := sqllock.RunConn(bg, lock, func(ctx context.Context, conn *sql.Conn) error {
			if err := lock.Release(bg); err == nil || errors.Is(err, ports.ErrLost) {
				t.Errorf("the release says %v", err)
			}
			<-ctx.Done()
			eventually(t, "the lock is free", func() bool { return w.locks(t) == 0 })
			if alive(t, lock.Info().PID) {
				t.Error("the session lives on")
			}
			for range 4 {
				must(t, db.Ping())
			}
			return nil
		})
		if err == nil {
			t.Error("RunConn says that all is well")
		}
	})
}

func TestALockInATransactionIsRefusedNowhereButInRecovery(t *testing.T) {
	each(t, setups, func(t *testing.T, w world) {
		db := w.db(t, 4)
		for _, opts := range []*sql.TxOptions{nil, {ReadOnly: true}, {Isolation: sql.LevelSerializable}} {
			tx, err := db.BeginTx(bg, opts)
			must(t, err)
			ok, err := sqllock.TryAcquireTx(bg, tx, "k")
			must(t, err)
			if !ok || w.held(t, "k") != 1 {
				t.Errorf("granted %v, held %d times", ok, w.held(t, "k"))
			}
			must(t, tx.Rollback())
		}
	})
}
