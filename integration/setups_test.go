package integration

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/XSAM/otelsql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/pqlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/integration/testkit"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// patience is how long a test waits for what must happen sooner or later.
const patience = 20 * time.Second

var (
	must       = testkit.Must
	wraps      = testkit.Wraps
	eventually = testkit.Within(patience)
	param      = testkit.WithParam
)

var bg = context.Background()

// setup is one way to use the library: a driver, a mode of it, an adapter.
type setup struct {
	name string
	open func(t testing.TB, dsn string, size int) *sql.DB
	new  func(*sql.DB, ...pglock.Option) *pglock.Manager
	pool func(*sql.DB) ports.SessionPool
	// watches: the end of a session is noticed at once, not by a check.
	watches bool
}

// drivers are the setups that a test runs in where the driver can matter.
var drivers = []setup{
	{"pq", openPQ, pqlock.New, pqlock.NewPool, false},
	{"pgx", openPGX, pgxlock.New, pgxlock.NewPool, true},
	{"pgxpool", openPGXPool, pgxlock.New, pgxlock.NewPool, true},
}

// setups are all that the laws must hold in.
var setups = append(slices.Clone(drivers),
	setup{"pq,binary_parameters", withParam(openPQ, "binary_parameters", "yes"), pqlock.New, pqlock.NewPool, false},
	setup{"pgx,simple_protocol", withParam(openPGX, "default_query_exec_mode", "simple_protocol"), pgxlock.New, pgxlock.NewPool, true},
	setup{"pgx,exec", withParam(openPGX, "default_query_exec_mode", "exec"), pgxlock.New, pgxlock.NewPool, true},
	setup{"pgx,describe_exec", withParam(openPGX, "default_query_exec_mode", "describe_exec"), pgxlock.New, pgxlock.NewPool, true},
	setup{"pgx,cache_describe", withParam(openPGX, "default_query_exec_mode", "cache_describe"), pgxlock.New, pgxlock.NewPool, true},
	setup{"sqllock,pq", openPQ, sqllock.New, newSQLPool, false},
	setup{"sqllock,pgx", openPGX, sqllock.New, newSQLPool, false},
	setup{"sqllock,pgxpool", openPGXPool, sqllock.New, newSQLPool, false},
	setup{"sqllock,instrumented pq", instrumented(func(t testing.TB, dsn string) (*sql.DB, func()) {
		connector, err := pq.NewConnector(dsn)
		must(t, err)
		return otelsql.OpenDB(connector), func() {}
	}), sqllock.New, newSQLPool, false},
	setup{"pgxlock,instrumented pgxpool", instrumented(func(t testing.TB, dsn string) (*sql.DB, func()) {
		pool, err := pgxpool.New(bg, param(dsn, "pool_max_conns", "50"))
		must(t, err)
		return otelsql.OpenDB(stdlib.GetPoolConnector(pool)), pool.Close
	}), pgxlock.New, pgxlock.NewPool, true},
	setup{"sqllock,instrumented pgxpool", instrumented(func(t testing.TB, dsn string) (*sql.DB, func()) {
		pool, err := pgxpool.New(bg, param(dsn, "pool_max_conns", "50"))
		must(t, err)
		return otelsql.OpenDB(stdlib.GetPoolConnector(pool)), pool.Close
	}), sqllock.New, newSQLPool, false},
)

func newSQLPool(db *sql.DB) ports.SessionPool { return sqllock.NewPool(db, sqllock.Driver{}) }

func openPQ(t testing.TB, dsn string, size int) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	must(t, err)
	return checked(t, db, size, func() {})
}

func openPGX(t testing.TB, dsn string, size int) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	must(t, err)
	return checked(t, db, size, func() {})
}

func openPGXPool(t testing.TB, dsn string, size int) *sql.DB {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	must(t, err)
	config.MaxConns = int32(max(size, 1))
	if size == 0 {
		config.MaxConns = 100
	}
	pool, err := pgxpool.NewWithConfig(bg, config)
	must(t, err)
	return checked(t, stdlib.OpenDBFromPool(pool), size, pool.Close)
}

// instrumented opens a database whose driver is wrapped.
func instrumented(open func(testing.TB, string) (*sql.DB, func())) func(testing.TB, string, int) *sql.DB {
	return func(t testing.TB, dsn string, size int) *sql.DB {
		t.Helper()
		db, closePool := open(t, dsn)
		return checked(t, db, size, closePool)
	}
}

// withParam opens with one more parameter in the DSN.
func withParam(open func(testing.TB, string, int) *sql.DB, name, value string) func(testing.TB, string, int) *sql.DB {
	return func(t testing.TB, dsn string, size int) *sql.DB {
		t.Helper()
		return open(t, param(dsn, name, value), size)
	}
}

// checked closes db when the test ends, and fails the test if a connection is
// still in use then.
func checked(t testing.TB, db *sql.DB, size int, closePool func()) *sql.DB {
	t.Helper()
	if size > 0 {
		db.SetMaxOpenConns(size)
	}
	t.Cleanup(func() {
		eventually(t, "no connection is in use", func() bool { return db.Stats().InUse == 0 })
		db.Close()
		closePool()
	})
	return db
}

