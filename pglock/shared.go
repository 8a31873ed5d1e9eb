package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

const (
	// firstPoll and lastPoll are the mean pauses after the first refusal of a
	// lock on a shared session, and after many: each is twice the one before
	// it. The first is below the length of a short hold; the last makes four
	// statements a second, however many keys are waited for.
	firstPoll = 4 * time.Millisecond
	lastPoll  = 256 * time.Millisecond

	// turnPause is how long a manager whose own goroutines wait for a key keeps
	// away from it, to let others in: longer than the longest pause of one who
	// polls, which is half as long again as lastPoll.
	turnPause = 400 * time.Millisecond

	// turnsAlone is how many turns a manager takes in a row without such a
	// pause when it has seen nobody else: so one who comes is let in after that
	// many slices, and one who is alone pauses for a tenth of the time at most.
	turnsAlone = 8

	// maxBatch bounds a statement, and so the time for which the answers to the
	// first in it are kept back. firstBatch is the bound while the size of the
	// server's lock table is not known; it is below that of any server.
	maxBatch   = 1000
	firstBatch = 64

	// linger is how long a shared session that carries nothing stays pinned,
	// for who comes next.
	linger = time.Second

	// loanTime is how long a carrier that is busy keeps its session from the
	// keeper, which has to come to its checks.
	loanTime = 100 * time.Millisecond
)

var errNoBatch = fmt.Errorf("%w: the sessions of this adapter cannot be shared; leave out WithSharedSessions", ports.ErrUnsupported)

// tenure is what a queue knows of its lock at the server, when that is on a
// shared session. All fields are guarded by Manager.mu.
//
// A server grants its session a lock that it has already, once more, so it must
// never be asked for one. While root is set, either there are holds, or an ask
// is on its way whose answer decides what becomes of the lock.
type tenure struct {
	root *hold // keeps the session that has the lock; nil if none has
	mode ports.Mode
	// since is the beginning of a row of holds of this manager; zero if there
	// is none. If several goroutines want the lock, the row goes on when it is
	// asked for again within firstPoll of its release: hardly anybody else can
	// have come between.
	since time.Time
	// busy: in this row, goroutines have waited for each other.
	busy bool
	// turns counts the rows since somebody else was seen to have the lock.
	turns int
	// freed is when the server said that the lock was given back; zero before
	// that, and if the row has ended then or went on.
	freed time.Time
}

// ask is a contender's wish to have its lock asked for on a shared session.
type ask struct {
	q *queue
	c *carrier
	// held: the session has the lock, and a token for its next hold is wanted.
	held bool
	// sent: an answer is under way.
	sent bool
	// what is being asked, and for whom.
	w       *waiter
	mode    ports.Mode
	fencing bool
	// every is the pause after the last refusal; round is the one that the ask
	// waits in, nil if its turn has come.
	every time.Duration
	round *round
}

// freed is a lock that has been given back, and is likely to be wanted again.
type freed struct {
	q  *queue
	at time.Time
}

// round is a set of asks that are sent again at one time.
type round struct {
	every time.Duration // what its asks have in common; 0 for one that none may join
	at    time.Time
	asks  map[*ask]struct{}
}

// give is a lock to be given back, or one that the manager keeps when one of its
// holds has ended; that hold needs the server's word that it was there.
type give struct {
	q    *queue
	mode ports.Mode
	kept bool
	h    *hold // has ended with it; nil if it was nobody's
	at   time.Time
}

// carrier is one shared session, with a goroutine of its own while it has
// anything to do. Whatever has arrived while one batch was under way makes the
// next one.
//
// Its session is kept, checked and watched by the keeper of a hold without a
// lock, the root. The carrier borrows it for its batches. When the root is
// lost, so is all that is on it.
type carrier struct {
	m *Manager
	// wake ends a sleep; it has room for one signal.
	wake chan struct{}

	// guarded by Manager.mu:
	running bool // has its goroutine
	root    *hold
	last    *hold             // root, and still when that has ended
	proved  time.Time         // the sending of what the session has last answered
	server  ports.BatchAnswer // the last; for its PID and Database
	asks    []*ask            // whose turn has come
	rounds  []*round
	gives   []give // all of them on root
	freed   []freed
	locks   int // that root's session has, those in gives too
	used    time.Time
	// bound ends the session if it takes too long to give locks back, or, when
	// the manager has closed, to end; nil while there is no need.
	bound *time.Timer
	lost  [][]any // to be logged
	// opening: a session is being opened; starved: the pool had no room.
	starved    bool
	cancelOpen context.CancelFunc
}

