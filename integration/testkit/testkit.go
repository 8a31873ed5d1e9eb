// Package testkit has what the tests on real servers have in common: how they fail,
// how they wait, and a database of a test's own. It knows nothing of locks.
package testkit

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver "pgx"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/integration/postgres"
)

// Main is a TestMain on one server: it starts that, gives it to use together with
// a view of it from outside, a pool of this size, runs the tests, and fails if
// they leave a goroutine behind. It returns the exit code.
func Main(m *testing.M, size int, use func(s *postgres.Server, outside *sql.DB)) int {
	run := &tests{m: m, size: size, use: use}
	return postgres.Main(run, func(s *postgres.Server) { run.server = s })
}

// tests are those of a package.
type tests struct {
	m      *testing.M
	size   int
	use    func(*postgres.Server, *sql.DB)
	server *postgres.Server
}

// Run runs them.
func (r *tests) Run() int {
	before := goleak.IgnoreCurrent()
	outside, err := sql.Open("pgx", r.server.DSN())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	outside.SetMaxOpenConns(r.size)
	r.use(r.server, outside)
	code := r.m.Run()
	outside.Close()
	if err := goleak.Find(before); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines are left after the tests:", err)
		return 1
	}
	return code
}

// Run is a run of tests that can fail before it has begun, for postgres.Main.
type Run func() (code int, err error)

// Run runs them, and says why they have not run.
func (r Run) Run() int {
	code, err := r()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Must fails the test on an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Wraps fails the test unless err wraps every target.
func Wraps(t testing.TB, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Fatalf("error %v does not wrap %v", err, target)
		}
	}
}

// Within makes what fails a test unless cond comes true within d. The machine may
// be busy with other things, so d is long.
func Within(d time.Duration) func(t testing.TB, what string, cond func() bool) {
	return func(t testing.TB, what string, cond func() bool) {
		t.Helper()
		for deadline := time.Now().Add(d); !cond(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("never came true: %s", what)
			}
		}
	}
}

// Receive returns what c yields, and fails the test if it yields nothing within d.
func Receive[T any](t testing.TB, d time.Duration, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(d):
		t.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}

// Scan reads one row.
func Scan[T any](t testing.TB, db *sql.DB, query string, args ...any) (v T) {
	t.Helper()
	Must(t, db.QueryRow(query, args...).Scan(&v))
	return v
}

// WithParam sets a parameter of a DSN.
func WithParam(dsn, name, value string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err)
	}
	q := u.Query()
	q.Set(name, value)
	// A space is %20: lib/pq takes a plus sign as it is.
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}

// FreePort is postgres.FreePort for a test.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := postgres.FreePort()
	Must(t, err)
	return port
}

// ThroughPooler starts a pgbouncer in this pool mode in front of the server of
// dsn, with size server sessions for a database, and returns the DSN through it.
// Its sessions end with it, when the test does.
func ThroughPooler(t testing.TB, dsn, mode string, size int) string {
	t.Helper()
	through, stop, err := postgres.StartPooler(dsn, mode, size)
	if errors.Is(err, postgres.ErrNoPooler) {
		t.Skip(err)
	}
	Must(t, err)
	t.Cleanup(func() { Must(t, stop()) })
	return through
}

var databases atomic.Int64

// Database makes a database on s, through outside, and returns its name and its
// DSN. When the test ends it must have no session left, within d. Advisory locks of
// two databases do not meet, so tests may run side by side.
func Database(t testing.TB, d time.Duration, s *postgres.Server, outside *sql.DB) (name, dsn string) {
	t.Helper()
	name = fmt.Sprintf("holdfast_%d_%d", os.Getpid(), databases.Add(1))
	_, err := outside.Exec(`CREATE DATABASE ` + name)
	Must(t, err)
	t.Cleanup(func() {
		Within(d)(t, "no session is left in the database", func() bool {
			return Scan[int](t, outside, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1`, name) == 0
		})
		_, err := outside.Exec(`DROP DATABASE ` + name)
		Must(t, err)
	})
	u, err := url.Parse(s.DSN())
	Must(t, err)
	u.Path = "/" + name
	return name, u.String()
}
