//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// holderSettings are those that a hold changes.
var holderSettings = []string{
	"application_name", "client_connection_check_interval", "idle_session_timeout",
	"tcp_keepalives_count", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_user_timeout",
}

// onSession reads the settings of the session that holds lock, in the units of
// pg_settings; those that the server does not have are left out. It leaves the
// session as it was.
func onSession(t testing.TB, lock ports.Lock) map[string]string {
	t.Helper()
	settings, undo := make(map[string]string), errors.New("undo")
	err := sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
		for _, name := range holderSettings {
			var value string
			err := tx.QueryRowContext(ctx, fmt.Sprintf(`SELECT setting FROM pg_settings WHERE name = '%s'`, name)).Scan(&value)
			if err == nil {
				settings[name] = value
			} else if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
		return undo
	})
	if err != undo {
		t.Fatal(err)
	}
	return settings
}

// nameOf is the application_name of a process, as an operator sees it.
func nameOf(t testing.TB, w world, pid int) string {
	t.Helper()
	return scan[string](t, w.view.db, `SELECT application_name FROM pg_stat_activity WHERE pid = $1`, pid)
}

var holderName = regexp.MustCompile(`^holdfast \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ?([ -~]*)$`)

// A vanished host is found by settings of the holder's session; they are made
// when it gets the lock, and are gone when it gives it back.
func TestAHoldersSessionIsSetToItsWindow(t *testing.T) {
	each(t, modes, func(t *testing.T, w world) {
		for window, want := range map[time.Duration]map[string]string{
			// idle + count intervals make the window, in whole seconds rounded
			// up, or an interval more.
			5 * time.Second:           {"tcp_keepalives_idle": "1", "tcp_keepalives_interval": "1", "tcp_keepalives_count": "4", "client_connection_check_interval": "1000"},
			10 * time.Second:          {"tcp_keepalives_idle": "2", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "4", "client_connection_check_interval": "2000"},
			12300 * time.Millisecond:  {"tcp_keepalives_idle": "2", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "6", "client_connection_check_interval": "2000"},
			15 * time.Second:          {"tcp_keepalives_idle": "3", "tcp_keepalives_interval": "3", "tcp_keepalives_count": "4", "client_connection_check_interval": "3000"},
			time.Minute + time.Second: {"tcp_keepalives_idle": "12", "tcp_keepalives_interval": "12", "tcp_keepalives_count": "5", "client_connection_check_interval": "12000"},
		} {
			m := w.manager(t, w.db(t, 2), pglock.WithLivenessWindow(window), pglock.WithHolderID("me"))
			lock := acquire(t, m, "k")
			got := onSession(t, lock)
			want["idle_session_timeout"] = "0"
			maps.DeleteFunc(want, func(name, _ string) bool {
				return server.Major() < 14 && (name == "idle_session_timeout" || name == "client_connection_check_interval")
			})
			want["application_name"] = got["application_name"]
			// It is off while somebody has the session, as we have here.
			if want["tcp_user_timeout"] = "0"; got["tcp_user_timeout"] != "0" {
				t.Errorf("tcp_user_timeout is %s while the session is lent", got["tcp_user_timeout"])
			}
			if !maps.Equal(got, want) {
				t.Errorf("window %v: %v instead of %v", window, got, want)
			}
			if name := nameOf(t, w, lock.Info().PID); name != got["application_name"] || holderName.FindStringSubmatch(name) == nil || !strings.HasSuffix(name, " me") {
				t.Errorf("application_name is %q on the session and %q from outside", got["application_name"], name)
			}
			must(t, lock.Release(bg))
		}
	})
}