func newCarrier(m *Manager) *carrier {
	return &carrier{m: m, wake: make(chan struct{}, 1)}
}

// carrierOf picks the session for an ID. That it is always the same one saves
// tries that would come before the unlock on another. The caller holds mu.
func (m *Manager) carrierOf(id int64) *carrier {
	n := len(m.carriers)
	if limit := m.sessionLimit(); limit > 0 {
		n = min(n, limit)
	}
	return m.carriers[uint64(id)%uint64(n)]
}

// hasten ends the session in d, unless it is to be ended anyway. The caller
// holds Manager.mu.
func (c *carrier) hasten(d time.Duration) {
	if c.bound == nil && c.root != nil {
		c.bound = time.AfterFunc(d, c.root.s.Destroy)
	}
}

// stir ends a sleep of the carrier, because there is something to do.
func (c *carrier) stir() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// start sees to it that the carrier does what there is to do. The caller holds
// Manager.mu.
func (c *carrier) start() {
	if !c.running {
		c.running = true
		c.m.running++
		go c.run()
		return
	}
	c.stir()
}

// carry does for the first waiter of q, which the holds of q admit, what the
// state of the lock calls for. The caller holds m.mu.
func (m *Manager) carry(q *queue, w *waiter) {
	t := &q.tenure
	switch {
	case m.sessionLimit() < 0:
		q.answerAll(answer{err: m.exhausted()})
		m.advance(q)
	case t.root == nil && !w.try && t.over():
		t.since = time.Time{}
		t.turns++
		if a := m.newAsk(q); t.turns <= 2 || t.turns%turnsAlone == 1 {
			a.rest(turnPause)
		} else {
			a.queue()
		}
	case t.root == nil:
		m.newAsk(q).queue()
	case !t.root.live():
		// Its end is being told, which advances the queue.
	case w.opts.Fencing:
		m.newAsk(q).holding()
	default:
		m.grant(q, w, ports.Grant{PID: t.root.carrier.server.PID, Database: t.root.carrier.server.Database})
	}
}

// grant gives w, the first waiter of q, a hold of the lock that the manager
// has. The caller holds m.mu.
func (m *Manager) grant(q *queue, w *waiter, g ports.Grant) {
	c := q.contender
	if c == nil {
		c = &contender{m: m, q: q}
	}
	h := w.onto
	if h == nil {
		h = &hold{m: m, atLeast: w.opts.HoldAtLeast}
	} else {
		h.next.q, h.next.w = nil, nil
	}
	c.give(w, h, g)
}

// over reports whether the row of holds was long enough. The caller holds
// Manager.mu.
func (t *tenure) over() bool { return t.busy && !t.since.IsZero() && time.Since(t.since) >= slice }

// mayGoOn reports whether the row may go on without a hold of the lock now. The
// caller holds Manager.mu.
func (t *tenure) mayGoOn() bool { return t.root == nil && !t.since.IsZero() }

// passes reports whether the lock of q, which the manager has without a hold,
// goes to the first waiter without being given back. The caller holds m.mu.
func (m *Manager) passes(q *queue) bool {
	w := q.head()
	return w != nil && w.opts.Mode == q.tenure.mode && !q.tenure.over()
}

// settleQueue decides what becomes of the lock of q when one of its holds has
// ended, or when nobody wanted a grant. h is settled with the decision if the
// manager keeps the lock, and the server has lately said that it lives; and with
// the server's answer otherwise. The caller holds m.mu, and advances q afterwards.
func (m *Manager) settleQueue(q *queue, h *hold) {
	t := &q.tenure
	t.busy = t.busy || q.head() != nil
	c, now := t.root.carrier, time.Now()
	kept := len(q.holds) > 0 || q.contender != nil || m.passes(q)
	if age := now.Sub(c.proved); kept && (h == nil || age <= passFor) {
		m.settlePart(h, nil)
		if h == nil || c.bound != nil || age < passFor/2 {
			return
		}
		// So that nobody has to wait for the server's word, it is asked for early.
		h = nil
	}
	c.gives = append(c.gives, give{q, t.mode, kept, h, now})
	c.hasten(m.releaseBound())
	c.start()
	if !kept {
		t.root = nil
	}
}

