//go:build linux

package faults

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// newStandby makes a streaming hot standby of a server, and returns its DSN.
func newStandby(t *testing.T, s *postgres.Server) string {
	t.Helper()
	program := filepath.Join(s.BinDir(), "pg_basebackup")
	if _, err := os.Stat(program); err != nil {
		t.Skip("this server came without pg_basebackup")
	}
	conn := connect(t, s.DSN())
	_, err := conn.Exec(bg, `CREATE ROLE replicator REPLICATION LOGIN PASSWORD 'secret'`)
	must(t, err)
	home, user := homeOf(t, s)
	u, err := url.Parse(s.DSN())
	must(t, err)
	data := filepath.Join(home, "standby")
	cmd := exec.Command(program, "-D", data, "-R", "-X", "stream", "-c", "fast", "--no-sync",
		"-h", u.Hostname(), "-p", u.Port(), "-U", "replicator")
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "PGPASSWORD=secret"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	port := strconv.Itoa(freePort(t))
	cmd = exec.Command(filepath.Join(s.BinDir(), "postgres"), "-D", data,
		"-c", "port="+port, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	log, err := os.Create(data + ".log")
	must(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	p := start(t, cmd, user, "")
	t.Cleanup(func() { p.end(t, syscall.SIGQUIT) })
	dsn := at(s.DSN(), net.JoinHostPort("127.0.0.1", port))
	db := observer(t, dsn)
	eventually(t, "the standby takes connections", func() bool { return db.Ping() == nil })
	return dsn
}

// A replica grants locks of its own, which exclude nobody on the primary. Hence
// it is refused.
//
// When it is promoted while a holder on the old primary lives, nothing that a
// lock can do keeps the two apart: there are two servers, each of which is right
// that nobody else has the lock there (split brain). Fencing the old primary off
// is the operator's affair. What a holder has is its token: those of the new
// primary are greater than all of the old one, even if the standby had not
// received the last of the old one's transactions, so that transaction numbers
// alone repeat. A resource that compares tokens refuses the old holder as soon
// as it has seen the new one.
func TestCase37AStandbyIsRefusedAndAfterItsPromotionTokensGrow(t *testing.T) {
	t.Parallel()
	s := breakable(t, map[string]string{"wal_keep_size": "256MB"})
	standby := newStandby(t, s)
	there := observer(t, standby)
	if info, err := sqllock.Examine(bg, there); err != nil || !info.InRecovery {
		t.Errorf("a standby examined: %+v, %v", info, err)
	}

	for _, d := range modes {
		t.Run("refused/"+d.name, func(t *testing.T) {
			refused := func(what string, err error) {
				t.Helper()
				wraps(t, err, ports.ErrUnsafeConnection)
				if !strings.Contains(err.Error(), "recovery") || !strings.Contains(err.Error(), "primary") {
					t.Errorf("%s does not name the recovery: %v", what, err)
				}
			}
			db := d.open(t, standby, 4)
			must(t, warm(db, 4))
			unproved := pglock.WithoutVerification() // so that the answer to a lock says it, not the proof
			for _, m := range []*pglock.Manager{d.manager(t, db), d.manager(t, db, unproved), d.manager(t, db, unproved, pglock.WithSharedSessions(1))} {
				_, err := m.Acquire(bg, "k", ports.WithTimeout(patience))
				refused("Acquire", err)
				_, err = m.Acquire(bg, "k", ports.WithTimeout(patience), ports.WithShared())
				refused("a shared Acquire", err)
				_, err = m.Acquire(bg, "k", ports.WithTimeout(patience), ports.WithFencing())
				refused("a fenced Acquire", err)
				_, _, err = m.TryAcquire(bg, "k")
				refused("TryAcquire", err)
				_, err = m.AcquireAll(bg, []string{"k", "l"}, ports.WithTimeout(patience))
				refused("AcquireAll", err)
				refused("Verify", m.Verify(bg))
			}
			for what, take := range map[string]func(tx *sql.Tx) error{
				"TryAcquireTx": func(tx *sql.Tx) error { _, err := sqllock.TryAcquireTx(bg, tx, "k"); return err },
				"AcquireTx":    func(tx *sql.Tx) error { return sqllock.AcquireTx(bg, tx, "k") },
				"shared":       func(tx *sql.Tx) error { _, err := sqllock.TryAcquireTx(bg, tx, "k", sqllock.TxShared()); return err },
			} {
				tx, err := db.BeginTx(bg, &sql.TxOptions{ReadOnly: true}) // else lib/pq's BEGIN fails
				must(t, err)
				refused(what, take(tx))
				if n := scan[int](t, there, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'`); n != 0 {
					t.Errorf("%s: %d locks are held", what, n)
				}
				must(t, tx.Rollback())
			}
			ran, err := sqllock.TryDoTx(bg, db, "k", func(context.Context, *sql.Tx) error { return nil })
			if refused("TryDoTx", err); ran {
				t.Error("TryDoTx ran")
			}
			if n := scan[int](t, there, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'`); n != 0 {
				t.Errorf("%d locks are held", n)
			}
		})
	}

	// The standby falls behind: it receives nothing any more.
	_, err := there.Exec(`ALTER SYSTEM SET primary_conninfo = ''`)
	must(t, err)
	_, err = there.Exec(`SELECT pg_reload_conf()`)
	must(t, err)
	eventually(t, "the standby receives nothing", func() bool {
		return scan[int](t, there, `SELECT count(*) FROM pg_stat_wal_receiver`) == 0
	})
	conn := connect(t, s.DSN())
	for range 500 {
		_, err := conn.Exec(bg, `SELECT pg_current_xact_id()`)
		must(t, err)
	}
	old, last := make(map[string]ports.Lock), ports.Token(0)
	for _, d := range drivers {
		m := d.manager(t, d.open(t, s.DSN(), 4), pglock.WithHolderID("on the old primary"))
		for i := range 20 {
			lock := acquire(t, m, fmt.Sprint(d.name, i%4), ports.WithFencing())
			last = max(last, lock.Info().Token)
			must(t, lock.Release(bg))
		}
		old[d.name] = acquire(t, m, d.name, ports.WithFencing())
		last = max(last, old[d.name].Info().Token)
	}

	if !scan[bool](t, there, `SELECT pg_promote(true, 60)`) {
		t.Fatal("the standby was not promoted")
	}
	const number = 1<<48 - 1 // the part of a token that is a transaction's number
	for _, d := range drivers {
		db := d.open(t, standby, 4)
		m := d.manager(t, db, pglock.WithHolderID("on the new primary"))
		must(t, m.Verify(bg))
		repeated := 0
		for i := range 20 {
			lock := acquire(t, m, fmt.Sprint(d.name, i%4), ports.WithFencing())
			if lock.Info().Token <= last {
				t.Errorf("%s: token %x after the failover, %x before", d.name, lock.Info().Token, last)
			}
			if lock.Info().Token&number <= last&number {
				repeated++
			}
			must(t, lock.Release(bg))
		}
		if repeated == 0 {
			t.Error("no transaction number was repeated, so the standby did not lag")
		}

		// The split brain: both hold it, and only the tokens tell.
		fresh := acquire(t, m, d.name, ports.WithFencing())
		if old[d.name].Err() != nil || fresh.Err() != nil {
			t.Errorf("%s: %v, %v", d.name, old[d.name].Err(), fresh.Err())
		}
		conn := connect(t, standby)
		_, err := conn.Exec(bg, fmt.Sprintf(`CREATE TABLE fenced_%s AS SELECT $1::numeric AS token, '' AS v`, d.name), fmt.Sprint(uint64(fresh.Info().Token)))
		must(t, err)
		for who, lock := range map[string]ports.Lock{"new": fresh, "old": old[d.name]} {
			tag, err := conn.Exec(bg, fmt.Sprintf(`UPDATE fenced_%s SET v = 'written', token = $1::numeric WHERE token <= $1::numeric`, d.name), fmt.Sprint(uint64(lock.Info().Token)))
			must(t, err)
			if (tag.RowsAffected() == 1) != (who == "new") {
				t.Errorf("%s: the write of the %s holder changed %d rows", d.name, who, tag.RowsAffected())
			}
		}
		must(t, fresh.Release(bg))
		must(t, old[d.name].Release(bg))
		t.Logf("%s: %d of 20 transaction numbers repeated, and no token", d.name, repeated)
	}
}
