//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/integration/testkit"
	"github.com/holdfast-go/holdfast/ports"
)

// poolerSize is how many server sessions a pooler has for a database.
const poolerSize = 6

// Two owners behind a transaction or statement pooler, and a stranded lock.
func TestCase02APoolerThatSharesSessionsIsRefused(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			each(t, modes, func(t *testing.T, w world) {
				dsn := testkit.ThroughPooler(t, w.dsn, mode, poolerSize)
				refused := func(what string, err error) {
					t.Helper()
					if !errors.Is(err, ports.ErrUnsafeConnection) {
						t.Errorf("%s: %v", what, err)
					} else if !strings.Contains(err.Error(), "session pooling") {
						t.Errorf("%s does not say what to do: %v", what, err)
					}
				}
				func() { // quiet
					db := w.open(t, dsn, 4)
					m := w.new(db)
					defer m.Close(bg)
					refused("Verify", m.Verify(bg))
					_, err := m.Acquire(bg, "k", ports.WithTimeout(patience))
					refused("Acquire", err)
					_, acquired, err := m.TryAcquire(bg, "k")
					refused("TryAcquire", err)
					_, err = m.AcquireAll(bg, []string{"k", "l"}, ports.WithTimeout(patience))
					refused("AcquireAll", err)
					if acquired || m.HeldCount() != 0 {
						t.Error("acquired")
					}
				}()

				// Under load, statements of one client are spread over all the
				// server's sessions.
				stop := load(t, dsn, mode)
				for range 8 {
					var owners atomic.Int32
					var wg sync.WaitGroup
					for range 2 {
						db := w.open(t, dsn, 4)
						m := w.new(db)
						wg.Go(func() {
							refused("Verify under load", m.Verify(bg))
							lock, err := m.Acquire(bg, "k", ports.WithTimeout(patience))
							if refused("Acquire under load", err); err == nil {
								owners.Add(1)
								defer owners.Add(-1)
								if owners.Load() > 1 {
									t.Error("two owners")
								}
								time.Sleep(50 * time.Millisecond)
								lock.Release(bg)
							}
							m.Close(bg)
							db.Close()
						})
					}
					wg.Wait()
				}
				stop()
				eventually(t, "nothing is held", func() bool { return w.locks(t) == 0 })
			})
		})
	}
}

// load keeps a pooler busy with other clients, until stop is called.
func load(t *testing.T, dsn, mode string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	for range poolerSize {
		config, err := pgx.ParseConfig(dsn)
		must(t, err)
		config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		conn, err := pgx.ConnectConfig(bg, config)
		must(t, err)
		wg.Go(func() {
			defer conn.Close(bg)
			for ctx.Err() == nil {
				query := `SELECT pg_sleep(random() / 200)`
				if mode == "transaction" && rand.IntN(2) == 0 {
					query = `BEGIN; SELECT pg_sleep(random() / 200); COMMIT`
				}
				if _, err := conn.Exec(bg, query); err != nil {
					t.Errorf("load: %v", err)
					return
				}
				time.Sleep(rand.N(5 * time.Millisecond))
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// A pool that has room for the proof's second connection must not do without
// the proof because it takes a while to connect: it is not exhausted.
func TestCase02ASlowWayToAPoolerDoesNotHideIt(t *testing.T) {
	const delay = 600 * time.Millisecond // of a far server with TLS, or a busy one
	each(t, drivers, func(t *testing.T, w world) {
		dsn := slowly(t, testkit.ThroughPooler(t, w.dsn, "transaction", poolerSize), delay)
		if err := w.manager(t, w.open(t, dsn, 4)).Verify(bg); !errors.Is(err, ports.ErrUnsafeConnection) {
			t.Errorf("Verify: %v", err)
		}
		var owners int
		for range 2 {
			m := w.manager(t, w.open(t, dsn, 4))
			lock, err := m.Acquire(bg, "k", ports.WithTimeout(patience))
			if !errors.Is(err, ports.ErrUnsafeConnection) {
				t.Errorf("Acquire: %v", err)
			}
			if err == nil {
				owners++
				defer lock.Release(bg)
			}
		}
		if owners > 1 {
			t.Errorf("%d owners at a time", owners)
		}
	})
}

// slowly makes each connection to a DSN take this much longer to open.
func slowly(t *testing.T, dsn string, delay time.Duration) string {
	t.Helper()
	u, err := url.Parse(dsn)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer client.Close()
				time.Sleep(delay)
				server, err := net.Dial("tcp", u.Host)
				if err != nil {
					return
				}
				wg.Go(func() { io.Copy(client, server); client.Close() })
				io.Copy(server, client)
				server.Close()
			})
		}
	})
	return at(dsn, l.Addr().String())
}

