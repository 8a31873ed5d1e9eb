package pglock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

const (
	// slice is the longest single wait at the server: half of PostgreSQL's
	// default deadlock_timeout of 1 s. A wait that ends before that time is
	// never seen by the deadlock detector, and holds back neither CREATE INDEX
	// CONCURRENTLY nor vacuum for longer.
	slice = 500 * time.Millisecond

	// answerGrace is how long a call waits, past its deadline, for a first
	// answer that is still under way: the answer says whether the lock is
	// contended or the server silent.
	answerGrace = 250 * time.Millisecond

	// tryPatience is how long a call that does not wait for a rival waits for
	// a session, if nothing else bounds it.
	tryPatience = time.Second

	// interruptPause keeps a waiter whose slices are cut short, by a tiny
	// statement_timeout for example, from spinning.
	interruptPause = 50 * time.Millisecond

	// maxStale bounds how many dead connections in a row one attempt throws
	// away before it reports the last one's error. A pool holds that many after a
	// server restart only if it keeps that many idle.
	maxStale = 100
)

// errRefused is the answer to a call that only tries: someone else has the
// lock, or is before us in the queue for it.
var errRefused = errors.New("refused")

// queue is what the manager does about one lock ID. All fields are guarded by
// Manager.mu.
//
// At most one contender asks the server, on behalf of whoever is first in the
// queue at the time: a waiter that leaves, for whatever reason, disturbs no
// statement, and the answer goes to the next. This is what makes the race
// between a grant and a cancellation a matter of memory alone.
type queue struct {
	id      int64
	waiters list.List // of *waiter, first come first served
	// holds has the holds that the server may still know of, the ending ones
	// too.
	holds     []*hold
	only      [1]*hold // where holds begins
	contender *contender
	tenure    tenure // of shared sessions
}

// waiter is one call of Acquire or TryAcquire in its queue.
type waiter struct {
	ctx      context.Context // for its values only
	key      string
	opts     ports.AcquireOptions
	deadline time.Time // zero if there is none
	try      bool      // does not wait for a rival
	onto     *hold     // has the session to lock on; nil for one of its own
	answer   chan answer
	warm     ports.Session // on which this call asks for itself; nil if it does not

	// guarded by Manager.mu:
	place     *list.Element // nil once it is answered or has left
	contended bool          // someone else was seen to hold the lock, or to be before us
}

// answer ends a call: a hold, or the reason why not.
type answer struct {
	hold *hold
	err  error
}

// take is Acquire and TryAcquire, and, if onto is not nil, one more lock on the
// session of that hold.
func (m *Manager) take(ctx context.Context, key string, onto *hold, try bool, opts ports.AcquireOptions) (*hold, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	w := &waiter{
		ctx:    lasting(ctx),
		key:    key,
		opts:   opts,
		try:    try || opts.Timeout == 0,
		onto:   onto,
		answer: make(chan answer, 1),
	}
	var expired <-chan time.Time
	if opts.Timeout > 0 {
		w.deadline = time.Now().Add(opts.Timeout)
		timer := time.NewTimer(opts.Timeout)
		defer timer.Stop()
		expired = timer.C
	}
	if d, ok := ctx.Deadline(); ok && (w.deadline.IsZero() || d.Before(w.deadline)) {
		w.deadline = d
	}
	var impatient <-chan time.Time
	if w.try && w.deadline.IsZero() {
		ticker := time.NewTicker(tryPatience)
		defer ticker.Stop()
		impatient = ticker.C
	}

	q, c, err := m.enqueue(w)
	if err != nil {
		return nil, m.explain(err, nil)
	}
	if w.warm != nil {
		c.askHere(ctx, w)
	}
	for {
		select {
		case a := <-w.answer:
			return a.hold, m.explain(a.err, nil)
		case <-impatient:
			// Only the lack of a session ends a try before its answer.
			if m.starved(q) {
				return m.leave(q, w, context.DeadlineExceeded)
			}
		case <-expired:
			return m.expire(q, w, context.DeadlineExceeded)
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return m.expire(q, w, ended(ctx))
			}
			return m.leave(q, w, ended(ctx))
		}
	}
}