// given notes what became of g. The caller holds Manager.mu.
func (c *carrier) given(g give, err error) {
	c.m.settlePart(g.h, err)
	if g.kept {
		return
	}
	t := &g.q.tenure
	if !t.busy {
		t.since = time.Time{}
		c.m.forget(g.q)
		return
	}
	t.freed = time.Now()
	c.freed = append(c.freed, freed{g.q, t.freed})
}

// forget ends the rows of holds whose locks have been free for a while. It
// returns when the next one ends. The caller holds Manager.mu.
func (c *carrier) forget() (next time.Time) {
	for len(c.freed) > 0 {
		f := c.freed[0]
		if end := f.at.Add(firstPoll); time.Now().Before(end) && !c.m.closed {
			return end
		}
		c.freed = c.freed[1:]
		if t := &f.q.tenure; t.freed.Equal(f.at) {
			t.since, t.busy, t.freed = time.Time{}, false, time.Time{}
			c.m.forget(f.q)
		}
	}
	c.freed = nil
	return next
}

// giveUp settles the locks of a hold on shared sessions that has ended, the
// last one first. The caller holds m.mu.
func (m *Manager) giveUp(h *hold) {
	if !errors.Is(h.err, ports.ErrReleased) {
		h.settled = h.err
	}
	h.unsettled = len(h.parts)
	for _, p := range slices.Backward(h.parts) {
		q := p.q
		q.holds = slices.DeleteFunc(q.holds, func(other *hold) bool { return other == h })
		if root := q.tenure.root; root != nil && root.live() {
			m.settleQueue(q, h)
		} else {
			// The session is over, or was when another of its holds ended.
			if root != nil {
				h.lostWith(root.err)
			} else {
				h.lostWith(errGone)
			}
			q.tenure = tenure{}
			m.settlePart(h, nil)
		}
		m.advance(q)
	}
	if q, w := h.next.q, h.next.w; w != nil && w.place != nil {
		q.answerOne(w, answer{err: h.err})
		m.advance(q)
	}
}

// lostWith notes that a release of h has found that its session was over. The
// caller holds Manager.mu.
func (h *hold) lostWith(err error) {
	if h.settled != nil {
		return
	}
	if !errors.Is(err, ports.ErrLost) {
		err = fmt.Errorf("%w: %w", ports.ErrLost, err)
	}
	h.settled = err
	h.m.stats.Lost++
	h.m.announce(func(os observers) { os.lost(h, err) })
}

// settlePart settles one lock of a hold that has ended, with what a release has
// to say about it. The caller holds m.mu.
func (m *Manager) settlePart(h *hold, err error) {
	if h == nil {
		return
	}
	if h.settled == nil {
		h.settled = err
	}
	if h.unsettled--; h.unsettled == 0 {
		h.finished.give()
	}
}

// ended tells all who hold a lock on the session of root that it has ended. It
// comes with the end of root. The caller holds Manager.mu.
func (c *carrier) ended(root *hold) {
	m := c.m
	m.held -= c.locks
	c.root, c.locks = nil, 0
	c.stir()
	if errors.Is(root.err, ports.ErrReleased) {
		return // it had no locks
	}
	if c.bound != nil {
		c.bound.Stop()
		c.bound = nil
	}
	gives := c.gives
	c.gives = nil
	for _, g := range gives {
		if g.h != nil {
			g.h.lostWith(root.err)
		}
		c.given(g, nil)
	}
	var lost []*hold
	for _, h := range m.holdsOn(root) {
		if h.endNow(root.err) { // a set is there once for each of its keys
			lost = append(lost, h)
		}
	}
	m.announce(func(os observers) {
		for _, h := range lost {
			os.ended(h, root.err)
		}
	})
	for _, a := range c.asks {
		a.robbed()
	}
	if len(lost) > 0 {
		c.lost = append(c.lost, []any{"locks", len(lost), "database", c.server.Database, "pid", c.server.PID, "error", root.err})
	}
}

