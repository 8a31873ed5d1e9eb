package pglock

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// DefaultLivenessWindow is the liveness window of a manager that was given
// none: long enough to ride out a slow network, and about as long as an
// orchestrator takes to replace a dead process.
const DefaultLivenessWindow = 15 * time.Second

// MinLivenessWindow is the shortest liveness window. Below it, the pauses of
// an ordinary garbage collector, scheduler or network would count as losses.
const MinLivenessWindow = 5 * time.Second

// Option adjusts a Manager at its construction.
type Option func(*config)

// config is what the options set.
type config struct {
	holderID    string
	keyFunc     func(string) int64
	pairs       bool // lock IDs are pairs of integers
	namespace   string
	window      time.Duration
	maxSessions int // 0: derive from the pool
	shared      int // sessions that carry all holds; 0: each hold has its own
	logger      *slog.Logger
	logKey      func(string) string
	unverified  bool
	observers   observers
}

// WithHolderID names this process in LockInfo.HolderID. The default is the
// host's name and the process ID.
func WithHolderID(id string) Option {
	return func(c *config) { c.holderID = id }
}

// WithKeyFunc replaces SHA256Key as the derivation of lock IDs. All processes
// that are to exclude each other must use one function: it must depend on the
// key alone and must never change. Any int64 is a valid ID. Package keys has the
// functions of other software. It panics if f is nil.
func WithKeyFunc(f func(key string) int64) Option {
	if f == nil {
		panic("pglock.WithKeyFunc: nil function; leave the option out to use SHA256Key")
	}
	return func(c *config) { c.keyFunc, c.pairs = f, false }
}

// WithTwoIntegerKeys has every lock of the manager be one of two 32-bit integers,
// which f derives from the key, instead of one bigint: a space of locks of its
// own, in which others may have theirs. LockInfo.ID and Manager.KeyID pack the
// two with ports.PairID. What WithKeyFunc says of its function holds for f; of
// the two options the last one counts. It panics if f is nil; and NewManager
// does if its pool has no such locks.
func WithTwoIntegerKeys(f func(key string) (first, second int32)) Option {
	if f == nil {
		panic("pglock.WithTwoIntegerKeys: nil function; package keys has some")
	}
	return func(c *config) {
		c.keyFunc, c.pairs = func(key string) int64 { return ports.PairID(f(key)) }, true
	}
}

// WithNamespace puts prefix before every key when its ID is derived, so that
// two applications on one database do not meet by accident. LockInfo.Key stays
// what the caller gave. The two strings are joined as they are: end the prefix
// with a separator.
func WithNamespace(prefix string) Option {
	return func(c *config) { c.namespace = prefix }
}

// WithLivenessWindow sets W, the one knob of failure detection; the default is
// DefaultLivenessWindow. The session of every hold is checked each W/5, and
// the hold is declared lost when 3W/5 have passed since the sending of the
// last check that was answered. The server is asked to end the session of a
// holder that it has not heard for W, in whole seconds rounded up, which it does
// W/5 later at most; so in a partition the holder is told first. A third of W
// bounds a release. It panics if d is shorter than MinLivenessWindow.
func WithLivenessWindow(d time.Duration) Option {
	if d < MinLivenessWindow {
		panic(fmt.Sprintf("pglock.WithLivenessWindow: %v is shorter than the minimum of %v", d, MinLivenessWindow))
	}
	return func(c *config) { c.window = d }
}

// WithMaxSessions sets how many sessions, each a connection of the pool, the
// manager may pin at a time for holds and waits. The default is one less than
// the pool's own limit, so that holders can always run their queries, and no
// limit where the pool has none. Say n = 1 with a pool of one connection if
// that pool is for locks alone. It panics if n is not positive.
func WithMaxSessions(n int) Option {
	if n <= 0 {
		panic(fmt.Sprintf("pglock.WithMaxSessions: %d is not positive; leave the option out to derive the number from the pool", n))
	}
	return func(c *config) { c.maxSessions = n }
}

// WithSharedSessions puts all locks of the manager on n sessions, each a
// connection of the pool, where by default each hold has its own. A key is
// always on the same one of them; n = 1 is enough for most, and more share the
// load and the risk. Choose it for many locks at a time, such as one per user,
// document or partition, and leave it out for jobs and other rare operations.
//
// What many goroutines want at one time travels in one statement, and a lock
// costs memory only: no connection, no goroutine, no timer. It costs this:
//
//   - Between processes, a lock that is taken is asked for again and again, after
//     4 ms at first and every 256 ms on average in the end, instead of waiting
//     in the server's queue. A release is noticed that much later by another
//     process, and goroutines of this one may come first; they pass the lock on
//     in memory for half a second at most before others have their turn, or for
//     4 s if nobody else was met lately. Inspect does not see who waits. A single
//     goroutine that takes a lock again as soon as it has released it can keep
//     other processes waiting for longer.
//   - All locks of a session are lost with it.
//   - Shared holds of one key are one lock at the server, which is given back
//     when the last of them ends; an exclusive request of another process waits
//     for a moment without any.
//   - A Release that passes the lock on in memory, or leaves it to another
//     shared hold, asks the server only if its last answer on the session is
//     older than 50 ms: a later loss is told to those who hold the lock then.
//   - RunTx and RunConn say ports.ErrUnsupported.
//   - Holds that were granted in one statement have one fencing token. They are
//     of different keys.
//
// Locks live in a table of fixed size that all sessions of the server share. The
// manager takes half of it at most; past that, Acquire and TryAcquire return an
// error that wraps ports.ErrTooManyLocks. The server frees a session's locks one
// by one when it ends.
//
// A pool that allows fewer sessions than n makes do with those. It panics if n
// is not positive.
func WithSharedSessions(n int) Option {
	if n <= 0 {
		panic(fmt.Sprintf("pglock.WithSharedSessions: %d is not positive; leave the option out to give each hold a session of its own", n))
	}
	return func(c *config) { c.shared = n }
}

// WithLogger has the manager log what an operator should know: lost holds,
// releases that could not be confirmed, sessions that were ended in doubt; and,
// at level debug, what became of every acquire and the end of every hold.
// The default, and nil, is silence.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		if l != nil {
			c.logger = l
		}
	}
}

// WithKeyRedaction has the log show redact(key) in the place of a key, for keys
// that name a customer, say. A log that shows lock IDs can still be matched with
// a key that is known, since IDs derive from keys. Errors that are returned, and
// an Observer, get the key as it is. It panics if redact is nil.
func WithKeyRedaction(redact func(key string) string) Option {
	if redact == nil {
		panic("pglock.WithKeyRedaction: nil function; leave the option out to log keys as they are")
	}
	return func(c *config) { c.logKey = redact }
}

// WithObserver has o told of what the manager does. Given several times, every
// observer is told: of starts in the order of the options, of ends in the
// reverse order. Without any, the manager does nothing for it.
func WithObserver(o Observer) Option {
	return func(c *config) { c.observers = append(c.observers, o) }
}

// WithoutVerification has the manager trust its setup: it does not prove before
// its first lock that the connections of its pool exclude each other. It is for
// test doubles that expect certain statements, and for pools about which the
// proof has been made elsewhere; see Manager.Verify.
func WithoutVerification() Option {
	return func(c *config) { c.unverified = true }
}
