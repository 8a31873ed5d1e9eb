package pglock

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

const (
	// maxPasses, passFor: a lock that is released is passed on to the next
	// goroutine of this manager that waits for it, without asking the server, so
	// often and for so long after the server has granted it. Then it goes back to
	// the server, whose queue serves the other processes. So they wait for no
	// more than passFor and one hold longer; and a holder that is told by its
	// release that all went well had the lock from the server that short a time
	// before.
	maxPasses = 1000
	passFor   = 50 * time.Millisecond

	// keepWarm, warmAfter: while locks follow each other within keepWarm, from the
	// warmAfter-th in a row on, a session that has given its lock back stays pinned
	// for that long, with the settings of a holder. To set a session up and put
	// it back costs more than the lock itself.
	keepWarm  = 50 * time.Millisecond
	warmAfter = 10
)

// pass hands the lock of a hold that was released on to the first waiter, if
// that may have it without asking the server.
func (h *hold) pass() {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	q := h.parts[0].q
	w := q.head()
	switch {
	case h.last || w == nil || w.onto != nil || m.closed || len(h.parts) > 1 || h.lent:
		return
	case h.info.Mode != ports.Exclusive || w.opts.Mode != ports.Exclusive || w.opts.Fencing:
		return // a token is the server's to give
	case h.passes >= maxPasses || time.Since(h.granted) > passFor:
		return
	case !h.bound.Stop():
		return // the session is being ended
	}
	next := newHold(m, h.s, w.opts.HoldAtLeast, h.granted)
	next.passes = h.passes + 1
	h.next = next
	q.holds = slices.DeleteFunc(q.holds, func(other *hold) bool { return other == h })
	m.grant(q, w, next, ports.Grant{PID: h.info.PID, Database: h.info.Database})
	close(h.finished)
}

// spare is a session that is kept warm.
type spare struct {
	s     ports.Session
	since time.Time
}

// letGo gives up the session of a hold whose lock was given back: it is kept
// warm for a while if locks are wanted all the time, and the pool has
// connections to spare.
func (m *Manager) letGo(h *hold) {
	inUse, limit := m.pool.Usage()
	m.mu.Lock()
	if h.granted.Sub(m.lastRelease) > keepWarm {
		m.inARow = 0
	}
	m.inARow++
	m.lastRelease = time.Now()
	if m.inARow < warmAfter || m.closed || h.lent || limit > 0 && inUse >= limit {
		m.mu.Unlock()
		m.recycle(h.s)
		return
	}
	delete(m.pinned, h.s)
	m.spares = append(m.spares, spare{h.s, time.Now()})
	if m.cooling == nil {
		m.cooling = time.AfterFunc(keepWarm, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.coolDown()
		})
	}
	m.mu.Unlock()
}

// warm takes a session that was kept warm; nil if there is none. The caller
// holds Manager.mu.
func (m *Manager) warm() ports.Session {
	last := len(m.spares) - 1
	if last < 0 {
		return nil
	}
	s := m.spares[last].s
	m.spares = m.spares[:last]
	return s
}

// coolDown recycles the sessions that were kept warm for long enough, or all of
// them if the manager is closed. The caller holds Manager.mu.
func (m *Manager) coolDown() {
	for len(m.spares) > 0 {
		if left := time.Until(m.spares[0].since.Add(keepWarm)); left > 0 && !m.closed {
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