// holdsOn returns the holds with a lock on the session of root. The caller holds
// m.mu.
func (m *Manager) holdsOn(root *hold) (holds []*hold) {
	for _, hs := range m.byKey {
		for _, h := range hs {
			if h.live() && slices.ContainsFunc(h.parts, func(p part) bool { return p.q.tenure.root == root }) {
				holds = append(holds, h)
			}
		}
	}
	return holds
}

// report logs what ended has told.
func (c *carrier) report() {
	c.m.mu.Lock()
	lost := c.lost
	c.lost = nil
	c.m.mu.Unlock()
	for _, args := range lost {
		c.m.logger.Error("locks lost", args...)
	}
}

// newAsk makes a contender for q that asks on a shared session. The caller
// holds m.mu.
func (m *Manager) newAsk(q *queue) *ask {
	var both struct { // one allocation
		contender contender
		ask       ask
	}
	both.ask = ask{q: q, c: m.carrierOf(q.id)}
	both.contender = contender{m: m, q: q, ask: &both.ask}
	q.contender = &both.contender
	return &both.ask
}

// queue has a sent with the next batch. The caller holds Manager.mu.
func (a *ask) queue() {
	a.round = nil
	a.q.contender.starved = a.c.starved
	a.c.asks = append(a.c.asks, a)
	a.c.start()
}

// holding is queue for a lock that the manager has, on the session that has it.
// The caller holds Manager.mu.
func (a *ask) holding() {
	a.held, a.c = true, a.q.tenure.root.carrier
	a.queue()
}

// later has a sent again after a pause, together with others that pause for as
// long. The caller holds Manager.mu.
func (a *ask) later(every time.Duration) {
	for _, r := range a.c.rounds {
		if r.every == every {
			a.join(r)
			return
		}
	}
	a.join(a.c.newRound(every, every/2+rand.N(every)))
}

// rest has a sent after exactly d. The caller holds Manager.mu.
func (a *ask) rest(d time.Duration) { a.join(a.c.newRound(0, d)) }

func (c *carrier) newRound(every, after time.Duration) *round {
	r := &round{every: every, at: time.Now().Add(after), asks: make(map[*ask]struct{})}
	c.rounds = append(c.rounds, r)
	return r
}

func (a *ask) join(r *round) {
	a.round = r
	r.asks[a] = struct{}{}
	a.c.start()
}

// letGo is contender.letGo: nobody waits any more. The answer to an ask that is
// under way decides by itself. The caller holds Manager.mu.
func (a *ask) letGo() {
	q, c := a.q, a.c
	switch {
	case a.sent:
		return
	case a.round != nil:
		delete(a.round.asks, a)
	default:
		c.asks = slices.DeleteFunc(c.asks, func(other *ask) bool { return other == a })
		if len(c.asks) == 0 && c.cancelOpen != nil {
			c.cancelOpen()
		}
	}
	q.contender = nil
	if a.held && q.tenure.root != nil && q.tenure.root.live() {
		c.m.settleQueue(q, nil)
	}
}

// hurry ends a pause that was meant for others than those who wait now. The
// caller holds Manager.mu.
func (a *ask) hurry() {
	if a.round != nil && a.round.every > lastPoll {
		delete(a.round.asks, a)
		a.every = firstPoll
		a.later(firstPoll)
	}
}

// run is the life of a carrier's goroutine.
func (c *carrier) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	stale := 0 // sessions in a row that were dead when they came
	for {
		c.m.mu.Lock()
		wait, busy := c.due()
		root := c.root
		switch {
		case busy:
			c.used = time.Now()
		case wait == 0 && root == nil:
			c.running = false
			c.m.exit()
			c.m.mu.Unlock()
			return
		}
		c.m.mu.Unlock()
		switch {
		case busy:
			stale = c.serve(stale)
		case wait == 0:
			// A failure is logged by the keeper, and costs the session.
			_ = root.release(context.Background())
		default:
			timer.Reset(wait)
			select {
			case <-c.wake:
			case <-timer.C:
			}
		}
	}
}

