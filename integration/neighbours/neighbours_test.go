// Package neighbours runs the tools that other people migrate and schedule with
// on a real server, under the locks of adapters/gocronlock, gooselock and
// migratelock.
package neighbours

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	migratepq "github.com/golang-migrate/migrate/v4/database/postgres"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/google/uuid"
	"github.com/pressly/goose/v3"

	"github.com/holdfast-go/holdfast/adapters/gocronlock"
	"github.com/holdfast-go/holdfast/adapters/gooselock"
	"github.com/holdfast-go/holdfast/adapters/migratelock"
	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/pqlock"
	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/integration/testkit"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/pglock/keys"
	"github.com/holdfast-go/holdfast/ports"
)

// patience is how long a test waits for what must happen sooner or later.
const patience = 30 * time.Second

var (
	bg      = context.Background()
	server  *postgres.Server
	outside *sql.DB

	must       = testkit.Must
	eventually = testkit.Within(patience)
)

func TestMain(m *testing.M) {
	os.Exit(postgres.Main(testkit.Run(func() (int, error) { return run(m) }), func(s *postgres.Server) { server = s }))
}

// run runs the tests with a view of the server from outside.
func run(m *testing.M) (code int, err error) {
	if outside, err = sql.Open("pgx", server.DSN()); err != nil {
		return 0, err
	}
	defer outside.Close()
	return m.Run(), nil
}

// driver is one of both.
type driver struct {
	name string
	new  func(*sql.DB, ...pglock.Option) *pglock.Manager
	// migrate makes golang-migrate's driver for it, and open does by a URL.
	migrate func(*sql.DB) (database.Driver, error)
	open    func(url string) (database.Driver, error)
}

var drivers = []driver{
	{"pgx", pgxlock.New, func(db *sql.DB) (database.Driver, error) {
		return migratepgx.WithInstance(db, &migratepgx.Config{})
	}, new(migratepgx.Postgres).Open},
	{"postgres", pqlock.New, func(db *sql.DB) (database.Driver, error) {
		return migratepq.WithInstance(db, &migratepq.Config{})
	}, new(migratepq.Postgres).Open},
}

// world is a database of its own.
type world struct {
	driver
	name, dsn string
}

func each(t *testing.T, f func(t *testing.T, w world)) {
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			name, dsn := testkit.Database(t, patience, server, outside)
			f(t, world{d, name, dsn})
		})
	}
}

// db opens a pool.
func (w world) db(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open(w.driver.name, w.dsn)
	must(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// manager makes a manager with a pool of its own.
func (w world) manager(t testing.TB, opts ...pglock.Option) *pglock.Manager {
	t.Helper()
	m := w.new(w.db(t), opts...)
	t.Cleanup(func() {
		if err := m.Close(bg); err != nil {
			t.Error(err)
		}
	})
	return m
}

// waiting is how many sessions of the database wait for an advisory lock.
func (w world) waiting(t testing.TB) int {
	t.Helper()
	return scan[int](t, outside, `SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid
		WHERE datname = $1 AND locktype = 'advisory' AND NOT granted`, w.name)
}

// gated are migrations of which the first waits until the gate is opened, and the
// second builds an index concurrently.
var gated = []string{
	`CREATE TABLE orders AS SELECT generate_series(1, 1000) AS v; LOCK TABLE gate`,
	`CREATE INDEX CONCURRENTLY orders_v ON orders (v)`,
}

// gate makes the gate and shuts it.
func (w world) gate(t testing.TB) (open func()) {
	t.Helper()
	db := w.db(t)
	_, err := db.Exec(`CREATE TABLE gate (); INSERT INTO gate DEFAULT VALUES`)
	must(t, err)
	tx, err := db.Begin()
	must(t, err)
	t.Cleanup(func() { tx.Rollback() })
	_, err = tx.Exec(`LOCK TABLE gate`)
	must(t, err)
	return func() { must(t, tx.Rollback()) }
}

// atTheGate reports whether a migration waits for the gate.
func (w world) atTheGate(t testing.TB) bool {
	t.Helper()
	return scan[int](t, outside, `SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock' AND wait_event = 'relation'`, w.name) == 1
}

// twoAtOnce has one migrator stand at the gate, and another one wait for its lock,
// before the first one comes to the index. It returns their errors in that order.
func (w world) twoAtOnce(t testing.TB, migrators [2]func() error) (first, second error) {
	t.Helper()
	open := w.gate(t)
	var ended [2]chan error
	for i, migrate := range migrators {
		ended[i] = make(chan error, 1)
		go func() { ended[i] <- migrate() }()
		if i == 0 {
			eventually(t, "the first one has come to the gate", func() bool { return w.atTheGate(t) })
		} else {
			eventually(t, "the second one waits", func() bool { return w.waiting(t) == 1 })
		}
	}
	open()
	return receive(t, "the end of the first one", ended[0]), receive(t, "the end of the second one", ended[1])
}

// migrated checks that all migrations were made once, and nothing is left locked.
func (w world) migrated(t testing.TB) {
	t.Helper()
	db := w.db(t)
	if !scan[bool](t, db, `SELECT indisvalid FROM pg_index WHERE indexrelid = 'orders_v'::regclass`) {
		t.Error("the index is not valid")
	}
	if n := scan[int](t, db, `SELECT count(*) FROM orders`); n != 1000 {
		t.Errorf("%d orders", n)
	}
	w.unlocked(t)
}

// unlocked checks that nothing is locked, and nobody waits.
func (w world) unlocked(t testing.TB) {
	t.Helper()
	eventually(t, "nothing is locked", func() bool {
		return scan[int](t, outside, `SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid WHERE datname = $1 AND locktype = 'advisory'`, w.name) == 0
	})
}

// golang returns golang-migrate's Up with these migrations. The guard, if there is
// one, goes around the driver.
func (w world) golang(t testing.TB, migrations []string, guard func(database.Driver) database.Driver) func() error {
	t.Helper()
	files := make(fstest.MapFS)
	for i, m := range migrations {
		files[fmt.Sprintf("%d_m.up.sql", i+1)] = &fstest.MapFile{Data: []byte(m)}
	}
	source, err := iofs.New(files, ".")
	must(t, err)
	driver, err := w.migrate(w.db(t))
	must(t, err)
	m, err := migrate.NewWithInstance("iofs", source, w.name, guard(driver))
	must(t, err)
	m.LockTimeout = patience
	t.Cleanup(func() {
		if sourceErr, databaseErr := m.Close(); sourceErr != nil || databaseErr != nil {
			t.Error(sourceErr, databaseErr)
		}
	})
	return m.Up
}

// golangLocks makes a manager for golang-migrate's own lock.
func (w world) golangLocks(t testing.TB) *pglock.Manager {
	t.Helper()
	return w.manager(t, pglock.WithKeyFunc(keys.Always(keys.GolangMigrate(w.name, "public", "schema_migrations"))))
}

// guarded puts the guard around a driver.
func guarded(locks *pglock.Manager) func(database.Driver) database.Driver {
	return func(d database.Driver) database.Driver {
		return migratelock.New(d, locks, "migrations", ports.WithTimeout(patience))
	}
}

// This is what the guard is for.
func TestGolangMigrateAloneDeadlocksWithAnIndex(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		bare := func(d database.Driver) database.Driver { return d }
		first, second := w.twoAtOnce(t, [2]func() error{w.golang(t, gated, bare), w.golang(t, gated, bare)})
		if err := fmt.Sprint(first, second); !strings.Contains(err, "deadlock detected") {
			t.Errorf("no deadlock: %v; %v", first, second)
		}
	})
}

