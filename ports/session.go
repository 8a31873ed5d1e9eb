package ports

import (
	"context"
	"errors"
	"time"
)

// SessionPool is the driven port: where a lock manager gets server sessions
// from. An adapter implements it for one kind of driver. It must be safe for
// concurrent use. One that wraps the sessions of another has to offer their
// optional interfaces too, such as Watcher; else what builds on those is lost.
type SessionPool interface {
	// Open takes a session for the caller alone, until Recycle or Destroy. It
	// must return soon after ctx ends, and must leave nothing behind when it
	// fails. It need not prove that the session works: the first command may
	// find that it does not.
	Open(ctx context.Context) (Session, error)

	// Usage tells how many sessions are in use by anybody, and the most that
	// there can be at a time; a limit of 0 means that there is no bound. It
	// must not block.
	Usage() (inUse, limit int)
}

// Session is one server session, on which locks live: they end with it at the
// latest.
//
// One goroutine at a time calls its commands (Lock, Unlock, Check, Recycle,
// Watch and Batch); Destroy may come at any time from any goroutine. A command must
// pass the context on to the driver and need not survive its end: the manager
// keeps contexts for real trouble and lets the server end a wait.
//
// After any error from a command the manager destroys the session, except
// where the command says otherwise. An error after which the session is known
// to be over must wrap ErrSessionEnded; errors that the server reported must
// be found by errors.As in what is returned.
type Session interface {
	// Lock takes the lock if it is free, or waits for it at the server for at
	// most r.Wait. With Granted false and no error the session must hold
	// nothing of this request, and be as usable as before; so an
	// implementation has to clear up when a wait was ended in the moment of
	// the grant. An implementation may end a wait sooner than asked.
	//
	// A server that cannot exclude (one in recovery) must be refused with
	// ErrUnsafeConnection.
	Lock(ctx context.Context, r LockRequest) (Grant, error)

	// Unlock gives back a lock that Lock granted on this session. It returns
	// false if the server says that the session did not have it. After the
	// last one the session must hold no advisory lock at all, whoever took it.
	Unlock(ctx context.Context, id int64, mode Mode) (held bool, err error)

	// Check asks the server whether the session lives, and returns the server
	// process that answers; if full it also looks whether every lock granted
	// on it is still there. It returns an error that wraps ErrSessionEnded if
	// the session is over or a lock is gone, and one that wraps
	// ErrUnsafeConnection if another process answers than before. Another
	// error means only that this look gave no answer.
	Check(ctx context.Context, full bool) (pid int, err error)

	// Recycle hands the session back to its pool and returns true. Unless it
	// is known to hold nothing and to have every setting as it was found, it
	// must destroy the session instead, and return false.
	Recycle(ctx context.Context) bool

	// Destroy ends the session at once, so that its locks are freed whatever
	// state it is in; a command that is running must return soon, and no later
	// command may reach the server. It returns when the client's side is
	// closed, and does nothing on a session that is recycled or destroyed.
	Destroy()
}

// LockRequest is what Session.Lock asks for.
type LockRequest struct {
	// ID is the advisory-lock ID.
	ID int64
	// Mode is Exclusive or Shared.
	Mode Mode
	// Wait is the most time to wait at the server; 0 to only try.
	Wait time.Duration
	// Fencing asks for a token that is greater than that of every earlier
	// grant on the same cluster, and is durable before Lock returns.
	Fencing bool
	// HolderID is a name by which an operator of the server can tell who holds
	// the lock. It may be any string.
	HolderID string
	// Liveness, if positive, asks the server to end a session that holds a
	// lock, and whose client it no longer hears, not sooner than that and not
	// much later; and not to end it for being idle. The adapter must put
	// everything back that it sets for this when the session is recycled.
	Liveness time.Duration
}

// Grant is the server's answer to a LockRequest.
type Grant struct {
	// Granted says that the session holds the lock.
	Granted bool
	// PID is the server process of the session; 0 if there is none.
	PID int
	// Database is the name of the database that the session is connected to.
	Database string
	// Token is the fencing token; 0 if none was asked for.
	Token Token
	// Interrupted says that something other than LockRequest.Wait ended the
	// wait, such as a statement_timeout or a cancel by an operator.
	Interrupted bool
}

// Inspector is an optional interface of a SessionPool whose server tells who
// holds a lock and who waits for it.
type Inspector interface {
	// Inspect returns the sessions that hold the lock or wait for it, those of
	// others too, holders first.
	Inspect(ctx context.Context, id int64) ([]SessionInfo, error)
	// Evict ends the session of a server process if it holds the lock, and
	// reports whether it did. Where the server does not permit it, the error
	// must say so.
	Evict(ctx context.Context, id int64, pid int) (bool, error)
}

// Lister is an optional interface of a SessionPool whose server tells of all its
// locks at once.
type Lister interface {
	// List returns what Inspector.Inspect would for each ID that anybody holds
	// or waits for, as of one moment.
	List(ctx context.Context) (map[int64][]SessionInfo, error)
}