// lasting is ctx without its end.
func lasting(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// ended is why ctx is done, as both its error and its cause.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// expire ends a wait whose time is up. If nothing is known yet of the lock, it
// waits a little for the answer that is under way.
func (m *Manager) expire(q *queue, w *waiter, why error) (*hold, error) {
	m.mu.Lock()
	known := w.contended
	m.mu.Unlock()
	if !known && !m.starved(q) {
		grace := time.NewTimer(answerGrace)
		defer grace.Stop()
		select {
		case a := <-w.answer:
			return a.hold, m.explain(a.err, why)
		case <-grace.C:
		}
	}
	return m.leave(q, w, why)
}

// request is what to ask of a session for one lock.
func (m *Manager) request(id int64, opts ports.AcquireOptions, wait time.Duration) ports.LockRequest {
	return ports.LockRequest{ID: id, Mode: opts.Mode, Wait: wait, Fencing: opts.Fencing, HolderID: m.holderID, Liveness: m.window}
}

// explain turns a refusal into the error of the call: why, if not nil, is what
// ended its wait. Other errors, and nil, stay as they are.
func (m *Manager) explain(err, why error) error {
	if !errors.Is(err, errRefused) {
		return err
	}
	m.mu.Lock()
	m.stats.Contended++
	m.mu.Unlock()
	if why == nil {
		return errRefused
	}
	return fmt.Errorf("%w: %w", ports.ErrNotAcquired, why)
}

// enqueue puts w into the queue of its ID. It returns errRefused for a try that
// cannot succeed. If w is to ask for the lock itself, on w.warm, it does so with
// the contender.
func (m *Manager) enqueue(w *waiter) (*queue, *contender, error) {
	id := m.KeyID(w.key)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, ports.ErrClosed
	}
	if w.onto != nil && len(m.carriers) > 0 && !w.onto.live() {
		return nil, nil, w.onto.err
	}
	q := m.queues[id]
	if q == nil {
		q = &queue{id: id}
		q.holds = q.only[:0]
		m.queues[id] = q
	}
	w.contended = !q.admits(w.opts.Mode) || q.blocked()
	if w.try && w.contended {
		return nil, nil, errRefused
	}
	if w.try && q.waiters.Len() == 0 && len(m.carriers) == 0 {
		// A contender that waits for nobody any more would keep this call
		// until its slice ends. It finds out that it was let go.
		q.contender = nil
	}
	switch {
	case w.onto == nil:
		w.place = q.waiters.PushBack(w)
	case len(m.carriers) == 0:
		m.pushAhead(q, w)
	default:
		w.place = q.waiters.PushBack(w)
		w.onto.next.q, w.onto.next.w = q, w
	}
	m.lendSpare(q, w)
	m.advance(q)
	c := q.contender
	if c != nil && w.opts.Polling == 0 {
		c.stir()
	}
	return q, c, nil
}

// pushAhead puts w, which has a session, before all who have none, and takes the
// queue from a contender that still waits for one: that session may be w's own.
// Otherwise a set that holds the last session and one who waits for a session
// would wait for each other. The caller holds m.mu.
func (m *Manager) pushAhead(q *queue, w *waiter) {
	w.place = q.waiters.PushBack(w)
	for e := q.waiters.Front(); e != w.place; e = e.Next() {
		if e.Value.(*waiter).onto == nil {
			q.waiters.MoveBefore(w.place, e)
			break
		}
	}
	if c := q.contender; c != nil && c.starved {
		c.letGo()
		q.contender = nil
	}
}

