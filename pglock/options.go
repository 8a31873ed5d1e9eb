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
