package pglock

import (
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// keepWarm, warmAfter: while locks follow each other within keepWarm, from the
// warmAfter-th in a row on, a session that has given its lock back stays pinned
// for that long, with the settings of a holder and its goroutine. To set a
// session up and put it back costs more than the lock itself.
const (
	keepWarm  = 50 * time.Millisecond
	warmAfter = 10
)

// spare is a session that is kept warm.
type spare struct {
	s    ports.Session
	next chan *contender // who is to use it; nil ends it
}

// staysWarm decides whether the session of a hold whose lock was given back is
// kept: if locks are wanted all the time, and the pool has connections to spare.
func (m *Manager) staysWarm(h *hold) bool {
	inUse, limit := m.pool.Usage()
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.granted.Sub(m.lastRelease) > keepWarm {
		m.inARow = 0
	}
	m.inARow++
	m.lastRelease = time.Now()
	return m.inARow >= warmAfter && !m.closed && !h.lent && h.carrier == nil && (limit == 0 || inUse < limit)
}

// park makes s a spare. Its goroutine has to call awaitUse then. The caller holds
// Manager.mu.
func (m *Manager) park(s ports.Session) *spare {
	sp := &spare{s: s, next: make(chan *contender, 1)}
	delete(m.pinned, s)
	m.spares = append(m.spares, sp)
	if m.closed {
		m.coolDown()
	}
	return sp
}

// warm gives c a spare, and reports whether there was one. The caller holds
// Manager.mu.
func (m *Manager) warm(c *contender) bool {
	last := len(m.spares) - 1
	if last < 0 {
		return false
	}
	sp := m.spares[last]
	m.spares = slices.Delete(m.spares, last, last+1)
	m.pinned[sp.s] = false
	sp.next <- c
	return true
}

// awaitUse waits for who uses a spare next, and returns nil if that is nobody.
func (m *Manager) awaitUse(sp *spare) *contender {
	timer := time.NewTimer(keepWarm)
	defer timer.Stop()
	select {
	case c := <-sp.next:
		return c
	case <-timer.C:
	}
	m.mu.Lock()
	i := slices.Index(m.spares, sp)
	if i >= 0 {
		m.spares = slices.Delete(m.spares, i, i+1)
	}
	m.mu.Unlock()
	if i < 0 {
		return <-sp.next // it was given away in the same moment
	}
	return nil
}

// coolDown ends all spares. The caller holds Manager.mu.
func (m *Manager) coolDown() {
	for _, sp := range m.spares {
		sp.next <- nil
	}
	m.spares = nil
}
