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
	// before. On shared sessions, where a lock is kept for longer, passFor is how
	// old the server's last answer may be for that.
	maxPasses = 1000
	passFor   = 50 * time.Millisecond
)

// pass hands the lock of a hold that was released on to the first waiter, if
// that may have it without asking the server.
func (h *hold) pass() {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.s == nil || len(h.parts) != 1 {
		return
	}
	q := h.parts[0].q
	w := q.head()
	switch {
	case h.last || w == nil || w.onto != nil || m.closed || h.lent:
		return
	case h.info.Mode != ports.Exclusive || w.opts.Mode != ports.Exclusive || w.opts.Fencing:
		return // a token is the server's to give
	case h.passes >= maxPasses || time.Since(h.granted) > passFor:
		return
	case !h.bound.Stop():
		return // the session is being ended
	}
	next := newHold(m, h.s, w.opts.HoldAtLeast, h.asked)
	next.granted, next.passes = h.granted, h.passes+1
	if h.claim() {
		next.keepSoon()
	} else {
		next.kept, h.heir = true, next // the keeper's, too
	}
	q.holds = slices.DeleteFunc(q.holds, func(other *hold) bool { return other == h })
	m.confer(q, w, next, ports.Grant{PID: h.info.PID, Database: h.info.Database})
	close(h.finished)
}