// world is one setup on a database of its own, so that tests may run side by
// side: advisory locks of two databases do not meet.
type world struct {
	setup
	dsn string
	// oid is the database's, by which pg_locks names it.
	oid int
	// subid is what pg_locks says in objsubid of the locks of this world: 1 for
	// those of one bigint, 2 for those of two integers.
	subid int
}

// inPairs is the same world with all its locks in the space of two integers.
func (w world) inPairs() world {
	newManager, newPool := w.new, w.pool
	w.new = func(db *sql.DB, opts ...pglock.Option) *pglock.Manager {
		return newManager(db, append(opts, pglock.WithTwoIntegerKeys(sha256Pair))...)
	}
	w.pool = func(db *sql.DB) ports.SessionPool { return newPool(db).(ports.PairPool).Pairs() }
	w.subid = 2
	return w
}

// sha256Pair makes the pair whose packed number is that of pglock.SHA256Key.
func sha256Pair(key string) (first, second int32) { return ports.IDPair(pglock.SHA256Key(key)) }

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
	return world{s, dsn, scan[int](t, `SELECT oid::int FROM pg_database WHERE datname = $1`, name), 1}
}

// db opens a pool of this size; 0 for no bound.
func (w world) db(t testing.TB, size int) *sql.DB {
	t.Helper()
	return w.open(t, w.dsn, size)
}

// manager makes a manager on db, which the test closes at its end.
func (w world) manager(t testing.TB, db *sql.DB, opts ...pglock.Option) *pglock.Manager {
	t.Helper()
	m := w.new(db, opts...)
	t.Cleanup(func() {
		if err := m.Close(bg); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

// receive returns what c yields, and fails the test if it yields nothing.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	return testkit.Receive(t, patience, what, c)
}

// scan reads one row from outside.
func scan[T any](t testing.TB, query string, args ...any) (v T) {
	t.Helper()
	return testkit.Scan[T](t, outside, query, args...)
}

const advisory = `FROM pg_locks WHERE locktype = 'advisory' AND objsubid = $3 AND database = $1
	AND ((classid::bigint << 32) | objid::bigint) = $2`

var lockModes = map[ports.Mode]string{ports.Exclusive: "ExclusiveLock", ports.Shared: "ShareLock"}

// holders are the processes that hold a lock in this mode.
func (w world) holders(t testing.TB, id int64, mode ports.Mode) []int {
	t.Helper()
	rows, err := outside.Query(`SELECT pid `+advisory+` AND granted AND mode = $4`, w.oid, id, w.subid, lockModes[mode])
	must(t, err)
	defer rows.Close()
	var pids []int
	for rows.Next() {
		var pid int
		must(t, rows.Scan(&pid))
		pids = append(pids, pid)
	}
	must(t, rows.Err())
	return pids
}

// held is how many sessions hold a key's lock, in any mode.
func (w world) held(t testing.TB, key string) int {
	t.Helper()
	return scan[int](t, `SELECT count(*) `+advisory+` AND granted`, w.oid, pglock.SHA256Key(key), w.subid)
}

// waiting is how many sessions wait for a key's lock.
func (w world) waiting(t testing.TB, key string) int {
	t.Helper()
	return w.waitingFor(t, pglock.SHA256Key(key))
}

func (w world) waitingFor(t testing.TB, id int64) int {
	t.Helper()
	return scan[int](t, `SELECT count(*) `+advisory+` AND NOT granted`, w.oid, id, w.subid)
}

// locks is how many advisory locks are held in the database.
func (w world) locks(t testing.TB) int {
	t.Helper()
	return scan[int](t, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = $1 AND granted`, w.oid)
}

// sessions counts the server's sessions in the database.
func (w world) sessions(t testing.TB) int {
	t.Helper()
	return scan[int](t, `SELECT count(*) FROM pg_stat_activity WHERE datid = $1`, w.oid)
}

// kill ends the session of a server process, and waits until it is gone.
func kill(t testing.TB, pid int) {
	t.Helper()
	if !scan[bool](t, `SELECT pg_terminate_backend($1)`, pid) {
		t.Fatalf("there is no process %d", pid)
	}
	eventually(t, "the session is gone", func() bool {
		return scan[int](t, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid) == 0
	})
}

// raw opens a connection of the test's own.
func (w world) raw(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(bg, w.dsn)
	must(t, err)
	t.Cleanup(func() { conn.Close(bg) })
	return conn
}

// lockRaw holds a key's lock on a connection of the test's own.
func (w world) lockRaw(t testing.TB, key string) *pgx.Conn {
	t.Helper()
	conn := w.raw(t)
	_, err := conn.Exec(bg, `SELECT pg_advisory_lock($1)`, pglock.SHA256Key(key))
	must(t, err)
	return conn
}

// unlockRaw gives it back.
func unlockRaw(t testing.TB, conn *pgx.Conn) {
	t.Helper()
	_, err := conn.Exec(bg, `SELECT pg_advisory_unlock_all()`)
	must(t, err)
}
