// Package gooselock guards migrations of goose (github.com/pressly/goose/v3) with
// a lock of Holdfast: of all processes that migrate one database at a time, one
// does, and the others wait.
//
//	locks := pgxlock.New(db, pglock.WithKeyFunc(keys.Always(keys.Goose)))
//	provider, err := goose.NewProvider(goose.DialectPostgres, db, migrations,
//		goose.WithSessionLocker(gooselock.New(locks, "migrations")))
//
// With keys.Goose, as here, processes that still use goose's own session locker
// are excluded, too.
//
// Those who wait do so at the server, in slices so short that CREATE INDEX
// CONCURRENTLY does not wait for them, and get the lock as soon as it is free;
// goose's own locker looks every five seconds. A server that cannot exclude, such
// as a pooler in transaction mode, is refused.
//
// The lock is on a session of the manager's, not on the connection that goose
// migrates on. When it is lost (or the manager is closed), goose's connection is
// taken away as soon as database/sql lets go of it between two statements, or at
// the end of a transaction; then no further migration begins, and the error of
// the migration tells of the loss. What is under way at that moment is not stopped.
// A pool needs room for both connections.
package gooselock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync"

	"github.com/pressly/goose/v3/lock"

	"github.com/holdfast-go/holdfast/ports"
)

// New makes goose's session locker. Everybody who migrates the database must use
// one key. How long to wait is what the context of goose's call and opts say,
// such as ports.WithTimeout. It panics if locks is nil.
func New(locks ports.DistributedLock, key string, opts ...ports.AcquireOption) lock.SessionLocker {
	if locks == nil {
		panic("gooselock.New: nil locks; give it a manager")
	}
	return &locker{locks: locks, key: key, opts: opts, held: make(map[*sql.Conn]ports.Lock)}
}

type locker struct {
	locks ports.DistributedLock
	key   string
	opts  []ports.AcquireOption

	mu   sync.Mutex
	held map[*sql.Conn]ports.Lock // by the connection of goose that it guards
}

// SessionLock implements lock.SessionLocker.
func (l *locker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	held, err := l.locks.Acquire(ctx, l.key, l.opts...)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.held[conn] = held
	l.mu.Unlock()
	go func() {
		<-held.Done()
		l.mu.Lock()
		early := l.held[conn] == held // not by SessionUnlock
		l.mu.Unlock()
		if early {
			// database/sql waits for what runs on it, then closes it.
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
	}()
	return nil
}

// SessionUnlock implements lock.SessionLocker. It returns an error that wraps
// ports.ErrLost if the lock was lost meanwhile.
func (l *locker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	l.mu.Lock()
	held := l.held[conn]
	delete(l.held, conn)
	l.mu.Unlock()
	if held == nil {
		return &ports.LockError{Op: "release", Key: l.key, Err: ports.ErrNotHeld}
	}
	return held.Release(ctx)
}