// due reports whether there is something to send, and if not, how long to wait;
// 0 to stop. The caller holds Manager.mu.
func (c *carrier) due() (wait time.Duration, busy bool) {
	now, next := time.Now(), c.forget()
	earlier := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	c.rounds = slices.DeleteFunc(c.rounds, func(r *round) bool {
		switch {
		case len(r.asks) == 0:
			return true
		case r.at.After(now):
			earlier(r.at)
			return false
		}
		for a := range r.asks {
			a.queue()
		}
		return true
	})
	if len(c.asks)+len(c.gives) > 0 {
		return 0, true
	}
	switch {
	case c.locks > 0 && next.IsZero():
		return time.Hour, false // until it is woken
	case c.locks > 0 || !next.IsZero():
	case c.m.closed || c.root == nil:
		return 0, false
	default:
		earlier(c.used.Add(linger))
	}
	return max(next.Sub(now), 0), false
}

// serve sends what there is to send. It counts, and is told, how many sessions
// in a row were dead when they came.
func (c *carrier) serve(stale int) int {
	root, fresh, err := c.session()
	switch {
	case errors.Is(err, ports.ErrSessionEnded) && stale < maxStale:
		return stale + 1 // of the proof
	case err != nil:
		c.fail(err)
		return 0
	case root == nil:
		return stale // nobody waits any more, or the pool is full
	}
	batcher, ok := root.s.(ports.Batcher)
	if !ok {
		c.fail(errNoBatch)
		return 0
	}
	var failed error
	refused := root.LendSession(context.Background(), func(s ports.Session) bool {
		for lent := time.Now(); ; {
			// Whom the last answer has concerned will mostly want something next.
			runtime.Gosched()
			b := c.take(root)
			if len(b.gives)+len(b.asks) == 0 {
				return true
			}
			retry := !fresh || stale < maxStale
			if failed = c.send(root, batcher, b, fresh, retry); failed != nil {
				return false
			}
			if fresh, stale = false, 0; time.Since(lent) >= loanTime {
				return true
			}
		}
	})
	if failed != nil {
		c.report()
	}
	if refused != nil && fresh && stale >= maxStale {
		c.fail(errors.Unwrap(refused)) // it ended before it was asked anything
	}
	if fresh && (failed != nil || refused != nil) {
		return stale + 1
	}
	return 0
}

// session returns the keeper of the session, and opens one if there is none;
// it is fresh then. It returns neither a keeper nor an error if c should look
// again at what there is to do.
func (c *carrier) session() (root *hold, fresh bool, err error) {
	m := c.m
	m.mu.Lock()
	if c.root != nil || len(c.asks) == 0 {
		defer m.mu.Unlock()
		return c.root, false, nil
	}
	if last := c.last; last != nil {
		c.last = nil
		settled := last.finished.channel()
		m.mu.Unlock()
		<-settled // its session is given up then
		m.mu.Lock()
	}
	if !m.hasRoom() {
		defer m.mu.Unlock()
		return nil, false, m.exhausted()
	}
	m.sessions++
	m.running++ // for the keeper
	m.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), m.window)
	defer cancel()
	var s ports.Session
	full := false
	if err = m.ensureVerified(context.Background()); err == nil {
		inUse, limit := m.pool.Usage()
		full = limit > 0 && inUse >= limit
		c.opens(cancel, full)
		s, err = m.open(ctx)
		c.opens(nil, false)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.freeSession()
		m.exit()
		switch {
		case ctx.Err() == nil:
			return nil, false, err
		case full || errors.Is(ctx.Err(), context.Canceled):
			return nil, false, nil
		default:
			return nil, false, fmt.Errorf("no session could be opened within %v: %w", m.window, err)
		}
	}
	root = newHold(m, s, 0, time.Now())
	root.carrier, root.kept = c, true
	c.root, c.last = root, root
	m.pinned[s] = true
	go root.keep()
	return root, true, nil
}

