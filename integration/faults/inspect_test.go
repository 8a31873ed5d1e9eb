//go:build linux

package faults

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

func TestInspectTellsWhoHoldsAndWhoWaits(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		operator := w.manager(t, w.db(t, 2))
		in, err := operator.Inspect(bg, "k")
		must(t, err)
		if in.Key != "k" || in.ID != operator.KeyID("k") || len(in.Holders)+len(in.Waiters) != 0 {
			t.Errorf("a free key: %+v", in)
		}

		began := time.Now()
		other := startHolder(t, holderRole, w.setup, w.dsn, "k", pglock.DefaultLivenessWindow, "")
		waiter := w.manager(t, w.db(t, 2))
		later := acquireLater(waiter, "k")
		eventually(t, "the waiter is seen", func() bool {
			in, err = operator.Inspect(bg, "k")
			must(t, err)
			return len(in.Waiters) == 1
		})
		if len(in.Holders) != 1 {
			t.Fatalf("%+v", in)
		}
		name := w.name
		h := in.Holders[0]
		if h.PID != other.pid || !h.Granted || h.Mode != ports.Exclusive || h.HolderID != "another process" || h.Database != name ||
			h.User == "" || h.State != "idle" || !strings.HasPrefix(h.Application, "holdfast ") || !near(h.Since, began) {
			t.Errorf("the holder: %+v", h)
		}
		v := in.Waiters[0]
		if v.PID == other.pid || v.PID == 0 || v.Granted || v.Mode != ports.Exclusive || v.Database != name || v.User != h.User || v.State != "active" || !near(v.Since, began) {
			t.Errorf("the waiter: %+v", v)
		}
		for _, part := range []string{`"k"`, fmt.Sprint(in.ID), "another process", fmt.Sprintf("process %d holds it, exclusive, since", h.PID), fmt.Sprintf("process %d waits for it, exclusive, since", v.PID), name} {
			if !strings.Contains(in.String(), part) {
				t.Errorf("%q is missing in:\n%s", part, in)
			}
		}
		text, err := json.Marshal(in)
		must(t, err)
		var back struct {
			Holders []struct {
				PID      int    `json:"pid"`
				Mode     string `json:"mode"`
				HolderID string `json:"holder_id"`
			} `json:"holders"`
		}
		must(t, json.Unmarshal(text, &back))
		if back.Holders[0].HolderID != "another process" || back.Holders[0].PID != h.PID || back.Holders[0].Mode != "exclusive" {
			t.Errorf("as JSON: %s", text)
		}

		_, err = w.raw(t).Exec(bg, `SELECT pg_advisory_lock(-42), pg_advisory_lock(42, 42)`) // somebody else's
		must(t, err)
		all, err := operator.InspectAll(bg)
		must(t, err)
		if len(all) != 2 || all[0].ID != -42 || len(all[0].Holders) != 1 || all[0].Holders[0].HolderID != "" ||
			all[1].ID != in.ID || len(all[1].Holders) != 1 || all[1].Holders[0] != h {
			t.Errorf("all locks: %+v", all)
		}

		other.end(t, syscall.SIGKILL)
		r := receive(t, "the lock", later)
		must(t, r.err)
		must(t, r.lock.Release(bg))
	})
}

func TestExamineTellsOfTheServerAndTheSession(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 3)
		m := w.manager(t, db, pglock.WithLivenessWindow(10*time.Second))
		lock := acquire(t, m, "k")
		var info sqllock.ServerInfo
		must(t, sqllock.RunConn(bg, lock, func(ctx context.Context, conn *sql.Conn) (err error) {
			info, err = sqllock.Examine(ctx, conn)
			return err
		}))
		var connections, locks int
		must(t, outside.QueryRow(`SELECT current_setting('max_connections'), (SELECT count(*) FROM pg_locks)`).Scan(&connections, &locks))
		if info.PID != lock.Info().PID || info.InRecovery || !strings.HasPrefix(info.Version, fmt.Sprint(server.Major())) || info.MaxConnections != connections ||
			info.Connections < 2 || info.Connections > connections || info.ReservedConnections < 1 || info.Locks < 1 || info.LockSlots < 64*connections {
			t.Errorf("%+v", info)
		}
		if info.Network && (info.KeepaliveBound < 8*time.Second || info.KeepaliveBound > 12*time.Second) {
			t.Errorf("the holder's session: %+v", info)
		}
		must(t, lock.Release(bg))
		info, err := sqllock.Examine(bg, db)
		must(t, err)
		if info.Network && info.KeepaliveBound < time.Minute {
			t.Errorf("a session that was given back: %+v", info)
		}
	})
}