// hostile are holder IDs that somebody might choose.
var hostile = map[string]string{
	"empty":             "",
	"a quote":           `'`,
	"quotes":            `x'; SELECT pg_advisory_unlock_all(); --'' "y" E'\''`,
	"backslashes":       `\ \\ \' \\' \n \x41 \u0041`,
	"dollar signs":      `$1 $2 $3 $$ $body$`,
	"JSON":              `","tcp_user_timeout":"1","x":"`,
	"format":            `%s %d %n YYYY "T" HH24`,
	"NUL":               "a\x00b",
	"control":           "a\nb\rc\td\x1b[31m\x7f",
	"invalid UTF-8":     "a\xff\xfe\xc3",
	"half a character":  strings.Repeat("a", 30) + "é日本語🔒",
	"surrogates":        "\xed\xa0\x80\ud7ff\ufffd\ufffe\u202e",
	"a megabyte":        strings.Repeat("0123456789abcdef", 1<<16),
	"a megabyte of '\\": strings.Repeat(`'\`, 1<<19),
	"63 bytes":          strings.Repeat("b", 63),
}

func TestAHostileHolderIDIsHarmless(t *testing.T) {
	each(t, modes, func(t *testing.T, w world) {
		dsn := param(w.dsn, "application_name", `it's "$1" \ $2 '' \\ %s`)
		if w.driver == "postgres" { // pgx cannot go without in its simple protocol
			dsn = param(dsn, "standard_conforming_strings", "off")
		}
		db := w.open(t, dsn, 3)
		before := settingsOf(t, db, 3)
		rival := w.manager(t, w.db(t, 2))
		for name, id := range hostile {
			m := w.manager(t, db, pglock.WithHolderID(id))
			lock := acquire(t, m, "k", ports.WithFencing())
			if lock.Info().HolderID != id {
				t.Errorf("%s: Info has another ID", name)
			}
			seen := nameOf(t, w, lock.Info().PID)
			shown := holderName.FindStringSubmatch(seen)
			if shown == nil || len(seen) > 63 {
				t.Errorf("%s: application_name is %q (%d bytes)", name, seen, len(seen))
				shown = []string{"", ""}
			}
			for i := range min(len(shown[1]), len(id)) {
				if c := id[i]; c < 0x80 && shown[1][i] != c && shown[1][i] != '?' {
					t.Errorf("%s: shown as %q", name, shown[1])
					break
				} else if c >= 0x80 {
					break // a character of several bytes becomes one
				}
			}
			in, err := rival.Inspect(bg, "k")
			must(t, err)
			if len(in.Holders) != 1 || in.Holders[0].PID != lock.Info().PID || in.Holders[0].HolderID != strings.TrimRight(shown[1], " ") && in.Holders[0].HolderID != shown[1] {
				t.Errorf("%s: %+v", name, in)
			}
			if _, acquired, err := rival.TryAcquire(bg, "k"); acquired || err != nil {
				t.Errorf("%s: a rival: %v, %v", name, acquired, err)
			}
			must(t, lock.Release(bg))
			if n := w.locks(t); n != 0 {
				t.Errorf("%s: %d locks are left", name, n)
			}
		}
		eventually(t, "all connections are back", func() bool { return db.Stats().InUse == 0 })
		unchanged(t, before, settingsOf(t, db, 3))
	})
}

// Later queries inherited odd settings (case 31): after a release, a timeout, a
// failure, and all of these on several keys.
func TestCase31ASessionIsGivenBackAsItWasTaken(t *testing.T) {
	each(t, modes, func(t *testing.T, w world) {
		dsn := w.dsn
		for name, value := range map[string]string{
			"application_name": "mine", "idle_session_timeout": "600000", "client_connection_check_interval": "4321",
			"tcp_keepalives_idle": "123", "tcp_keepalives_interval": "45", "tcp_keepalives_count": "6", "tcp_user_timeout": "98765",
			"lock_timeout": "54321", "statement_timeout": "65432", "synchronous_commit": "off",
		} {
			if server.Major() < 14 && (name == "idle_session_timeout" || name == "client_connection_check_interval") {
				continue
			}
			dsn = param(dsn, name, value)
		}
		db := w.open(t, dsn, 2)
		m := w.manager(t, db, pglock.WithMaxSessions(2))
		before := settingsOf(t, db, 2)
		conn := w.raw(t)
		check := func(what string) {
			t.Helper()
			eventually(t, "both connections are back", func() bool { return db.Stats().InUse == 0 })
			unchanged(t, before, settingsOf(t, db, 2))
			if t.Failed() {
				t.Fatalf("after %s", what)
			}
		}
		for _, opts := range [][]ports.AcquireOption{nil, {ports.WithShared()}, {ports.WithFencing()}, {ports.WithPolling(10 * time.Millisecond)}} {
			must(t, acquire(t, m, "k", opts...).Release(bg))
			check("a release")
			set, err := m.AcquireAll(bg, []string{"k", "l", "m"}, opts...)
			must(t, err)
			must(t, set.Release(bg))
			check("the release of a set")
			lockRaw(t, conn, "k")
			_, err = m.Acquire(bg, "k", append([]ports.AcquireOption{ports.WithTimeout(700 * time.Millisecond)}, opts...)...)
			wraps(t, err, ports.ErrNotAcquired)
			check("a timeout")
			_, acquired, err := m.TryAcquire(bg, "k", opts...)
			if acquired || err != nil {
				t.Fatal(acquired, err)
			}
			check("a refused try")
			_, err = m.AcquireAll(bg, []string{"k", "l", "m", "n", "o"}, append([]ports.AcquireOption{ports.WithTimeout(700 * time.Millisecond)}, opts...)...)
			wraps(t, err, ports.ErrNotAcquired)
			check("a set that failed half-way")
			got := make(chan result, 1)
			go func() {
				lock, err := m.Acquire(bg, "k", opts...)
				got <- result{lock: lock, err: err}
			}()
			time.Sleep(700 * time.Millisecond)
			unlockRaw(t, conn)
			r := receive(t, "the lock", got)
			must(t, r.err)
			must(t, r.lock.Release(bg))
			check("a wait")
			lock := acquire(t, m, "k", opts...)
			err = sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `SET LOCAL application_name = 'of the work'; SELECT 1/0`)
				return err
			})
			if err == nil {
				t.Fatal("no error")
			}
			must(t, lock.Release(bg))
			check("work that failed")
		}
		must(t, m.Verify(bg))
		check("a verification")
		// A hold in another's session that fails takes the session with it.
		lock := acquire(t, m, "k")
		w.kill(t, lock.Info().PID)
		wraps(t, lock.Release(bg), ports.ErrLost)
		for pid, settings := range settingsOf(t, db, 2) {
			if settings["application_name"] != "mine" || settings["tcp_user_timeout"] != "98765" {
				t.Errorf("process %d has inherited %q and %q", pid, settings["application_name"], settings["tcp_user_timeout"])
			}
		}
	})
}

