package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/pqlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/ports"
)

// edit changes a DSN.
func edit(dsn string, change func(*url.URL)) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	change(u)
	return u.String()
}

// sqlState is the SQLSTATE of a server's error.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

func TestWhatTheServerRefusesIsItsErrorWrappedOnce(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		port := func() string { // that nobody listens on
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			defer l.Close()
			return l.Addr().String()
		}()
		role := fmt.Sprintf("holdfast_denied_%d", w.oid)
		admin := w.raw(t)
		for _, statement := range []string{
			`CREATE ROLE ` + role + ` LOGIN PASSWORD 'pw'`,
			`REVOKE EXECUTE ON FUNCTION pg_advisory_lock(bigint), pg_try_advisory_lock(bigint) FROM PUBLIC`,
		} {
			_, err := admin.Exec(bg, statement)
			must(t, err)
		}
		defer admin.Exec(bg, `DROP ROLE `+role)
		for what, c := range map[string]struct{ dsn, state string }{
			"server down":      {edit(w.dsn, func(u *url.URL) { u.Host = port }), ""},
			"missing database": {edit(w.dsn, func(u *url.URL) { u.Path = "/holdfast_nowhere" }), "3D000"},
			"wrong password":   {edit(w.dsn, func(u *url.URL) { u.User = url.UserPassword(role, "wrong") }), "28P01"},
			"no EXECUTE":       {edit(w.dsn, func(u *url.URL) { u.User = url.UserPassword(role, "pw") }), "42501"},
		} {
			db := w.open(t, c.dsn, 4)
			m := w.manager(t, db)
			for op, call := range map[string]func() error{
				"acquire": func() error { _, err := m.Acquire(bg, "k"); return err },
				"try":     func() error { _, _, err := m.TryAcquire(bg, "k"); return err },
			} {
				err := call()
				var typed *ports.LockError
				if !errors.As(err, &typed) || typed.Op != op || errors.As(typed.Err, new(*ports.LockError)) {
					t.Fatalf("%s: %s: %#v", what, op, err)
				}
				if sqlState(err) != c.state || c.state == "" && !errors.As(err, new(*net.OpError)) {
					t.Errorf("%s: %s: %v", what, op, err)
				}
				for _, wrong := range []error{ports.ErrNotAcquired, ports.ErrPoolExhausted, ports.ErrLost} {
					if errors.Is(err, wrong) {
						t.Errorf("%s: %s: %v is said to be %v", what, op, err, wrong)
					}
				}
			}
			if n := db.Stats().InUse; n != 0 {
				t.Errorf("%s: %d connections in use", what, n)
			}
		}
	})
}

func TestANilDatabasePanicsWithASentence(t *testing.T) {
	for name, construct := range map[string]func(){
		"sqllock": func() { sqllock.New(nil) }, "pqlock": func() { pqlock.New(nil) }, "pgxlock": func() { pgxlock.New(nil) },
		"TxTimeout": func() { sqllock.TxTimeout(-1) }, "TxKeyID": func() { sqllock.TxKeyID(nil) },
	} {
		func() {
			defer func() {
				if s, ok := recover().(string); !ok || len(strings.Fields(s)) < 4 {
					t.Errorf("%s panicked with %q", name, s)
				}
			}()
			construct()
			t.Errorf("%s accepts it", name)
		}()
	}
}

func TestAnExhaustedPoolSaysSo(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 2)
		m := w.manager(t, db)
		one, err := db.Conn(bg)
		must(t, err)
		two, err := db.Conn(bg)
		must(t, err)
		for _, call := range []func() error{
			func() error { _, err := m.Acquire(bg, "k", ports.WithTimeout(200*time.Millisecond)); return err },
			func() error { _, _, err := m.TryAcquire(bg, "k"); return err },
		} {
			err := call()
			wraps(t, err, ports.ErrPoolExhausted)
			if errors.Is(err, ports.ErrNotAcquired) || errors.Is(err, ports.ErrLost) || !strings.Contains(err.Error(), "2 of 2 connections") {
				t.Errorf("%v", err)
			}
		}
		one.Close()
		must(t, acquire(t, m, "k").Release(bg))
		two.Close()
	})
}

func TestAnExhaustedLockTableIsTold(t *testing.T) {
	t.Parallel()
	small, err := postgres.Start(bg, postgres.WithLog(t.Logf), postgres.WithSettings(map[string]string{
		"max_locks_per_transaction": "10", "max_connections": "20", "max_prepared_transactions": "0",
	}))
	if err != nil {
		t.Skipf("this needs a server with settings of its own: %v", err)
	}
	defer small.Stop()
	for _, s := range drivers {
		t.Run(s.name, func(t *testing.T) {
			db := s.open(t, small.DSN(), 8)
			m := s.new(db)
			defer m.Close(bg)
			hog, err := db.Conn(bg)
			must(t, err)
			// Fails half-way, and keeps what it has.
			_, err = hog.ExecContext(bg, `SELECT pg_advisory_lock(g) FROM generate_series(1, 100000) g`)
			if sqlState(err) != "53200" {
				t.Fatalf("%v", err)
			}
			_, err = m.Acquire(bg, "k", ports.WithTimeout(5*time.Second))
			if sqlState(err) != "53200" || !errors.Is(err, ports.ErrTooManyLocks) || errors.Is(err, ports.ErrNotAcquired) {
				t.Errorf("%v", err)
			}
			_, err = hog.ExecContext(bg, `SELECT pg_advisory_unlock_all()`)
			must(t, err)
			hog.Close()
			lock := acquire(t, m, "k")
			must(t, lock.Release(bg))
		})
	}
}

func TestAManagerClosedDuringAnAcquireStrandsNothing(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		for i := range 60 {
			m := w.new(db)
			got := acquireLater(m, "k")
			time.Sleep(time.Duration(i*30) * time.Microsecond)
			must(t, m.Close(bg))
			if r := receive(t, "the end of the call", got); r.err == nil {
				wraps(t, r.lock.Err(), ports.ErrReleased)
			} else {
				wraps(t, r.err, ports.ErrClosed)
			}
			// A connection that was being opened goes straight back.
			eventually(t, "nothing is left", func() bool { return db.Stats().InUse == 0 && w.locks(t) == 0 })
		}
	})
}

func TestAClosedDatabaseIsAnErrorNotAHang(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m := w.manager(t, db)
		db.Close()
		ctx, cancel := context.WithTimeout(bg, patience)
		defer cancel()
		_, err := m.Acquire(ctx, "k")
		if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ports.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
	})
}
