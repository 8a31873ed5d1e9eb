package ports

import (
	"errors"
	"fmt"
)

// The sentinels. Errors that a lock returns wrap one of them, or an error of
// the context or of the driver; compare with errors.Is.
var (
	// ErrNotAcquired says that someone else kept the lock for the whole wait.
	// Contention is expected: report it, do not crash on it.
	ErrNotAcquired = errors.New("lock not acquired: someone else holds it")
	// ErrNotHeld says that this manager does not hold that key.
	ErrNotHeld = errors.New("lock not held by this manager")
	// ErrLost says that the server session ended while the lock was held, or
	// may have: someone else can hold the lock now.
	ErrLost = errors.New("lock lost: its server session ended")
	// ErrReleased is what Lock.Err returns after a release.
	ErrReleased = errors.New("lock released")
	// ErrClosed says that the manager is closed.
	ErrClosed = errors.New("lock manager is closed")
	// ErrPoolExhausted says that no connection could be pinned in time. It is
	// about this process's pool and says nothing about the lock.
	ErrPoolExhausted = errors.New("no connection could be pinned")
	// ErrUnsafeConnection says that the connection cannot exclude others: the
	// message says what was seen and what to do.
	ErrUnsafeConnection = errors.New("connection cannot hold an exclusive lock")
	// ErrTooManyLocks says that another lock would fill the server's lock
	// table, which all its sessions share, or more of it than a manager takes.
	// The message says what to raise.
	ErrTooManyLocks = errors.New("too many locks at the server")
	// ErrUnsupported says that this lock or this server cannot do that.
	ErrUnsupported = errors.New("not supported")
)

// LockError is the one type of error that lock operations return. It adds the
// operation and the key to the error that it wraps.
type LockError struct {
	// Op is "acquire", "try", "release", "run", "inspect" or "evict".
	Op string
	// Key is the caller's key.
	Key string
	// Err is the reason; never nil.
	Err error
}

// Error names the operation, the key (quoted, and cut after 128 characters: keys
// may be a megabyte long, log lines should not be) and the reason.
func (e *LockError) Error() string {
	return fmt.Sprintf("%s %.128q: %v", e.Op, e.Key, e.Err)
}

// Unwrap returns the reason.
func (e *LockError) Unwrap() error { return e.Err }
