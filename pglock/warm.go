package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// keepWarm, warmAfter: while locks follow each other within keepWarm, from the
// warmAfter-th in a row on, a session that has given its lock back stays pinned
// for that long, with the settings of a holder. To set a session up and put it
// back costs more than the lock itself.
//
// A caller who finds a warm session that can be interrupted, and nobody else who
// wants the key, asks the server from its own goroutine; and a hold that is
// released within keepAfter, on such a session or when a wait has ended at such a
// time, never gets a keeper: to wake another goroutine, twice for the grant and
// twice for the release, takes as long as the statements do.
const (
	keepWarm  = 50 * time.Millisecond
	warmAfter = 10
	keepAfter = 10 * time.Millisecond
)

var errHurried = errors.New("the server did not answer before the call had to end, and the session was ended")

// spare is a session that is kept warm.
type spare struct {
	s     ports.Session
	since time.Time
}

// staysWarm decides whether the session of a hold whose lock was given back is
// kept: if locks are wanted all the time, and the pool has connections to spare.
func (m *Manager) staysWarm(h *hold) bool {
	inUse, limit := m.pool.Usage()
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.asked.Sub(m.lastRelease) > m.keepWarm {
		m.inARow = 0
	}
	m.inARow++
	m.lastRelease = time.Now()
	return m.inARow >= m.warmAfter && !m.closed && !h.lent && h.carrier == nil && (limit == 0 || inUse < limit)
}

// hot reports whether locks follow each other so closely that one that was asked
// for then, on s, will hardly be held for long.
func (m *Manager) hot(s ports.Session, asked time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inARow >= m.warmAfter && asked.Sub(m.lastRelease) <= m.keepWarm && interruptible(s)
}

func interruptible(s ports.Session) bool {
	i, ok := s.(ports.Interruptible)
	return ok && i.Interruptible()
}

// park makes s a spare. The caller holds Manager.mu.
func (m *Manager) park(s ports.Session) {
	delete(m.pinned, s)
	m.spares = append(m.spares, spare{s, time.Now()})
	switch {
	case m.closed:
		m.coolDown()
	case m.cooling == nil:
		m.cooling = time.AfterFunc(m.keepWarm, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.coolDown()
		})
	}
}

// warm takes a spare; nil if there is none. The caller holds Manager.mu.
func (m *Manager) warm() ports.Session {
	last := len(m.spares) - 1
	if last < 0 {
		return nil
	}
	s := m.spares[last].s
	m.spares = slices.Delete(m.spares, last, last+1)
	m.pinned[s] = false
	return s
}

// coolDown recycles the sessions that were kept warm for long enough, or all of
// them if the manager is closed. The caller holds Manager.mu.
func (m *Manager) coolDown() {
	for len(m.spares) > 0 {
		if left := time.Until(m.spares[0].since.Add(m.keepWarm)); left > 0 && !m.closed {
			m.cooling.Reset(left)
			return
		}
		s := m.spares[0].s
		m.spares = slices.Delete(m.spares, 0, 1)
		m.start(func() { m.recycle(s) })
	}
	if m.cooling != nil {
		m.cooling.Stop()
		m.cooling = nil
	}
}

// lendSpare lets w, which is alone in its queue, ask for the lock by itself, if
// there is a warm session for it. The caller holds Manager.mu.
func (m *Manager) lendSpare(q *queue, w *waiter) {
	if len(m.spares) == 0 || w.onto != nil || q.contender != nil || len(q.holds) > 0 || q.waiters.Len() > 1 || m.proofIsDue() {
		return
	}
	if !interruptible(m.spares[len(m.spares)-1].s) || !m.hasRoom() {
		return
	}
	w.warm = m.warm()
	m.sessions++
	m.running++
	q.contender = &contender{m: m, q: q, wake: make(chan struct{}, 1)}
}

// askHere asks for the lock once, on this goroutine, on the session that
// lendSpare has found. If that does not settle the matter, it goes on elsewhere.
func (c *contender) askHere(ctx context.Context, w *waiter) {
	t := c.next(true, nil)
	if t.w == nil {
		c.stop(w.warm)
		return
	}
	inTime := hurry(ctx, w.deadline, w.warm)
	a := c.attempt(w.warm, t)
	if !inTime() {
		a.grant, a.err = ports.Grant{}, fmt.Errorf("%w (%v)", errHurried, a.err)
	}
	if a.err == nil && a.grant.Granted {
		if h := c.deliver(w.warm, a, true); h != nil {
			h.keepSoon()
			return
		}
	}
	go c.contend(w.warm, a)
}

// hurry ends s if a command on it has not been answered answerGrace after ctx or
// the time until deadline has ended. The command has to be followed by a call of
// inTime, which reports whether that did not happen, and will not.
func hurry(ctx context.Context, deadline time.Time, s ports.Session) (inTime func() bool) {
	var decided atomic.Bool
	late := func() {
		if decided.CompareAndSwap(false, true) {
			s.Destroy()
		}
	}
	var timer *time.Timer
	if !deadline.IsZero() {
		timer = time.AfterFunc(time.Until(deadline)+answerGrace, late)
	}
	never := func() bool { return true }
	if ctx.Done() != nil {
		never = context.AfterFunc(ctx, func() { time.AfterFunc(answerGrace, late) })
	}
	return func() bool {
		never()
		if timer != nil {
			timer.Stop()
		}
		return decided.CompareAndSwap(false, true)
	}
}

// keepSoon has h kept if it lasts. One timer serves all holds: to start one each
// time would wake another thread each time.
func (h *hold) keepSoon() {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if !h.kept { // by a release that was quicker
		h.keepSoonNow()
	}
}

// keepSoonNow is keepSoon for a caller who holds Manager.mu.
func (h *hold) keepSoonNow() {
	m := h.m
	m.young[h] = struct{}{}
	if !m.sweeping {
		m.sweeping = true
		time.AfterFunc(keepAfter/2, m.sweep)
	}
}

// sweep starts the keepers of the holds that have lasted.
func (m *Manager) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for h := range m.young {
		if time.Since(h.granted) >= keepAfter/2 {
			h.startKeeper()
		}
	}
	if m.sweeping = len(m.young) > 0; m.sweeping {
		time.AfterFunc(keepAfter/2, m.sweep)
	}
}

// startKeeper sees to it that h has its keeper, unless it is over. The caller
// holds Manager.mu.
func (h *hold) startKeeper() {
	if h.live() && h.claim() {
		go h.keep()
	}
}

// claim reports whether the caller is the one who keeps or settles h, because
// nobody was so far. The caller holds Manager.mu.
func (h *hold) claim() bool {
	if h.s == nil || h.kept {
		return false
	}
	h.kept = true
	delete(h.m.young, h)
	return true
}

// settleHere settles a hold that was released, if it has no keeper, or one that
// may be relieved: on this goroutine if the caller is to wait for the end of that.
func (h *hold) settleHere(ctx context.Context) {
	waits := ctx.Done() == nil || ctx.Err() != nil // see within
	h.m.mu.Lock()
	alone := h.claim()
	ours := alone || waits && h.takeOver()
	h.m.mu.Unlock()
	switch {
	case ours && waits:
		h.settle(nil, true)
	case ours:
		go h.settle(nil, true)
	}
	if !alone {
		h.rouse()
	}
}
