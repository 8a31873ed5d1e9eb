package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

const (
	// DefaultMinBackoff and DefaultMaxBackoff bound the pause between two
	// campaigns of an Elector that was given no bounds: short enough that a
	// leader is replaced within seconds, and long enough that a fault which stays
	// is not met at full speed.
	DefaultMinBackoff = time.Second
	DefaultMaxBackoff = 30 * time.Second
)

// ErrResigned is the cause with which the context of a leader's work ends after
// Elector.Resign.
var ErrResigned = errors.New("leadership resigned")

// Lead runs fn while this process leads all those that call Lead with the same
// key. It campaigns, which is to wait for the lock; runs fn when it has won; and
// gives the lock back when fn has returned, so that the next one leads at once.
// At most one fn runs at a time, save for the time that a leader takes to notice
// a loss and stop (see ports.Lock).
//
// The context that fn gets is that of Do: it ends with the hold, with ctx, or
// with Elector.Resign, and carries the lock, whose token fences its writes
// (WithCampaign and ports.WithFencing). fn must return soon then; Lead waits for
// it, and never runs it twice at a time.
//
// After a loss, an error of fn or an error of the lock, Lead campaigns again,
// after a random pause that grows with each failure in a row. It returns
//   - nil when fn returns nil of its own accord: then the work is done;
//   - when ctx ends, once fn has returned and the lock is given back: nil, or
//     what fn returned other than the end of ctx, with what the release could
//     not confirm;
//   - an error that wraps ports.ErrClosed when the manager is closed.
//
// If fn panics or ends its goroutine, the lock is given back first.
//
// A candidate that waits pins a connection, as any wait for a lock does; with
// WithCampaign and ports.WithPolling it pins none.
func Lead(ctx context.Context, locks ports.DistributedLock, key string, fn func(ctx context.Context) error, opts ...LeadOption) error {
	return NewElector(locks, key, opts...).Run(ctx, fn)
}

// LeadOption adjusts Lead and NewElector.
type LeadOption func(*leadConfig)

type leadConfig struct {
	minBackoff, maxBackoff time.Duration
	campaign               []ports.AcquireOption
	onError                func(error)
}

// WithBackoff bounds the pause before another campaign. The first pause is
// about shortest; each failure in a row doubles it, up to longest. The real
// pauses are between half of that and all of it, at random. A leadership that
// lasted for longer than longest ends the row. It panics unless
// 0 < shortest ≤ longest.
func WithBackoff(shortest, longest time.Duration) LeadOption {
	if shortest <= 0 || longest < shortest {
		panic(fmt.Sprintf("pglock.WithBackoff: want 0 < shortest ≤ longest, not %v and %v", shortest, longest))
	}
	return func(c *leadConfig) { c.minBackoff, c.maxBackoff = shortest, longest }
}

// WithCampaign gives the options with which the lock is asked for, such as
// ports.WithPolling or ports.WithFencing. A timeout among them only ends one
// campaign; after a pause there is the next.
func WithCampaign(opts ...ports.AcquireOption) LeadOption {
	return func(c *leadConfig) { c.campaign = append(c.campaign, opts...) }
}

// WithErrorHandler has f called with every error after which there is another
// campaign: losses, errors of fn, and errors of the lock. Else they are not seen.
// f runs between the campaigns, and must return soon. It panics if f is nil.
func WithErrorHandler(f func(error)) LeadOption {
	if f == nil {
		panic("pglock.WithErrorHandler: nil function; leave the option out to let errors pass")
	}
	return func(c *leadConfig) { c.onError = f }
}

// Elector is one candidate for the leadership under one key: Lead with a handle.
// It is safe for concurrent use, and runs once.
type Elector struct {
	locks ports.DistributedLock
	key   string
	leadConfig
	changes chan bool // has room for one; sent to and closed under mu

	mu       sync.Mutex
	started  bool
	over     bool              // Run has returned
	leads    bool              // what Changes was told last
	lock     ports.Lock        // of the last leadership; nil before the first
	stepDown func(cause error) // ends the context of the work; nil when there is none
	steps    chan struct{}     // closed when that leadership is over and the lock given back
	released error             // what that release returned; set before steps is closed
	failure  error             // why the last campaign or leadership failed; nil if it did not
	began    time.Time         // when the campaign under way began; zero if there is none
}

// NewElector makes a candidate. It does nothing until Run. It panics if locks is
// nil.
func NewElector(locks ports.DistributedLock, key string, opts ...LeadOption) *Elector {
	if locks == nil {
		panic("pglock.NewElector: nil locks; give it a manager")
	}
	e := &Elector{
		locks:   locks,
		key:     key,
		changes: make(chan bool, 1),
		leadConfig: leadConfig{
			minBackoff: DefaultMinBackoff,
			maxBackoff: DefaultMaxBackoff,
			onError:    func(error) {},
		},
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&e.leadConfig)
		}
	}
	return e
}

// Run does what Lead does. A second call returns an error.
func (e *Elector) Run(ctx context.Context, fn func(ctx context.Context) error) error {
	e.mu.Lock()
	if e.started {
		e.mu.Unlock()
		return fmt.Errorf("pglock: the elector for %.128q has been run before; make another one", e.key)
	}
	e.started = true
	e.mu.Unlock()
	defer e.end()
	if ports.NewAcquireOptions(e.campaign...).Mode == ports.Shared {
		return &ports.LockError{Op: "acquire", Key: e.key, Err: fmt.Errorf("%w: a leadership has no shared mode; leave WithShared out of WithCampaign, or use a Semaphore", ports.ErrUnsupported)}
	}

	for failures := 0; ; failures++ {
		began := time.Now()
		over, err := e.term(ctx, fn)
		if over {
			return err
		}
		if err == nil || time.Since(began) > e.maxBackoff {
			failures = 0
		}
		if err != nil {
			e.onError(err)
		}
		if !e.pause(ctx, failures) {
			return nil
		}
	}
}