// leave takes w out of its queue. If an answer came first, that is the result:
// a lock that is granted in the moment of the cancellation is owned by the
// caller, not dropped.
func (m *Manager) leave(q *queue, w *waiter, why error) (*hold, error) {
	m.mu.Lock()
	if w.place == nil {
		m.mu.Unlock()
		a := <-w.answer
		return a.hold, m.explain(a.err, why)
	}
	q.remove(w)
	var err error
	switch {
	case w.contended:
		err = errRefused
	case q.contender != nil && (q.contender.starved || q.contender.unanswered):
		err = fmt.Errorf("%w: %w", m.exhausted(), why)
	default:
		err = fmt.Errorf("no answer from the server yet: %w", why)
	}
	m.advance(q)
	m.mu.Unlock()
	return nil, m.explain(err, why)
}

// starved reports whether what q lacks is a session.
func (m *Manager) starved(q *queue) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return q.contender != nil && q.contender.starved
}

// admits reports whether the holds of this manager leave room for one more of
// this mode. The caller holds Manager.mu.
func (q *queue) admits(mode ports.Mode) bool {
	for _, h := range q.holds {
		if mode == ports.Exclusive || h.Info().Mode == ports.Exclusive {
			return false
		}
	}
	return true
}

// blocked reports whether the first in the queue is known to wait for someone
// else. The caller holds Manager.mu.
func (q *queue) blocked() bool {
	w := q.head()
	return w != nil && w.contended
}

// head is the first waiter; nil if there is none. The caller holds Manager.mu.
func (q *queue) head() *waiter {
	if e := q.waiters.Front(); e != nil {
		return e.Value.(*waiter)
	}
	return nil
}

// all returns the waiters in order. The caller holds Manager.mu.
func (q *queue) all() []*waiter {
	ws := make([]*waiter, 0, q.waiters.Len())
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		ws = append(ws, e.Value.(*waiter))
	}
	return ws
}

// remove takes w out. The caller holds Manager.mu.
func (q *queue) remove(w *waiter) {
	q.waiters.Remove(w.place)
	w.place = nil
}

// answerOne ends the call of w. The caller holds Manager.mu.
func (q *queue) answerOne(w *waiter, a answer) {
	q.remove(w)
	w.answer <- a
}

// answerAll ends every call in the queue. The caller holds Manager.mu.
func (q *queue) answerAll(a answer) {
	for _, w := range q.all() {
		q.answerOne(w, a)
	}
}

// block marks every waiter as contended and refuses those that only try. The
// caller holds Manager.mu.
func (q *queue) block() {
	for _, w := range q.all() {
		w.contended = true
		if w.try {
			q.answerOne(w, answer{err: errRefused})
		}
	}
}

// advance does what the state of q calls for: it starts a contender if the
// first waiter may contend and there is none, lets the contender go if nobody
// waits, and forgets a queue that is empty. The caller holds Manager.mu.
func (m *Manager) advance(q *queue) {
	w := q.head()
	switch {
	case w == nil:
		if c := q.contender; c != nil {
			c.letGo()
		}
		m.forget(q)
	case q.contender != nil:
		// It looks at the queue again when its statement is done.
	case !q.admits(w.opts.Mode):
		// A hold of this manager is in the way; its end advances the queue.
		q.block()
	case len(m.carriers) > 0:
		m.carry(q, w)
	case w.onto != nil:
		q.contender = &contender{m: m, q: q, wake: make(chan struct{}, 1)}
		m.running++
		go q.contender.extend(w)
	case m.sessionLimit() < 0:
		q.answerAll(answer{err: m.exhausted()})
		m.advance(q)
	default:
		q.contender = &contender{m: m, q: q, wake: make(chan struct{}, 1)}
		m.admit(q.contender)
	}
}

// forget drops q if there is nothing to know of it. The caller holds m.mu.
func (m *Manager) forget(q *queue) {
	if q.head() == nil && len(q.holds) == 0 && q.contender == nil && !q.tenure.mayGoOn() && m.queues[q.id] == q {
		delete(m.queues, q.id)
	}
}