func TestAnIdleSessionTimeoutDoesNotEndAHold(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		if server.Major() < 14 {
			t.Skip("servers before PostgreSQL 14 have no idle_session_timeout")
		}
		_, err := outside.Exec(`ALTER DATABASE ` + w.name + ` SET idle_session_timeout = '1s'`)
		must(t, err)
		db := w.db(t, 4)
		m := w.manager(t, db)
		for round := range 2 { // in the second one, the pool's connections are dead
			lock := acquire(t, m, "k")
			set, err := m.AcquireAll(bg, []string{"a", "b"})
			must(t, err)
			time.Sleep(2500 * time.Millisecond) // no check comes in this time
			if lock.Err() != nil || set.Err() != nil {
				t.Fatalf("round %d: %v, %v", round, lock.Err(), set.Err())
			}
			if n := w.locks(t); n != 3 {
				t.Errorf("round %d: %d locks", round, n)
			}
			must(t, lock.Release(bg))
			must(t, set.Release(bg))
			time.Sleep(1500 * time.Millisecond)
			// What was put back ends an idle session again.
			if n := scan[int](t, outside, `SELECT count(*) FROM pg_stat_activity WHERE datid = $1`, w.oid); n != 0 {
				t.Errorf("round %d: %d idle sessions were not ended", round, n)
			}
		}
	})
}

func TestAUnixSocketHasNothingOfTCP(t *testing.T) {
	each(t, modes, func(t *testing.T, w world) {
		if server.DataDir() == "" {
			t.Skip("the server's Unix socket is not known")
		}
		home, _ := homeOf(t, server)
		db := w.open(t, overSocket(w.dsn, home), 2)
		before := settingsOf(t, db, 2)
		m := w.manager(t, db, pglock.WithHolderID("me"), pglock.WithLivenessWindow(pglock.MinLivenessWindow))
		rival := w.manager(t, w.db(t, 2)) // by TCP
		lock := acquire(t, m, "k", ports.WithFencing())
		for name, value := range onSession(t, lock) {
			if strings.HasPrefix(name, "tcp") && value != "0" {
				t.Errorf("%s is %s", name, value)
			}
		}
		if name := nameOf(t, w, lock.Info().PID); holderName.FindStringSubmatch(name) == nil {
			t.Errorf("application_name is %q", name)
		}
		if _, acquired, err := rival.TryAcquire(bg, "k"); acquired || err != nil {
			t.Errorf("a rival: %v, %v", acquired, err)
		}
		must(t, lock.Release(bg))
		eventually(t, "both connections are back", func() bool { return db.Stats().InUse == 0 })
		unchanged(t, before, settingsOf(t, db, 2))
	})
}