// Witness is an optional interface of a SessionPool whose server tells whether a
// session that somebody else is using still has its locks.
type Witness interface {
	// Holds asks on a session of its own whether the one of server process pid
	// has all of the locks ids. Having no session to ask on, because the pool
	// is full or the server takes no more, is an error that wraps
	// ErrPoolExhausted; any other one means that there was no answer. It
	// returns when ctx ends, whatever the network does.
	Holds(ctx context.Context, pid int, ids []int64) (bool, error)
}

// SessionInfo is what a server tells of one session that has to do with a lock.
type SessionInfo struct {
	// PID is the server process.
	PID int `json:"pid"`
	// Granted is true for a holder and false for one who waits.
	Granted bool `json:"granted"`
	// Mode is how the session holds the lock, or wants it.
	Mode Mode `json:"mode"`
	// HolderID is the name that its manager has given; empty for sessions that
	// are not of this library.
	HolderID string `json:"holder_id,omitempty"`
	// Since is since when it has the lock or waits, on the server's clock;
	// zero if the server does not know.
	Since time.Time `json:"since,omitzero"`
	// Database, User, Application, Client and State are what
	// pg_stat_activity says; empty where the role may not see it.
	Database    string `json:"database,omitempty"`
	User        string `json:"user,omitempty"`
	Application string `json:"application,omitempty"`
	Client      string `json:"client,omitempty"`
	State       string `json:"state,omitempty"`
}

// Watcher is an optional interface of a Session that can notice its own end
// without a query. Without it, a manager relies on Check.
type Watcher interface {
	// Watch blocks until the session is over, and returns why, or until ctx
	// ends; then it returns nil and must leave the session as usable as
	// before. It must not send anything that shows as activity at the server.
	Watch(ctx context.Context) error
}

// Batcher is an optional interface of a Session that gives back and tries many
// locks in one statement. Without it, a manager cannot put many locks on one
// session. A Batch is a command of the session like Lock.
type Batcher interface {
	// Batch gives back b.Unlocks, and then tries b.Tries, waiting for none of
	// them. When it has failed, any of the locks may be held. With neither, the
	// answer says that the session lives.
	//
	// The fencing token of a batch must be drawn when all its locks are taken:
	// it is then greater than that of every earlier grant of each of them. A
	// server that cannot exclude must be refused with ErrUnsafeConnection, and
	// one that has no room for the locks with ErrTooManyLocks.
	Batch(ctx context.Context, b Batch) (BatchAnswer, error)
}

// Batch is what Batcher.Batch asks for.
type Batch struct {
	// Unlocks are locks that the session holds, to be given back.
	Unlocks []Unlock
	// Tries are locks to take if they are free. None of them is one that the
	// session holds after the unlocks, save those that say so; no ID is there
	// twice.
	Tries []Try
	// HolderID and Liveness are as in LockRequest.
	HolderID string
	Liveness time.Duration
}

// Unlock names one lock to give back.
type Unlock struct {
	ID   int64
	Mode Mode
}

// Try names one lock to take if it is free.
type Try struct {
	ID   int64
	Mode Mode
	// Fencing asks for a token, if the lock is granted.
	Fencing bool
	// Held says that the session has the lock already, in this mode, and wants
	// no more than a token. It is not taken a second time.
	Held bool
}

// BatchAnswer is the server's answer to a Batch.
type BatchAnswer struct {
	// Unlocked has an answer for each of the unlocks, in their order: false if
	// the session did not have the lock.
	Unlocked []bool
	// Granted has an answer for each of the tries, in their order.
	Granted []bool
	// Token is the fencing token of all grants that asked for one; 0 if there
	// are none.
	Token Token
	// PID and Database are as in Grant.
	PID      int
	Database string
	// LockTable is how many locks of all its sessions the server has room for;
	// 0 if it was not asked, as after the first grant on a session.
	LockTable int
}

// Exchanger is an optional interface of a Session that can give a lock back and
// try another one in one round trip.
type Exchanger interface {
	// Exchange is Unlock of an ID and, if it was held, Lock of another one,
	// without a wait. An error leaves open what the session holds.
	Exchange(ctx context.Context, id int64, mode Mode, next LockRequest) (held bool, g Grant, err error)
}

// Interruptible is an optional interface of a Session. A manager may run a command
// of one that says true on the goroutine of its caller, which saves waking another
// one twice.
type Interruptible interface {
	// Interruptible reports whether Destroy makes a command that is running
	// return at once, whatever the network and the driver do.
	Interruptible() bool
}

// SessionLender is an optional interface of a Lock that has a server session
// of its own. Adapters build on it to run a caller's work on that session.
type SessionLender interface {
	// LendSession calls use with the session that carries the hold. Meanwhile
	// nothing else uses it. If use returns false, panics or ends its
	// goroutine, the session has to prove by a full Check that it can go on;
	// if it cannot, it is destroyed, and the hold is lost. When LendSession
	// returns, that is decided. It returns an error without calling use if the
	// hold has ended, or if ctx ends while others use the session.
	LendSession(ctx context.Context, use func(Session) (trusted bool)) error
}

// ErrSessionEnded is wrapped by errors of a Session after which it is known to
// be over, or to have lost a lock that it held.
var ErrSessionEnded = errors.New("server session ended")