// admit starts c if a session may be pinned for it, and has it wait for one
// otherwise. The caller holds Manager.mu.
func (m *Manager) admit(c *contender) {
	if m.hasRoom() {
		m.sessions++
		m.running++
		c.pending, c.starved = nil, false
		go c.contend(nil, nil)
		return
	}
	c.pending, c.starved, c.unanswered = m.pending.PushBack(c), true, true
}

// freeSession gives up one pinned session, or the right to one, and starts the
// next contender that waits for it. The caller holds Manager.mu.
func (m *Manager) freeSession() {
	m.sessions--
	// Each is looked at once: the limit may change at any time.
	for range m.pending.Len() {
		if !m.hasRoom() {
			return
		}
		m.admit(m.pending.Remove(m.pending.Front()).(*contender))
	}
}

// start runs f on a goroutine that Close waits for. The caller holds Manager.mu.
func (m *Manager) start(f func()) {
	m.running++
	go func() {
		defer func() {
			m.mu.Lock()
			m.exit()
			m.mu.Unlock()
		}()
		f()
	}()
}

// exit ends the goroutine of a contender or a hold. The caller holds
// Manager.mu.
func (m *Manager) exit() {
	m.running--
	if m.closed && m.running == 0 {
		close(m.idle)
	}
}

// contender asks the server for one lock on behalf of a queue, on a session
// and a goroutine of its own. When it is granted the lock, both become the
// hold's.
type contender struct {
	m *Manager
	q *queue
	// wake ends a sleep early; it has room for one signal.
	wake chan struct{}

	// guarded by Manager.mu:
	pending    *list.Element      // its place among those who wait for a session
	starved    bool               // lacks a session: none may be pinned, or the pool is full
	unanswered bool               // has lacked one, and has had no answer since
	cancelOpen context.CancelFunc // ends the opening of a session; nil when there is none
	ask        *ask               // on a shared session, in place of a session and a goroutine
}

