package pglock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// Observer is told what a manager does: traces, metrics and logs of an
// application hang on it. Each field may be nil, and fields may be added in
// later versions; name the fields that you set. adapters/otellock makes one for
// OpenTelemetry.
//
// The functions run on the goroutine of what they are told of, and never under
// a lock of the manager, so they may ask it (Stats, Held); they must not acquire
// or release. The time that they take is added to the acquire, the release or the
// telling of a loss. They are called concurrently, and must not panic.
type Observer struct {
	// Acquire is called at the start of Acquire and TryAcquire, and for each key
	// of AcquireAll in the order in which it takes them. ctx is the caller's. The
	// call goes on with the context that Acquire returns, which must be derived
	// from ctx: a span in it becomes the parent of spans that an instrumented
	// driver makes. end, if not nil, is called when the call ends, once.
	Acquire func(ctx context.Context, a AcquireStart) (derived context.Context, end func(AcquireEnd))

	// Release is called when a hold is being given back, by whatever means:
	// Lock.Release, Release, ReleaseAll, Close, or the end of its least duration.
	// ctx is the caller's. end, if not nil, is called once, with what the release
	// returns. A second release of the same hold is not told; one that comes after
	// a loss is.
	Release func(ctx context.Context, r ReleaseStart) (end func(error))

	// HoldEnded is called when a hold has ended for its owner, which is before
	// the server is asked to unlock. With AcquireEnd it brackets every hold: there
	// is one call for each of the two. After a very short hold it can come before
	// AcquireEnd.
	HoldEnded func(HoldEnd)

	// Lost is called for each lock that is found to be lost: when HoldEnded tells
	// of a loss, and when a release finds that the server no longer had the lock.
	// err wraps ports.ErrLost.
	Lost func(lock ports.LockInfo, err error)

	// SessionOpened is called when the manager has pinned a session, for a wait,
	// a hold, or a proof of its setup.
	SessionOpened func()

	// SessionClosed is called when it no longer pins it.
	SessionClosed func(SessionEnd)
}

// AcquireStart describes a call that asks for a lock.
type AcquireStart struct {
	// Op is "acquire" or "try".
	Op string
	// Key is the caller's key, and ID the lock ID derived from it.
	Key string
	ID  int64
	// Options are those of the call.
	Options ports.AcquireOptions
	// HolderID is the manager's name for this process.
	HolderID string
}

// AcquireEnd describes how a call that asks for a lock ended.
type AcquireEnd struct {
	// Acquired says that the lock was granted; Lock describes it then.
	Acquired bool
	Lock     ports.LockInfo
	// Contended says that someone else was seen to have the lock, or to be before
	// this call in the queue. It is true for every call that ended without the
	// lock for that reason, and for those that got it after a wait.
	Contended bool
	// Waited is how long the call took.
	Waited time.Duration
	// Err is the error that the call returns. A TryAcquire that says false
	// returns none; an Acquire that only found contention returns one that
	// wraps ports.ErrNotAcquired.
	Err error
}

// ReleaseStart describes a hold that is being given back.
type ReleaseStart struct {
	// Locks has one lock, or those of a LockSet.
	Locks []ports.LockInfo
}

// HoldEnd describes the end of the hold of one lock. A LockSet has one for each
// of its locks.
type HoldEnd struct {
	Lock ports.LockInfo
	// Duration is how long the lock was held.
	Duration time.Duration
	// Cause is what Lock.Err returns: ports.ErrReleased, or an error that wraps
	// ports.ErrLost.
	Cause error
}

// SessionEnd describes what became of a session.
type SessionEnd struct {
	// Destroyed says that the session was ended instead of going back to its
	// pool.
	Destroyed bool
	// Err is why it was destroyed, if that is known.
	Err error
}

// observers are those of one manager, in the order of their options.
type observers []Observer

// acquire tells of the start of a call, and returns its context and the
// function that tells of its end.
func (os observers) acquire(ctx context.Context, m *Manager, op, key string, opts ports.AcquireOptions) (context.Context, func(*hold, error)) {
	if len(os) == 0 {
		return ctx, func(*hold, error) {}
	}
	return os.startAcquire(ctx, m, op, key, opts)
}

func (os observers) startAcquire(ctx context.Context, m *Manager, op, key string, opts ports.AcquireOptions) (context.Context, func(*hold, error)) {
	start := AcquireStart{Op: op, Key: key, ID: m.KeyID(key), Options: opts, HolderID: m.holderID}
	var ends []func(AcquireEnd)
	for _, o := range os {
		if o.Acquire == nil {
			continue
		}
		derived, end := o.Acquire(ctx, start)
		if derived != nil {
			ctx = derived
		}
		if end != nil {
			ends = append(ends, end)
		}
	}
	began := time.Now()
	return ctx, func(h *hold, err error) {
		e := AcquireEnd{Acquired: h != nil, Waited: time.Since(began), Err: err}
		if h != nil {
			e.Lock, e.Contended = h.newest()
		} else {
			e.Contended = err == nil || errors.Is(err, ports.ErrNotAcquired)
		}
		for _, end := range slices.Backward(ends) { // as deferred calls are: spans nest
			end(e)
		}
	}
}

// release tells of the start of a release, and returns the function that tells
// of its end.
func (os observers) release(ctx context.Context, h *hold) func(error) {
	if len(os) == 0 {
		return func(error) {}
	}
	return os.startRelease(ctx, h)
}

func (os observers) startRelease(ctx context.Context, h *hold) func(error) {
	start := ReleaseStart{Locks: h.infos()}
	var ends []func(error)
	for _, o := range os {
		if o.Release == nil {
			continue
		}
		if end := o.Release(ctx, start); end != nil {
			ends = append(ends, end)
		}
	}
	return func(err error) {
		for _, end := range slices.Backward(ends) {
			end(err)
		}
	}
}

// ended tells of the end of a hold because of why, and of the loss that this
// may be.
func (os observers) ended(h *hold, why error) {
	if len(os) == 0 {
		return
	}
	now := time.Now()
	for _, info := range h.infos() {
		end := HoldEnd{Lock: info, Duration: now.Sub(info.AcquiredAt), Cause: why}
		for _, o := range os {
			if o.HoldEnded != nil {
				o.HoldEnded(end)
			}
		}
	}
	if errors.Is(why, ports.ErrLost) {
		os.lost(h, why)
	}
}

// lost tells of the loss of a hold.
func (os observers) lost(h *hold, why error) {
	for _, o := range os {
		if o.Lost == nil {
			continue
		}
		for _, info := range h.infos() {
			o.Lost(info, why)
		}
	}
}

// sessionOpened tells of a session that was pinned.
func (os observers) sessionOpened() {
	for _, o := range os {
		if o.SessionOpened != nil {
			o.SessionOpened()
		}
	}
}

// sessionClosed tells of a session that is no longer pinned.
func (os observers) sessionClosed(e SessionEnd) {
	for _, o := range os {
		if o.SessionClosed != nil {
			o.SessionClosed(e)
		}
	}
}

// announce has the observers told of something that was found under mu, which
// the caller holds.
func (m *Manager) announce(tell func(observers)) {
	if len(m.observers) > 0 {
		m.start(func() { tell(m.observers) })
	}
}

// open pins a session and tells of it.
func (m *Manager) open(ctx context.Context) (ports.Session, error) {
	s, err := m.pool.Open(ctx)
	if err == nil {
		m.observers.sessionOpened()
	}
	return s, err
}
