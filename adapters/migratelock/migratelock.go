// Package migratelock guards migrations of golang-migrate
// (github.com/golang-migrate/migrate/v4) with a lock of Holdfast.
//
//	driver, err := pgx.WithInstance(db, &pgx.Config{})
//	locks := pgxlock.New(lockDB, pglock.WithKeyFunc(keys.Always(
//		keys.GolangMigrate("app", "public", "schema_migrations"))))
//	m, err := migrate.NewWithInstance("iofs", source, "app",
//		migratelock.New(driver, locks, "migrations"))
//
// golang-migrate's drivers for PostgreSQL wait for their lock in one statement
// without end. While somebody waits like that, a CREATE INDEX CONCURRENTLY of the
// process that migrates waits for the statement, and the statement for that
// process: a deadlock. Here the wait is one in slices, for which no index waits.
// With keys.GolangMigrate, as above, processes without the guard are excluded, too;
// but as long as one of them waits, an index can still meet it.
//
// The lock is on a session of the manager's, not on the connection of the driver.
// When it is lost, no further migration begins. One that is under way is finished:
// its version is marked as dirty meanwhile, and other migrators stop at that.
//
// The manager's *sql.DB must not be the driver's, which the driver closes.
package migratelock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"

	"github.com/holdfast-go/holdfast/ports"
)

// noVersion is none that golang-migrate could mark.
const noVersion = database.NilVersion - 1

// New puts the guard around a database driver: it is that driver, with the lock
// under key in the place of the driver's own. Everybody who migrates the database
// must use one key.
//
// The wait is bounded by opts (ports.WithTimeout) or, without any, by a second
// less than migrate.DefaultLockTimeout is now. Keep it below Migrate.LockTimeout:
// what golang-migrate itself has given up waiting for, it never unlocks. After a
// lock that was lost, make another Migrate, as it counts itself as locked. It
// panics if driver or locks is nil.
func New(driver database.Driver, locks ports.DistributedLock, key string, opts ...ports.AcquireOption) database.Driver {
	if driver == nil || locks == nil {
		panic("migratelock.New: nil; give it a database driver of golang-migrate, and a manager")
	}
	bound := ports.WithTimeout(max(migrate.DefaultLockTimeout-time.Second, 0))
	g := &guard{Driver: driver, locks: locks, key: key, opts: append([]ports.AcquireOption{bound}, opts...), marked: noVersion}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// guard is a database.Driver. It has the methods of the one in it where it has
// none of its own.
type guard struct {
	database.Driver
	locks ports.DistributedLock
	key   string
	opts  []ports.AcquireOption

	ctx    context.Context // ends with Close, and with it a wait
	cancel context.CancelFunc

	mu      sync.Mutex
	waiting bool
	lock    ports.Lock // nil while there is none
	// marked is the version that has been marked as dirty under the lock, and not
	// yet as clean; noVersion if there is none.
	marked int
}

// Open implements database.Driver: the driver that it opens has the guard, too.
func (g *guard) Open(url string) (database.Driver, error) {
	driver, err := g.Driver.Open(url)
	if err != nil {
		return nil, err
	}
	return New(driver, g.locks, g.key, g.opts...), nil
}

// Close implements database.Driver. It ends a wait, and gives back a lock that
// nobody has unlocked.
func (g *guard) Close() error {
	g.cancel()
	err := g.Unlock()
	if errors.Is(err, database.ErrNotLocked) {
		err = nil
	}
	return errors.Join(err, g.Driver.Close())
}

// Lock implements database.Driver. Its error wraps database.ErrLocked if somebody
// else kept the lock, or if this driver has it.
func (g *guard) Lock() error {
	g.mu.Lock()
	busy := g.waiting || g.lock != nil
	g.waiting = g.waiting || !busy
	g.mu.Unlock()
	if busy {
		return database.ErrLocked
	}
	lock, err := g.locks.Acquire(g.ctx, g.key, g.opts...)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = false
	switch {
	case errors.Is(err, ports.ErrNotAcquired):
		return fmt.Errorf("%w: %w", database.ErrLocked, err)
	case err != nil:
		return err
	case g.ctx.Err() != nil: // Close came in the moment of the grant, and has found no lock
		return errors.Join(context.Cause(g.ctx), lock.Release(g.ctx))
	}
	g.lock = lock
	return nil
}

// Unlock implements database.Driver. Its error wraps ports.ErrLost if the lock was
// lost meanwhile.
func (g *guard) Unlock() error {
	g.mu.Lock()
	lock := g.lock
	g.lock, g.marked = nil, noVersion
	g.mu.Unlock()
	if lock == nil {
		return database.ErrNotLocked
	}
	return lock.Release(context.Background())
}

// SetVersion implements database.Driver. golang-migrate calls it before each
// migration, with dirty, and after it. Who has lost the lock may not begin another
// one; but it may finish the one whose mark keeps the others out.
func (g *guard) SetVersion(version int, dirty bool) error {
	g.mu.Lock()
	finishes := !dirty && version == g.marked
	g.mu.Unlock()
	if !finishes {
		if err := g.holds(); err != nil {
			return err
		}
	}
	if err := g.Driver.SetVersion(version, dirty); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.marked = noVersion; dirty {
		g.marked = version
	}
	return nil
}

// Drop implements database.Driver.
func (g *guard) Drop() error {
	if err := g.holds(); err != nil {
		return err
	}
	return g.Driver.Drop()
}

// holds returns nil while the lock is held.
func (g *guard) holds() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lock == nil {
		return database.ErrNotLocked
	}
	return g.lock.Err()
}
