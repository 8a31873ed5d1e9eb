package gooselock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/gooselock"
	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// fake is a database whose connections do nothing.
type fake struct{}

func (fake) Connect(context.Context) (driver.Conn, error) { return fake{}, nil }
func (fake) Driver() driver.Driver                        { return nil }
func (fake) Begin() (driver.Tx, error)                    { return nil, errors.New("not here") }
func (fake) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not here") }
func (fake) Close() error                                 { return nil }

// connection is what goose migrates on.
func connection(t *testing.T) *sql.Conn {
	t.Helper()
	db := sql.OpenDB(fake{})
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); db.Close() })
	return conn
}

func manager(t *testing.T, server *memlock.Server) *pglock.Manager {
	m := memlock.New(server)
	t.Cleanup(func() {
		m.Close(context.Background())
		if n := server.Locks(); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
	return m
}

func TestOneMigratesAndTheOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		shared := gooselock.New(manager(t, server), "schema") // by two providers of one process
		var wg sync.WaitGroup
		var mu sync.Mutex
		for _, l := range []interface {
			SessionLock(context.Context, *sql.Conn) error
			SessionUnlock(context.Context, *sql.Conn) error
		}{shared, shared, gooselock.New(manager(t, server), "schema")} {
			conn := connection(t)
			wg.Go(func() {
				if err := l.SessionLock(t.Context(), conn); err != nil {
					t.Error(err)
					return
				}
				if !mu.TryLock() {
					t.Error("two migrate at once")
				}
				time.Sleep(time.Minute)
				mu.Unlock()
				if err := l.SessionUnlock(t.Context(), conn); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if err := conn.PingContext(t.Context()); err != nil {
					t.Errorf("goose's connection after the unlock: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

func TestTheContextAndTheOptionsBoundTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		theirs, err := manager(t, server).Acquire(t.Context(), "schema")
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Release(t.Context())
		ours := manager(t, server)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := gooselock.New(ours, "schema").SessionLock(ctx, connection(t)); !errors.Is(err, ports.ErrNotAcquired) {
			t.Error(err)
		}
		if err := gooselock.New(ours, "schema", ports.WithTimeout(time.Second)).SessionLock(t.Context(), connection(t)); !errors.Is(err, ports.ErrNotAcquired) {
			t.Error(err)
		}
		if waited := time.Since(began); waited != 4*time.Second {
			t.Errorf("waited %v", waited)
		}
	})
}

// No further statement runs on goose's connection when the lock is gone.
func TestALossTakesTheConnectionAway(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(*memlock.Server, *pglock.Manager)
		want error
	}{
		"killed": {func(s *memlock.Server, m *pglock.Manager) { s.Kill(s.Holders(m.KeyID("schema"))[0].PID) }, ports.ErrLost},
		"closed": {func(_ *memlock.Server, m *pglock.Manager) { m.Close(context.Background()) }, nil},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memlock.NewServer()
				locks := manager(t, server)
				l, conn := gooselock.New(locks, "schema"), connection(t)
				if err := l.SessionLock(t.Context(), conn); err != nil {
					t.Fatal(err)
				}
				c.end(server, locks)
				synctest.Wait()
				if err := conn.PingContext(t.Context()); !errors.Is(err, sql.ErrConnDone) {
					t.Errorf("the connection is usable: %v", err)
				}
				if err := l.SessionUnlock(t.Context(), conn); !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if err := l.SessionUnlock(t.Context(), conn); !errors.Is(err, ports.ErrNotHeld) {
					t.Errorf("unlocked twice: %v", err)
				}
			})
		})
	}
}

func TestNilLocksPanic(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("nil is accepted")
		}
	}()
	gooselock.New(nil, "schema")
}