// term is one campaign and, if it is won, one leadership. over says that Run has
// to return err; else there is to be another term, and err is what failed, if
// anything did.
func (e *Elector) term(ctx context.Context, fn func(context.Context) error) (over bool, err error) {
	e.mu.Lock()
	e.began = time.Now()
	e.mu.Unlock()
	lock, err := e.locks.Acquire(ctx, e.key, e.campaign...)
	switch {
	case err == nil:
		return e.lead(ctx, lock, fn)
	case ctx.Err() != nil:
		return true, nil
	case errors.Is(err, ports.ErrNotAcquired): // by a timeout of WithCampaign
		return false, nil
	}
	e.fail(err)
	return errors.Is(err, ports.ErrClosed), err
}

// lead runs fn under lock. Its results are those of term.
func (e *Elector) lead(ctx context.Context, lock ports.Lock, fn func(context.Context) error) (over bool, err error) {
	work, stepDown := context.WithCancelCause(ctx)
	defer stepDown(context.Canceled)
	e.elected(lock, stepDown)
	var worked, released error
	defer func() { e.steppedDown(released) }() // also if fn panics
	released = run(work, lock, func(held context.Context) error {
		if held.Err() == nil { // ctx may have ended in the moment of the grant
			worked = fn(held)
		}
		return nil
	})

	resigned := errors.Is(context.Cause(work), ErrResigned)
	if stopped := ctx.Err() != nil; stopped || resigned {
		if errors.Is(worked, work.Err()) || errors.Is(worked, context.Cause(work)) {
			worked = nil // it was told to stop
		}
		return stopped, errors.Join(worked, released)
	}
	lost := errors.Is(lock.Err(), ports.ErrLost) || errors.Is(released, ports.ErrLost)
	err = errors.Join(worked, released)
	if worked == nil && !lost {
		return true, err // the work is done
	}
	e.fail(err)
	return false, err
}

// elected notes that this process leads.
func (e *Elector) elected(lock ports.Lock, stepDown func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lock, e.stepDown, e.steps = lock, stepDown, make(chan struct{})
	e.failure = nil
	e.announce(true)
	go func() {
		<-lock.Done()
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.lock == lock { // else the news is old
			e.announce(false)
		}
	}()
}

// steppedDown notes that the work has stopped and the lock is given back.
func (e *Elector) steppedDown(released error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stepDown, e.released = nil, released
	close(e.steps)
}

// fail keeps a failure for Check.
func (e *Elector) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failure, e.began = err, time.Time{}
}

// announce tells Changes, in the place of what nobody has received yet. The
// caller holds e.mu.
func (e *Elector) announce(leader bool) {
	if e.over || e.leads == leader {
		return
	}
	e.leads = leader
	select {
	case <-e.changes:
	default:
	}
	e.changes <- leader
}

// end closes Changes.
func (e *Elector) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lock != nil && e.lock.Err() != nil {
		e.announce(false) // if the goroutine that does it has not come to it yet
	}
	e.over = true
	close(e.changes)
}

// pause waits before another campaign, and reports whether there is to be one.
func (e *Elector) pause(ctx context.Context, failures int) bool {
	d := e.minBackoff
	for range failures {
		if d *= 2; d >= e.maxBackoff {
			d = e.maxBackoff
			break
		}
	}
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// IsLeader reports whether this process leads now. It asks nobody: it turns
// false when the loss of the lock is noticed, at the latest with the lock's
// release, and true before the work begins.
func (e *Elector) IsLeader() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lock != nil && e.lock.Err() == nil
}

// Changes returns a channel that receives true when this process begins to lead
// and false when it no longer does. It is for one receiver, and always has the
// newest state: a receiver that is slow misses those in between. It is closed
// when Run returns.
func (e *Elector) Changes() <-chan bool { return e.changes }

// Resign has this process step down: the context of its work ends with the cause
// ErrResigned, and the lock is given back when the work has stopped. Whoever
// waits leads then; this process campaigns again after a pause. Resign returns
// when that is done, with what the release returned, or when ctx ends, with its
// cause; the work stops all the same then. It returns ports.ErrNotHeld if this
// process does not lead.
//
// Do not wait for it in the work itself, which it waits for: return from there
// instead.
func (e *Elector) Resign(ctx context.Context) error {
	e.mu.Lock()
	stepDown, steps := e.stepDown, e.steps
	e.mu.Unlock()
	if stepDown == nil {
		return &ports.LockError{Op: "release", Key: e.key, Err: ports.ErrNotHeld}
	}
	stepDown(ErrResigned)
	select {
	case <-steps:
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.released
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Check is for a readiness or liveness probe: it returns nil if this process
// leads, or waits to do so, and else an error that says what is wrong:
//   - Run was not called or has returned;
//   - the lock is lost, and the work under it has not stopped yet;
//   - the last campaign or leadership ended in an error, and no later campaign
//     has got as far as waiting in line. One that has been under way for
//     DefaultLivenessWindow is taken to have.
//
// It asks nobody, and returns at once.
func (e *Elector) Check(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.started || e.over:
		return fmt.Errorf("pglock: the elector for %.128q does not run", e.key)
	case e.stepDown != nil:
		if err := e.lock.Err(); errors.Is(err, ports.ErrLost) {
			return fmt.Errorf("pglock: the work under %.128q has not stopped yet: %w", e.key, err)
		}
		return nil
	case e.failure != nil && (e.began.IsZero() || time.Since(e.began) < DefaultLivenessWindow):
		return fmt.Errorf("pglock: no leadership under %.128q: %w", e.key, e.failure)
	}
	return nil
}
