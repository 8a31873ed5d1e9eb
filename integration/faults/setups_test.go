//go:build linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver "pgx"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/pqlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/integration/testkit"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// patience is how long a test waits for what must happen sooner or later. The
// machine may be busy with other things.
const patience = 60 * time.Second

var (
	must       = testkit.Must
	wraps      = testkit.Wraps
	eventually = testkit.Within(patience)
	param      = testkit.WithParam
	freePort   = testkit.FreePort
)

var bg = context.Background()

// setup is one way to use the library: a driver, a mode of it, an adapter.
type setup struct {
	name   string
	driver string // as database/sql knows it
	param  string // one more parameter of the DSN, as name=value
	new    func(*sql.DB, ...pglock.Option) *pglock.Manager
}

var (
	pqSetup  = setup{"pq", "postgres", "", pqlock.New}
	pgxSetup = setup{"pgx", "pgx", "", pgxlock.New}

	drivers = []setup{pqSetup, pgxSetup}

	// modes are all the ways in which a driver may send a statement.
	modes = append(slices.Clone(drivers),
		setup{"pq,binary_parameters", "postgres", "binary_parameters=yes", pqlock.New},
		setup{"pgx,exec", "pgx", "default_query_exec_mode=exec", pgxlock.New},
		setup{"pgx,simple_protocol", "pgx", "default_query_exec_mode=simple_protocol", pgxlock.New},
		setup{"pgx,describe_exec", "pgx", "default_query_exec_mode=describe_exec", pgxlock.New},
		setup{"pgx,cache_describe", "pgx", "default_query_exec_mode=cache_describe", pgxlock.New},
		setup{"sqllock,pq", "postgres", "", sqllock.New},
		setup{"sqllock,pgx", "pgx", "", sqllock.New},
	)
)

// setupNamed finds one of modes.
func setupNamed(name string) setup {
	return modes[slices.IndexFunc(modes, func(s setup) bool { return s.name == name })]
}

// open opens a pool of this size, 0 for no bound. When the test ends, none of
// its connections may be in use.
func (s setup) open(t testing.TB, dsn string, size int) *sql.DB {
	t.Helper()
	db, err := sql.Open(s.driver, s.dsn(dsn))
	must(t, err)
	if size > 0 {
		db.SetMaxOpenConns(size)
		db.SetMaxIdleConns(size)
	}
	t.Cleanup(func() {
		eventually(t, "no connection is in use", func() bool { return db.Stats().InUse == 0 })
		db.Close()
	})
	return db
}

// dsn adds what the setup needs to a DSN.
func (s setup) dsn(dsn string) string {
	if name, value, ok := strings.Cut(s.param, "="); ok {
		return param(dsn, name, value)
	}
	return dsn
}