// near reports whether the server's clock and ours mean about the same.
func near(since, began time.Time) bool {
	const apart = time.Hour // clocks may differ
	return since.After(began.Add(-apart)) && since.Before(time.Now().Add(apart))
}

func TestEvictEndsAHoldElsewhere(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		operator := w.manager(t, w.db(t, 2))
		if n, err := operator.Evict(bg, "k"); n != 0 || err != nil {
			t.Errorf("a free key: %d, %v", n, err)
		}
		other := startHolder(t, holderRole, w.setup, w.dsn, "k", pglock.MinLivenessWindow, "")
		later := acquireLater(w.manager(t, w.db(t, 2)), "k")
		eventually(t, "somebody waits", func() bool { return w.waiting(t, "k") == 1 })
		n, err := operator.Evict(bg, "k")
		if must(t, err); n != 1 {
			t.Errorf("%d sessions were ended", n)
		}
		other.lost(t)
		r := receive(t, "the lock", later)
		must(t, r.err) // the waiter was not evicted
		if r.lock.Err() != nil {
			t.Error(r.lock.Err())
		}
		must(t, r.lock.Release(bg))
		other.again(t)

		// All of several shared holders.
		var locks []ports.Lock
		for range 3 {
			locks = append(locks, acquire(t, w.manager(t, w.db(t, 2), pglock.WithLivenessWindow(pglock.MinLivenessWindow)), "s", ports.WithShared()))
		}
		in, err := operator.Inspect(bg, "s")
		must(t, err)
		for _, h := range in.Holders {
			if h.Mode != ports.Shared {
				t.Errorf("%+v", h)
			}
		}
		n, err = operator.Evict(bg, "s")
		if must(t, err); n != 3 {
			t.Errorf("%d sessions were ended", n)
		}
		for _, lock := range locks {
			receive(t, "the loss", lock.Done())
			wraps(t, lock.Err(), ports.ErrLost)
		}
	})
}

func TestEvictSaysThatTheRoleMayNot(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		role := func(name, grant string) string {
			name = fmt.Sprintf("%s_%s", w.name, name)
			_, err := outside.Exec(fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret'`, name))
			must(t, err)
			t.Cleanup(func() { outside.Exec(`DROP ROLE ` + name) })
			if grant != "" {
				_, err = outside.Exec(fmt.Sprintf(`GRANT %s TO %s`, grant, name))
				must(t, err)
			}
			return as(w.dsn, name, "secret")
		}
		one, another, signals := role("one", ""), role("another", ""), role("signals", "pg_signal_backend")
		evict := func(dsn string) (int, error) {
			db := w.open(t, dsn, 2)
			defer db.Close()
			m := w.manager(t, db)
			in, err := m.Inspect(bg, "k") // any role may look
			must(t, err)
			if len(in.Holders) != 1 || in.Holders[0].HolderID != "me" || in.Holders[0].PID == 0 {
				t.Errorf("an ordinary role sees %+v", in)
			}
			return m.Evict(bg, "k")
		}
		refused := func(lock ports.Lock, n int, err error) {
			t.Helper()
			var typed *ports.LockError
			var server interface{ SQLState() string }
			if n != 0 || !errors.As(err, &typed) || typed.Op != "evict" || typed.Key != "k" ||
				!errors.As(err, &server) || server.SQLState() != "42501" || !strings.Contains(err.Error(), "may not end the session") {
				t.Errorf("%d, %v", n, err)
			}
			if lock.Err() != nil || w.held(t, "k") != 1 {
				t.Errorf("the holder: %v", lock.Err())
			}
		}
		hold := func(dsn string) ports.Lock {
			return acquire(t, w.manager(t, w.open(t, dsn, 2), pglock.WithHolderID("me"), pglock.WithLivenessWindow(pglock.MinLivenessWindow)), "k")
		}

		lock := hold(one)
		n, err := evict(another)
		refused(lock, n, err)
		if n, err := evict(signals); n != 1 || err != nil {
			t.Errorf("a role with pg_signal_backend: %d, %v", n, err)
		}
		receive(t, "the loss", lock.Done())
		wraps(t, lock.Err(), ports.ErrLost)

		lock = hold(one)
		if n, err := evict(one); n != 1 || err != nil {
			t.Errorf("the holder's own role: %d, %v", n, err)
		}
		receive(t, "the loss", lock.Done())

		lock = hold(w.dsn) // of a superuser
		n, err = evict(another)
		refused(lock, n, err)
		n, err = evict(signals)
		refused(lock, n, err)
		must(t, lock.Release(bg))
	})
}