// opens notes that a session is being opened, or, with nil, no longer is, and
// whether the pool is full.
func (c *carrier) opens(cancel context.CancelFunc, full bool) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.cancelOpen, c.starved = cancel, full
	for _, a := range c.asks {
		a.q.contender.starved = full
	}
	if cancel != nil && len(c.asks) == 0 {
		cancel()
	}
}

// fail answers all who wait for the answer to an ask with an error.
func (c *carrier) fail(err error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	asks := c.asks
	c.asks = nil
	for _, a := range asks {
		a.fail(err)
	}
}

// robbed notes that the session on which a was to be sent is over, and with it
// the lock if there was one. The caller holds Manager.mu.
func (a *ask) robbed() {
	if a.held {
		a.held = false
		a.q.tenure = tenure{}
	}
}

// fail answers all in the queue of a. The caller holds Manager.mu.
func (a *ask) fail(err error) {
	q, m := a.q, a.c.m
	q.contender = nil
	q.answerAll(answer{err: err})
	m.advance(q)
}

// batch is what is sent in one statement.
type batch struct {
	gives []give
	asks  []*ask
}

// unlocks is what the server is to unlock.
func (b batch) unlocks() (us []ports.Unlock) {
	for _, g := range b.gives {
		if !g.kept {
			us = append(us, ports.Unlock{ID: g.q.id, Mode: g.mode})
		}
	}
	return us
}

// take takes what is to be sent next on the session of root.
func (c *carrier) take(root *hold) (b batch) {
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.root != root {
		return b
	}
	n := min(len(c.gives), maxBatch)
	b.gives = slices.Clone(c.gives[:n])
	if c.gives = slices.Delete(c.gives, 0, n); len(c.gives) > 0 {
		return b // a lock must be given back before it is asked for again
	}

	asks := c.asks
	c.asks = nil
	for i, a := range asks {
		room := maxBatch - len(b.gives) - len(b.asks)
		switch {
		case m.mostHeld > 0:
			room = min(room, m.mostHeld-m.held-m.asking)
		case !m.told:
			room = min(room, firstBatch-m.held-m.asking)
		}
		w := a.q.head()
		switch {
		case a.held && (w.opts.Mode != a.q.tenure.mode || !w.opts.Fencing):
			// It was for one who has left.
			a.q.contender = nil
			m.settleQueue(a.q, nil)
			m.advance(a.q)
			continue
		case a.held:
		case m.mostHeld > 0 && m.held >= m.mostHeld && len(b.gives) == 0:
			a.fail(m.tooMany())
			continue
		case room <= 0 && len(b.gives)+len(b.asks) == 0:
			a.later(firstPoll) // another session is asking for the rest
			continue
		case room <= 0:
			c.asks = append(c.asks, asks[i:]...)
			return b
		}
		a.sent, a.w, a.mode, a.fencing = true, w, w.opts.Mode, w.opts.Fencing
		b.asks = append(b.asks, a)
		if !a.held {
			m.asking++
		}
	}
	return b
}

// tooMany is the error of a call for whose lock there is no room. The caller
// holds mu.
func (m *Manager) tooMany() error {
	return fmt.Errorf("%w: this manager has %d on its shared sessions, half of what the server has room for; release locks sooner, or raise max_locks_per_transaction at the server",
		ports.ErrTooManyLocks, m.held)
}