// manager makes a manager on db, which the test closes at its end.
func (s setup) manager(t testing.TB, db *sql.DB, opts ...pglock.Option) *pglock.Manager {
	t.Helper()
	m := s.new(db, opts...)
	t.Cleanup(func() {
		if err := m.Close(bg); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

// at replaces the address in a DSN.
func at(dsn, host string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	u.Host = host
	return u.String()
}

// as replaces the role in a DSN.
func as(dsn, user, password string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// overSocket makes a DSN go over the Unix socket in dir.
func overSocket(dsn, dir string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	port := u.Port()
	u.Host = ""
	return param(param(u.String(), "host", dir), "port", port)
}

// world is one setup on a database of its own on the shared server.
type world struct {
	setup
	dsn  string
	name string
	view // from outside
}

// each runs f once for each setup, side by side, each in a world of its own.
func each(t *testing.T, setups []setup, f func(t *testing.T, w world)) {
	t.Parallel()
	for _, s := range setups {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			f(t, newWorld(t, s))
		})
	}
}

// newWorld makes the database.
func newWorld(t testing.TB, s setup) world {
	t.Helper()
	name, dsn := testkit.Database(t, patience, server, outside)
	return world{s, dsn, name, viewOf(t, outside, name)}
}

// db opens a pool in the world.
func (w world) db(t testing.TB, size int) *sql.DB {
	t.Helper()
	return w.open(t, w.dsn, size)
}

// raw opens a connection of the test's own.
func (w world) raw(t testing.TB) *pgx.Conn {
	t.Helper()
	return connect(t, w.dsn)
}

// connect opens a connection of the test's own.
func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(bg, dsn)
	must(t, err)
	t.Cleanup(func() { conn.Close(bg) })
	return conn
}

// lockRaw holds keys' locks on a connection of the test's own.
func lockRaw(t testing.TB, conn *pgx.Conn, keys ...string) {
	t.Helper()
	for _, key := range keys {
		_, err := conn.Exec(bg, `SELECT pg_advisory_lock($1)`, pglock.SHA256Key(key))
		must(t, err)
	}
}

// unlockRaw gives them back.
func unlockRaw(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	_, err := conn.Exec(bg, `SELECT pg_advisory_unlock_all()`)
	must(t, err)
}

// view looks at the locks of one database, on connections that are not under
// test.
type view struct {
	db  *sql.DB
	oid int
}

func viewOf(t testing.TB, db *sql.DB, database string) view {
	t.Helper()
	return view{db, scan[int](t, db, `SELECT oid::int FROM pg_database WHERE datname = $1`, database)}
}

const advisory = `FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND database = $1
	AND ((classid::bigint << 32) | objid::bigint) = $2`

// held is how many sessions hold a key's lock.
func (v view) held(t testing.TB, key string) int {
	t.Helper()
	return scan[int](t, v.db, `SELECT count(*) `+advisory+` AND granted`, v.oid, pglock.SHA256Key(key))
}

// waiting is how many sessions wait for a key's lock.
func (v view) waiting(t testing.TB, key string) int {
	t.Helper()
	return scan[int](t, v.db, `SELECT count(*) `+advisory+` AND NOT granted`, v.oid, pglock.SHA256Key(key))
}

// locks is how many advisory locks there are in the database.
func (v view) locks(t testing.TB) int {
	t.Helper()
	return scan[int](t, v.db, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = $1`, v.oid)
}

// lockers are the processes that hold advisory locks in the database.
func (v view) lockers(t testing.TB) (pids []int) {
	t.Helper()
	rows, err := v.db.Query(`SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND database = $1 AND granted`, v.oid)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var pid int
		must(t, rows.Scan(&pid))
		pids = append(pids, pid)
	}
	must(t, rows.Err())
	return pids
}

// kill ends the session of a server process, and waits until it is gone.
func (v view) kill(t testing.TB, pid int) {
	t.Helper()
	if !scan[bool](t, v.db, `SELECT pg_terminate_backend($1)`, pid) {
		t.Fatalf("there is no process %d", pid)
	}
	eventually(t, "the session is gone", func() bool {
		return scan[int](t, v.db, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid) == 0
	})
}

// breakable starts a server that the test may break: a child of this process.
func breakable(t *testing.T, settings map[string]string) *postgres.Server {
	t.Helper()
	var errs []error
	for _, provider := range []string{"local", "embedded"} {
		s, err := postgres.Start(bg, postgres.WithProvider(provider), postgres.WithSettings(settings))
		if err == nil {
			t.Cleanup(func() { must(t, s.Stop()) })
			return s
		}
		errs = append(errs, err)
	}
	t.Skipf("no server that can be broken: %v", errors.Join(errs...))
	return nil
}

// homeOf returns the directory that a server started here keeps its data
// directory and its socket in, and the user that it runs as; nil for our own.
func homeOf(t testing.TB, s *postgres.Server) (dir string, user *syscall.Credential) {
	t.Helper()
	info, err := os.Stat(s.DataDir())
	must(t, err)
	if owner := info.Sys().(*syscall.Stat_t); int(owner.Uid) != os.Geteuid() {
		user = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	return filepath.Dir(s.DataDir()), user
}

// observer opens connections to a server that are not under test.
func observer(t testing.TB, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	must(t, err)
	db.SetMaxOpenConns(4)
	t.Cleanup(func() { db.Close() })
	return db
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
	at   time.Time
}

// acquireLater takes a key on a goroutine of its own.
func acquireLater(m *pglock.Manager, key string) <-chan result {
	c := make(chan result, 1)
	go func() {
		lock, err := m.Acquire(bg, key)
		c <- result{lock, err, time.Now()}
	}()
	return c
}

// warm has a pool open n connections, so that none has to wait for one.
func warm(db *sql.DB, n int) error {
	for range n {
		conn, err := db.Conn(bg)
		if err != nil {
			return err
		}
		defer conn.Close()
	}
	return nil
}

// settingsOf reads every setting of every session behind a pool of this size, by
// its process.
func settingsOf(t testing.TB, db *sql.DB, size int) map[int]map[string]string {
	t.Helper()
	all := make(map[int]map[string]string)
	var conns []*sql.Conn
	for range size {
		conn, err := db.Conn(bg)
		must(t, err)
		conns = append(conns, conn)
		var pid int
		must(t, conn.QueryRowContext(bg, `SELECT pg_backend_pid()`).Scan(&pid))
		rows, err := conn.QueryContext(bg, `SELECT name, setting FROM pg_settings`)
		must(t, err)
		all[pid] = make(map[string]string)
		for rows.Next() {
			var name string
			var setting sql.NullString
			must(t, rows.Scan(&name, &setting))
			all[pid][name] = setting.String
		}
		must(t, rows.Err())
	}
	for _, conn := range conns {
		conn.Close()
	}
	return all
}

// unchanged fails the test unless the sessions and their settings are as they
// were.
func unchanged(t testing.TB, before, after map[int]map[string]string) {
	t.Helper()
	for pid, settings := range before {
		if after[pid] == nil {
			t.Errorf("the session of process %d is gone", pid)
			continue
		}
		for name, value := range settings {
			if now := after[pid][name]; now != value {
				t.Errorf("process %d: %s was %q and is %q", pid, name, value, now)
			}
		}
	}
}

// receive returns what c yields, and fails the test if it yields nothing.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	return testkit.Receive(t, patience, what, c)
}

// scan reads one row.
func scan[T any](t testing.TB, db *sql.DB, query string, args ...any) T {
	t.Helper()
	return testkit.Scan[T](t, db, query, args...)
}