func TestGuardedMigrationsBuildAnIndexWhileOthersWait(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		first, second := w.twoAtOnce(t, [2]func() error{w.golang(t, gated, guarded(w.golangLocks(t))), w.golang(t, gated, guarded(w.golangLocks(t)))})
		if first != nil || !errors.Is(second, migrate.ErrNoChange) {
			t.Errorf("%v; %v", first, second)
		}
		w.migrated(t)
	})
}

// A process of an older version, without the guard, migrates; a new one waits.
func TestTheGuardExcludesGolangMigrateAlone(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		bare := func(d database.Driver) database.Driver { return d }
		first, second := w.twoAtOnce(t, [2]func() error{w.golang(t, gated, bare), w.golang(t, gated, guarded(w.golangLocks(t)))})
		if first != nil || !errors.Is(second, migrate.ErrNoChange) {
			t.Errorf("%v; %v", first, second)
		}
		w.migrated(t)
	})
}

// A driver that is opened by a URL takes the path for the name, with its slash.
func TestGolangMigratesLockDependsOnHowItsDriverIsOpened(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		for name, open := range map[string]func() (database.Driver, error){
			w.name:       func() (database.Driver, error) { return w.migrate(w.db(t)) },
			"/" + w.name: func() (database.Driver, error) { return w.open(w.dsn) },
		} {
			driver, err := open()
			must(t, err)
			must(t, driver.Lock())
			for _, key := range []string{w.name, "/" + w.name} {
				locks := w.manager(t, pglock.WithKeyFunc(keys.Always(keys.GolangMigrate(key, "public", "schema_migrations"))))
				if _, acquired, err := locks.TryAcquire(bg, "migrations"); acquired == (key == name) || err != nil {
					t.Errorf("the driver has the lock of %q, and that of %q is to be had: %v, %v", name, key, acquired, err)
				}
				must(t, locks.Close(bg))
			}
			must(t, driver.Unlock())
			must(t, driver.Close())
		}
	})
}

func TestGolangMigrateStopsAtALoss(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		open := w.gate(t)
		ended := make(chan error, 1)
		locks := w.golangLocks(t)
		up := w.golang(t, gated, guarded(locks))
		go func() { ended <- up() }()
		eventually(t, "it has come to the gate", func() bool { return w.atTheGate(t) })
		w.killHolder(t, locks)
		open()
		if err := receive(t, "its end", ended); !errors.Is(err, ports.ErrLost) {
			t.Errorf("%v", err)
		}
		db := w.db(t)
		if got := scan[string](t, db, `SELECT format('version %s, dirty %s, %s indexes', version, dirty, (SELECT count(*) FROM pg_class WHERE relname = 'orders_v')) FROM schema_migrations`); got != "version 1, dirty f, 0 indexes" {
			t.Error(got)
		}
		must(t, w.golang(t, gated, guarded(w.golangLocks(t)))())
		w.migrated(t)
	})
}