// send sends a batch and acts upon its answer. An error ends the session: any
// lock of the batch may be held. Then retry says whether the asks are to be
// sent again on another session if this one was over; at once if it was fresh.
func (c *carrier) send(root *hold, s ports.Batcher, b batch, fresh, retry bool) error {
	m := c.m
	req := ports.Batch{HolderID: m.holderID, Liveness: m.window, Unlocks: b.unlocks()}
	for _, a := range b.asks {
		req.Tries = append(req.Tries, ports.Try{ID: a.q.id, Mode: a.mode, Fencing: a.fencing, Held: a.held})
	}
	sent := time.Now()
	got, err := bounded(root.s, m.releaseBound(), func() (ports.BatchAnswer, error) { return s.Batch(context.Background(), req) })

	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range b.asks {
		if !a.held {
			m.asking--
		}
	}
	if err == nil && slices.Contains(got.Unlocked, false) {
		err = fmt.Errorf("%w: %w", ports.ErrSessionEnded, errGone)
	}
	if err == nil && root.err != nil {
		err = fmt.Errorf("%w: %w", ports.ErrSessionEnded, root.err)
	}
	if err == nil {
		c.proved = sent
		c.answered(root, b, got)
		return nil
	}
	if c.bound != nil && !c.bound.Stop() {
		err = fmt.Errorf("the server did not confirm an unlock within %v, and the session was ended (%v)", m.releaseBound(), err)
	}
	c.broke(root, b, got, err)
	go root.s.Destroy()
	if !errors.Is(err, ports.ErrSessionEnded) {
		retry = false
	}
	for _, a := range b.asks {
		a.sent = false
		a.robbed()
		switch {
		case a.q.head() == nil:
			a.q.contender = nil
			m.advance(a.q)
		case retry && fresh:
			a.queue()
		case retry:
			a.later(interruptPause)
		default:
			a.fail(err)
		}
	}
	return err
}

// answered acts upon the answer to a batch. The caller holds Manager.mu.
func (c *carrier) answered(root *hold, b batch, got ports.BatchAnswer) {
	m := c.m
	c.server = ports.BatchAnswer{PID: got.PID, Database: got.Database}
	m.told = true
	if got.LockTable > 0 {
		m.mostHeld = max(got.LockTable/2, 1)
	}
	c.locks -= len(got.Unlocked)
	m.held -= len(got.Unlocked)
	if len(b.gives) > 0 && !m.closed {
		c.bound.Stop()
		c.bound = nil
		if len(c.gives) > 0 {
			c.hasten(m.releaseBound() - time.Since(c.gives[0].at))
		}
	}
	for _, g := range b.gives {
		c.given(g, nil)
	}
	for i, a := range b.asks {
		a.sent = false
		if got.Granted[i] {
			a.granted(root, got)
		} else {
			a.refused()
		}
	}
}

// granted acts upon a grant. The caller holds Manager.mu.
func (a *ask) granted(root *hold, got ports.BatchAnswer) {
	q, c, m := a.q, a.c, a.c.m
	t := &q.tenure
	if !a.held {
		c.locks++
		m.held++
		t.root, t.mode, t.freed = root, a.mode, time.Time{}
		if t.since.IsZero() {
			t.since = time.Now()
		}
	}
	q.contender = nil
	if w := q.head(); w != nil && w.opts.Mode == a.mode && (a.fencing || !w.opts.Fencing) {
		m.grant(q, w, ports.Grant{PID: got.PID, Database: got.Database, Token: got.Token})
		return
	}
	// Nobody wants it like this any more.
	m.settleQueue(q, nil)
	m.advance(q)
}

// refused acts upon a refusal. The caller holds Manager.mu.
func (a *ask) refused() {
	q, m := a.q, a.c.m
	q.tenure = tenure{}
	// Of one who has left, the answer says nothing to those who have come since.
	stale := a.w.place == nil
	if !stale {
		q.refuse(a.w)
	}
	switch {
	case q.head() == nil:
		q.contender = nil
		m.advance(q)
	case stale || a.w.try:
		a.queue()
	default:
		a.every = min(max(2*a.every, firstPoll), lastPoll)
		if polling := q.polling(); polling > 0 {
			a.every = polling
		}
		a.later(a.every)
	}
}

// broke tells all who have a lock on the session, or had one in the batch, that
// it is over. The caller holds Manager.mu.
func (c *carrier) broke(root *hold, b batch, got ports.BatchAnswer, err error) {
	root.endNow(fmt.Errorf("%w: %w", ports.ErrLost, err))
	unlocked := got.Unlocked
	for _, g := range b.gives {
		confirmed := false
		if !g.kept && len(unlocked) > 0 {
			confirmed, unlocked = unlocked[0], unlocked[1:]
		}
		switch {
		case g.h == nil || confirmed:
			c.given(g, nil)
		case errors.Is(err, ports.ErrSessionEnded):
			g.h.lostWith(err)
			c.given(g, nil)
		default:
			c.given(g, fmt.Errorf("the server did not confirm the unlock, and its session was ended: %w", err))
		}
	}
}