// stir ends a sleep between two tries, because the queue has changed. The caller
// holds Manager.mu.
func (c *contender) stir() {
	if c.ask != nil {
		c.ask.hurry()
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// letGo tells c that nobody waits any more. A statement under way is left to
// end by itself, which takes a slice at most and costs no connection; whoever
// comes meanwhile takes c over. The caller holds Manager.mu.
func (c *contender) letGo() {
	if c.ask != nil {
		c.ask.letGo()
		return
	}
	c.stir()
	if c.cancelOpen != nil {
		c.cancelOpen()
	}
	if c.pending != nil {
		c.m.pending.Remove(c.pending)
		c.pending = nil
		c.q.contender = nil
	}
}

// turn is one decision of a contender.
type turn struct {
	w    *waiter // the first in the queue; nil if c has to stop
	wait time.Duration
	poll time.Duration // sleep for about this long after a refusal; 0 to wait at the server
}

// next decides what c does now. The first statement of a contender only tries,
// so that whether the lock is contended is known after one round trip. If
// there is nothing to do for c, which serves those who lock on the session of
// onto, or on one of their own if that is nil, it unlinks c; who comes first
// then starts another one.
func (c *contender) next(first bool, onto *hold) turn {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	w := c.q.head()
	if c.q.contender != c || w == nil || w.onto != onto || !c.q.admits(w.opts.Mode) {
		if c.q.contender == c {
			c.q.contender = nil
			c.m.advance(c.q)
		}
		return turn{}
	}
	t := turn{w: w, poll: c.q.polling()}
	if !first && !w.try && t.poll == 0 {
		t.wait = min(slice, c.q.patience())
	}
	return t
}

// polling is the interval at which to poll: the shortest that a waiter asked
// for, or 0 if any of them waits at the server. The caller holds Manager.mu.
func (q *queue) polling() time.Duration {
	var every time.Duration
	for _, w := range q.all() {
		if w.opts.Polling == 0 {
			return 0
		}
		if every == 0 || w.opts.Polling < every {
			every = w.opts.Polling
		}
	}
	return every
}

// patience is how long the most patient waiter still waits, and never less
// than it takes the server to tell a wait from none. The caller holds
// Manager.mu.
func (q *queue) patience() time.Duration {
	longest := time.Millisecond
	for _, w := range q.all() {
		if w.deadline.IsZero() {
			return slice
		}
		longest = max(longest, time.Until(w.deadline))
	}
	return longest
}

// attempt is one statement that asked for the lock, and its answer.
type attempt struct {
	turn
	sent  time.Time
	req   ports.LockRequest
	grant ports.Grant
	err   error
}

// attempt asks for the lock on s.
func (c *contender) attempt(s ports.Session, t turn) *attempt {
	a := &attempt{turn: t, sent: time.Now(), req: c.m.request(c.q.id, t.w.opts, t.wait)}
	a.grant, a.err = c.m.lock(t.w.ctx, s, a.req)
	return a
}

// contend contends until the lock is granted or nobody waits for it, and keeps
// what it gets. If s is not nil, a is an attempt on it that has been made.
func (c *contender) contend(s ports.Session, a *attempt) {
	first := true // the next statement is the first of this contender
	stale := 0    // sessions in a row that were dead when they came
	for {
		fresh := s == nil || a != nil
		if a == nil {
			t := c.next(first, nil)
			if t.w == nil {
				c.stop(s)
				return
			}
			if s == nil {
				var err error
				s, err = c.pin(t.w.ctx)
				if errors.Is(err, ports.ErrSessionEnded) && stale < maxStale {
					stale++ // of the proof
					continue
				}
				if err != nil {
					c.fail(err)
					continue
				}
				if s == nil {
					continue // nobody waits any more, or the pool is full
				}
			}
			a = c.attempt(s, t)
		}
		t, err := a.turn, a.err
		switch {
		case err != nil && errors.Is(err, ports.ErrSessionEnded) && (!fresh || stale < maxStale):
			// The session died, before or during the wait. It held nothing
			// that anyone relied on: go on with another one.
			c.m.destroy(s, err)
			s = nil
			if fresh {
				stale++
			} else {
				c.sleep(interruptPause)
			}
		case err != nil:
			c.m.destroy(s, err)
			s = nil
			c.fail(err)
		case a.grant.Granted:
			young := c.m.hot(s, a.sent)
			if h := c.deliver(s, a, young); h != nil {
				runtime.Gosched() // first of all, whoever waited for the lock goes on
				if young {
					h.keepSoon()
				} else {
					h.keep()
				}
				return
			}
			// Nobody wants it in this mode any more.
			if held, err := c.m.unlock(t.w.ctx, s, a.req.ID, a.req.Mode); err != nil || !held {
				c.m.destroy(s, err)
				s = nil
			}
			first, stale = true, 0
		default:
			// After a refused try, the next in the queue tries first, too.
			first, stale = t.w.try, 0
			c.refused(t.w)
			if t.poll > 0 {
				c.pause(s, t.poll)
				return
			}
			if a.grant.Interrupted {
				c.sleep(interruptPause)
			}
		}
		a = nil
	}
}

// pin pins a session, on a setup that has been proved.
func (c *contender) pin(ctx context.Context) (ports.Session, error) {
	if err := c.m.ensureVerified(ctx); err != nil {
		return nil, err
	}
	return c.open(ctx)
}

// open pins a session. It returns neither a session nor an error if c should
// look at its queue again.
func (c *contender) open(ctx context.Context) (ports.Session, error) {
	m := c.m
	inUse, limit := m.pool.Usage()
	full := limit > 0 && inUse >= limit
	ctx, cancel := context.WithTimeout(ctx, m.window)
	defer cancel()
	m.mu.Lock()
	if w := c.q.head(); c.q.contender != c || w == nil || w.onto != nil {
		m.mu.Unlock()
		return nil, nil
	}
	if s := m.warm(); s != nil {
		m.mu.Unlock()
		return s, nil
	}
	c.cancelOpen, c.starved, c.unanswered = cancel, full, c.unanswered || full
	m.mu.Unlock()

	s, err := m.open(ctx)

	m.mu.Lock()
	defer m.mu.Unlock()
	c.cancelOpen, c.starved = nil, false
	switch {
	case err == nil:
		m.pinned[s] = false
		return s, nil
	case ctx.Err() == nil:
		return nil, err
	case full || errors.Is(ctx.Err(), context.Canceled):
		// The pool may have room now, or c was let go.
		return nil, nil
	default:
		return nil, fmt.Errorf("no session could be opened within %v: %w", m.window, err)
	}
}

// fail answers everybody in the queue with an error that concerns all who have
// no session.
func (c *contender) fail(err error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.q.contender == c {
		for _, w := range c.q.all() {
			if w.onto == nil {
				c.q.answerOne(w, answer{err: err})
			}
		}
	}
}

// refused notes that someone else has the lock. w is the waiter for which the
// server was asked; it may have left.
func (c *contender) refused(w *waiter) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.q.contender == c {
		c.unanswered = false
		c.q.refuse(w)
	}
}

// refuse is what a refusal of the server means for the queue. The caller holds
// Manager.mu.
func (q *queue) refuse(w *waiter) {
	if w.try {
		// Only this one was answered: those behind it came later, and the
		// lock may have been free since.
		if w.place != nil {
			q.answerOne(w, answer{err: errRefused})
		}
		return
	}
	q.block()
}

// deliver hands a granted lock to the first waiter and returns its hold; nil if
// the lock is not wanted in this mode. One that is not young is the caller's to
// keep.
func (c *contender) deliver(s ports.Session, a *attempt, young bool) *hold {
	m, q := c.m, c.q
	m.mu.Lock()
	defer m.mu.Unlock()
	w := q.head()
	if q.contender != c || w == nil || w.onto != nil || w.opts.Mode != a.req.Mode || w.opts.Fencing && !a.req.Fencing {
		return nil
	}
	h := newHold(m, s, w.opts.HoldAtLeast, a.sent)
	h.kept = !young
	m.pinned[s] = true
	c.give(w, h, a.grant)
	return h
}

// give makes the lock that was granted part of h, and answers w, the first in
// the queue. The caller holds Manager.mu.
func (c *contender) give(w *waiter, h *hold, g ports.Grant) {
	c.q.contender = nil
	c.m.confer(c.q, w, h, g)
	c.m.advance(c.q)
}

// confer makes a lock part of h, and answers w, the first in the queue. The
// caller holds Manager.mu.
func (m *Manager) confer(q *queue, w *waiter, h *hold, g ports.Grant) {
	if !w.opts.Fencing {
		g.Token = 0 // it was asked for by one who has left
	}
	h.add(q, ports.LockInfo{
		Key:        w.key,
		ID:         q.id,
		Mode:       w.opts.Mode,
		HolderID:   m.holderID,
		AcquiredAt: time.Now(),
		PID:        g.PID,
		Database:   g.Database,
		Token:      g.Token,
	})
	h.contended = w.contended
	q.answerOne(w, answer{hold: h})
}

// sleep waits for about d, unless c is stirred.
func (c *contender) sleep(d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.wake:
	}
}

// pause gives the session back, sleeps between two tries, and has c started
// again if somebody still waits. It is the last thing that this goroutine does.
func (c *contender) pause(s ports.Session, every time.Duration) {
	m := c.m
	m.recycle(s)
	m.mu.Lock()
	m.freeSession()
	m.mu.Unlock()
	c.sleep(every)
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := c.q.head(); c.q.contender == c && w != nil && w.onto == nil {
		m.admit(c)
	} else if c.q.contender == c {
		c.q.contender = nil
		m.advance(c.q)
	}
	m.exit()
}

// stop ends a contender that has nothing more to do.
func (c *contender) stop(s ports.Session) {
	if s != nil {
		c.m.recycle(s)
	}
	c.m.mu.Lock()
	c.m.freeSession()
	c.m.exit()
	c.m.mu.Unlock()
}