// killHolder ends the session that holds the lock, and waits until its manager has
// noticed.
func (w world) killHolder(t testing.TB, locks *pglock.Manager) {
	t.Helper()
	if n, err := locks.Evict(bg, "migrations"); n != 1 || err != nil {
		t.Fatalf("%d sessions held the lock: %v", n, err)
	}
	eventually(t, "the loss is noticed", func() bool { return locks.Stats().Lost == 1 })
}

// gooseLocks makes a manager for goose's own lock.
func (w world) gooseLocks(t testing.TB) *pglock.Manager {
	t.Helper()
	return w.manager(t, pglock.WithKeyFunc(keys.Always(keys.Goose)))
}

// goose returns goose's Up with these migrations.
func (w world) goose(t testing.TB, migrations []string, locks *pglock.Manager) func() error {
	t.Helper()
	files := make(fstest.MapFS)
	for i, m := range migrations {
		header := "-- +goose Up\n"
		if strings.Contains(m, "CONCURRENTLY") {
			header = "-- +goose NO TRANSACTION\n" + header
		}
		files[fmt.Sprintf("%05d_m.sql", i+1)] = &fstest.MapFile{Data: []byte(header + m + ";\n")}
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, w.db(t), files, goose.WithSessionLocker(gooselock.New(locks, "migrations")))
	must(t, err)
	return func() error {
		_, err := provider.Up(bg)
		return err
	}
}

func TestGooseBuildsAnIndexWhileOthersWait(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		first, second := w.twoAtOnce(t, [2]func() error{w.goose(t, gated, w.gooseLocks(t)), w.goose(t, gated, w.gooseLocks(t))})
		if first != nil || second != nil {
			t.Errorf("%v; %v", first, second)
		}
		w.migrated(t)
	})
}

// Its connection is taken away beside what runs on it, so a migration that follows
// at once may slip through; the one in the middle is long enough to be seen.
func TestGooseStopsAtALoss(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		open := w.gate(t)
		ended := make(chan error, 1)
		locks := w.gooseLocks(t)
		migrations := []string{gated[0], `SELECT pg_sleep(2)`, gated[1]}
		up := w.goose(t, migrations, locks)
		go func() { ended <- up() }()
		eventually(t, "it has come to the gate", func() bool { return w.atTheGate(t) })
		w.killHolder(t, locks)
		open()
		if err := receive(t, "its end", ended); !errors.Is(err, ports.ErrLost) {
			t.Errorf("%v", err)
		}
		if n := scan[int](t, w.db(t), `SELECT count(*) FROM pg_class WHERE relname = 'orders_v'`); n != 0 {
			t.Error("another migration has run")
		}
		must(t, w.goose(t, migrations, w.gooseLocks(t))())
		w.migrated(t)
	})
}

// goose's own session locker is in the same place.
func TestTheLockOfGooseIsThatOfItsOwnLocker(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		open := w.gate(t)
		ended := make(chan error, 1)
		up := w.goose(t, gated, w.gooseLocks(t))
		go func() { ended <- up() }()
		eventually(t, "it has come to the gate", func() bool { return w.atTheGate(t) })
		db := w.db(t)
		if scan[bool](t, db, `SELECT pg_try_advisory_lock($1)`, keys.Goose) {
			t.Error("goose's own lock is free")
		}
		open()
		must(t, receive(t, "its end", ended))
	})
}

func TestGocronRunsAJobOnce(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		var running, runs atomic.Int32
		at := time.Now().Add(time.Second)
		var done sync.WaitGroup
		for range 3 {
			s, err := gocron.NewScheduler(gocron.WithDistributedLocker(
				gocronlock.NewLocker(w.manager(t), ports.WithHoldAtLeast(2*time.Second))))
			must(t, err)
			done.Add(1)
			var once sync.Once
			over := func() { once.Do(done.Done) }
			_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartDateTime(at)), gocron.NewTask(func() {
				if running.Add(1) > 1 {
					t.Error("it runs twice at a time")
				}
				runs.Add(1)
				running.Add(-1)
			}), gocron.WithName("report"), gocron.WithEventListeners(
				gocron.AfterJobRuns(func(_ uuid.UUID, _ string) { over() }),
				gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
					if !errors.Is(err, ports.ErrNotAcquired) {
						t.Error(err)
					}
					over()
				})))
			must(t, err)
			s.Start()
			t.Cleanup(func() { must(t, s.Shutdown()) })
		}
		all := make(chan struct{})
		go func() { done.Wait(); close(all) }()
		receive(t, "the three schedulers' turn", all)
		if n := runs.Load(); n != 1 {
			t.Errorf("%d runs", n)
		}
		w.unlocked(t)
	})
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