func TestAPoolerInSessionModeIsAccepted(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		dsn := testkit.ThroughPooler(t, w.dsn, "session", poolerSize)
		db := w.open(t, dsn, 3)
		before := settingsOf(t, db, 3)
		m, rival := w.manager(t, db), w.manager(t, w.open(t, dsn, 3))
		must(t, m.Verify(bg))
		for range 3 {
			lock := acquire(t, m, "k", ports.WithFencing())
			if n := w.held(t, "k"); n != 1 {
				t.Fatalf("held %d times", n)
			}
			if _, acquired, err := rival.TryAcquire(bg, "k"); acquired || err != nil {
				t.Fatalf("a rival: %v, %v", acquired, err)
			}
			later := acquireLater(rival, "k")
			eventually(t, "the rival waits", func() bool { return w.waiting(t, "k") == 1 })
			must(t, lock.Release(bg))
			r := receive(t, "the rival", later)
			must(t, r.err)
			_, err := m.Acquire(bg, "k", ports.WithTimeout(300*time.Millisecond))
			wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
			must(t, r.lock.Release(bg))
		}
		eventually(t, "all connections are back", func() bool { return db.Stats().InUse == 0 })
		unchanged(t, before, settingsOf(t, db, 3))
		if n := w.locks(t); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

// Transaction locks are what is left behind a transaction pooler. That they
// exclude is proven by what they guard: a number that is read, and written some
// time later.
func TestTransactionLocksWorkBehindATransactionPooler(t *testing.T) {
	each(t, modes, func(t *testing.T, w world) {
		const goroutines, turns = 12, 10
		dsn := testkit.ThroughPooler(t, w.dsn, "transaction", poolerSize)
		_, err := w.raw(t).Exec(bg, `CREATE TABLE counter AS SELECT 0 AS n`)
		must(t, err)
		var plain []any // for the caller's own statements, which are the caller's affair
		if w.driver == "pgx" {
			plain = []any{pgx.QueryExecModeSimpleProtocol}
		}
		count := func(ctx context.Context, tx *sql.Tx) error {
			var n int
			if err := tx.QueryRowContext(ctx, `SELECT n FROM counter`, plain...).Scan(&n); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
			_, err := tx.ExecContext(ctx, fmt.Sprintf(`UPDATE counter SET n = %d`, n+1))
			return err
		}
		dbs := []*sql.DB{w.open(t, dsn, goroutines), w.open(t, dsn, goroutines)} // as two processes
		var wg sync.WaitGroup
		var refusals, ran atomic.Int32
		for i := range goroutines {
			db := dbs[i%2]
			wg.Go(func() {
				for range turns / 2 {
					for done := false; !done; {
						var err error
						if done, err = sqllock.TryDoTx(bg, db, "counter", count); err != nil {
							t.Errorf("TryDoTx: %v", err)
							return
						}
						if !done {
							refusals.Add(1)
							time.Sleep(rand.N(20 * time.Millisecond))
						}
					}
					ran.Add(1)
					if err := inTx(db, func(tx *sql.Tx) error {
						if err := sqllock.AcquireTx(bg, tx, "counter", sqllock.TxTimeout(patience)); err != nil {
							return err
						}
						return count(bg, tx)
					}); err != nil {
						t.Errorf("AcquireTx: %v", err)
						return
					}
					ran.Add(1)
				}
			})
		}
		wg.Wait()
		if n := scan[int](t, w.open(t, w.dsn, 1), `SELECT n FROM counter`); n != goroutines*turns || int(ran.Load()) != n {
			t.Errorf("counted to %d in %d transactions, instead of %d", n, ran.Load(), goroutines*turns)
		}
		if n := w.locks(t); n != 0 {
			t.Errorf("%d locks are left", n)
		}

		// A manager's key is excluded by them, and excludes them.
		m := w.manager(t, w.db(t, 4))
		lock := acquire(t, m, "counter")
		if done, err := sqllock.TryDoTx(bg, dbs[0], "counter", count); done || err != nil {
			t.Errorf("beside a manager's hold: %v, %v", done, err)
		}
		err = inTx(dbs[0], func(tx *sql.Tx) error {
			if err := sqllock.AcquireTx(bg, tx, "counter", sqllock.TxTimeout(300*time.Millisecond)); !errors.Is(err, ports.ErrNotAcquired) {
				return fmt.Errorf("beside a manager's hold: %w", err)
			}
			if err := sqllock.AcquireTx(bg, tx, "another"); err != nil {
				return err
			}
			if _, acquired, err := m.TryAcquire(bg, "another"); acquired || err != nil {
				return fmt.Errorf("a manager beside a transaction's hold: %v, %w", acquired, err)
			}
			return nil
		})
		must(t, err)
		must(t, lock.Release(bg))
		t.Logf("%d transactions, %d refusals", ran.Load(), refusals.Load())
	})
}

// inTx runs f in a transaction.
func inTx(db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(bg, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}
