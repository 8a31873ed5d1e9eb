// Package ports holds the contracts of Holdfast: what a caller of a
// distributed lock may rely on, and what the server behind it must provide.
//
// Callers depend on [DistributedLock], [LockRegistry] or both together as
// [LockManager]; package pglock implements them on PostgreSQL advisory locks.
// Implementers of a new driver or of a test double provide a [SessionPool];
// package ports/portstest checks either side against its laws.
//
// The contracts describe the shape of the dependency. They do not promise that
// two implementations give the same distributed guarantees: a lock held on one
// database says nothing about another database. The package imports the
// standard library only, and never database/sql.
package ports

import (
	"context"
	"fmt"
	"time"
)

// Mode says with whom a lock may be shared. The zero value is Exclusive.
type Mode uint8

const (
	// Exclusive admits one holder and nobody beside it.
	Exclusive Mode = iota
	// Shared admits any number of shared holders and no exclusive one.
	Shared
)

// String returns "exclusive" or "shared".
func (m Mode) String() string {
	if m == Shared {
		return "shared"
	}
	return "exclusive"
}

// MarshalText makes a Mode appear by its name in JSON.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (m *Mode) UnmarshalText(text []byte) error {
	switch string(text) {
	case Exclusive.String():
		*m = Exclusive
	case Shared.String():
		*m = Shared
	default:
		return fmt.Errorf("ports: unknown lock mode %q; it is exclusive or shared", text)
	}
	return nil
}

// Token is a fencing token: a number that is greater for every later hold, so
// that a resource which remembers the greatest token it has seen can refuse a
// holder that was overtaken. It is 0 where none was asked for.
type Token uint64

// LockInfo describes one hold of one key at the moment it was granted.
type LockInfo struct {
	// Key is the name that the caller gave, byte for byte.
	Key string
	// ID is the advisory-lock ID derived from Key. Two keys with one ID
	// exclude each other. For a lock of two integers it is what PairID makes of
	// them; a manager has all its locks in one space or the other.
	ID int64
	// Mode is Exclusive or Shared.
	Mode Mode
	// HolderID is the name that the manager was given for its process.
	HolderID string
	// AcquiredAt is when this process learned of the grant.
	AcquiredAt time.Time
	// PID is the server process that holds the lock; 0 if there is none.
	PID int
	// Database is the database within which the lock excludes others; empty if
	// there is none. The same key in another database is another lock.
	Database string
	// Token is the fencing token; 0 when none was asked for.
	Token Token
}

// Lock is one hold of one key. It is safe for concurrent use.
//
// A hold ends once and for good: by Release, by the manager's Close, or by a
// loss, when the server session that carries it is over. It is never taken
// again behind the caller's back.
type Lock interface {
	// Info describes the hold as it was granted. It does not change when the
	// hold ends.
	Info() LockInfo

	// Done returns a channel that is closed when the hold ends, however it
	// ends. On a release it is closed before the server is asked to unlock, so
	// nobody else can hold the key while this channel is open, save for the
	// time it takes to notice a session that the server ended.
	Done() <-chan struct{}

	// Err returns nil while the lock is held, ErrReleased after a release, and
	// an error that wraps ErrLost after a loss. Once it is not nil it does not
	// change.
	Err() error

	// Release gives the lock back. It works with a context that is already
	// done, returns within a bound on any network, and may be called more than
	// once and from several goroutines: calls after a successful one return
	// nil.
	//
	// It returns an error that wraps ErrLost if the server no longer had the
	// lock, and another error if the unlock could not be confirmed; the server
	// session is ended then, which frees the lock as soon as the server
	// notices.
	Release(ctx context.Context) error
}

// DistributedLock takes and gives back named locks that exclude every other
// process on the same database. It is safe for concurrent use.
//
// Locks are not re-entrant: a second Acquire of a key that is held through the
// same value waits like anybody else, and TryAcquire says false.
//
// Any string is a key: empty, with NUL bytes, not UTF-8, of any length.
type DistributedLock interface {
	// Acquire waits for the key and returns its hold. The context and
	// WithTimeout bound the wait only: the hold outlives both, until Release.
	//
	// If a rival kept the lock for the whole wait, the error wraps
	// ErrNotAcquired and what ended the wait (context.DeadlineExceeded, or the
	// context's cause). If no session could be had in time it wraps
	// ErrPoolExhausted. Every other failure is the driver's error, wrapped
	// once. All of them are *LockError, and after any of them nothing is held.
	Acquire(ctx context.Context, key string, opts ...AcquireOption) (Lock, error)

	// TryAcquire takes the key if nobody has it and does not wait for a rival:
	// then it returns false and no error. An error means that the answer is
	// not known. A wait that was just given up, here or in another process, can
	// have the key for a round trip more before it gives it back.
	TryAcquire(ctx context.Context, key string, opts ...AcquireOption) (lock Lock, acquired bool, err error)

	// Release gives back the hold of key, the oldest if there are several
	// shared ones. It returns what Lock.Release returns, and an error that
	// wraps ErrNotHeld if there is no hold of this key here.
	Release(ctx context.Context, key string) error

	// IsHeld reports whether this value holds the key now. It asks nobody, and
	// says nothing about other holders.
	IsHeld(key string) bool
}

// LockRegistry tells what is held through one DistributedLock value.
type LockRegistry interface {
	// Held describes the current holds, oldest first.
	Held() []LockInfo
	// HeldCount is the number of current holds.
	HeldCount() int
	// ReleaseAll releases every current hold and returns how many the server
	// confirmed, with the errors of the others joined. Holds that
	// WithHoldAtLeast keeps end when their time has come, and do not count.
	ReleaseAll(ctx context.Context) (released int, err error)
}

// LockManager is a DistributedLock together with its registry.
type LockManager interface {
	DistributedLock
	LockRegistry
}
