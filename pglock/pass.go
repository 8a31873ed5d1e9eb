package pglock

import (
	"context"
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
// that may have it without asking the server, and reports whether it did. word is
// the sending of the last thing that the server has answered on the session. here
// says that the caller settles the hold in place of a keeper.
func (h *hold) pass(word time.Time, here bool) bool {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	w := h.successor()
	if w == nil || time.Since(word) > passFor {
		return false
	}
	if !h.bound.Stop() {
		return false // the session is being ended
	}
	next := newHold(m, h.s, w.opts.HoldAtLeast, h.asked)
	next.word, next.granted, next.passes = word, h.granted, h.passes+1
	if here || h.claim() {
		next.keepSoonNow()
	} else {
		next.kept, h.heir = true, next // the keeper's, too
	}
	q := h.parts[0].q
	q.holds = slices.DeleteFunc(q.holds, func(other *hold) bool { return other == h })
	m.confer(q, w, next, ports.Grant{PID: h.Info().PID, Database: h.Info().Database})
	h.finished.give()
	return true
}

// passChecked is pass for the one who settles the hold, and who may therefore ask
// the server for its word. It pays where the lock was waited for: the answer says
// only that the server had the session when the wait began, or later.
func (h *hold) passChecked(here bool) bool {
	sent := time.Now()
	_, err := h.s.Check(context.Background(), false)
	return err == nil && h.pass(sent, here)
}

// successor is the waiter to whom a hold that was released may pass its lock on;
// nil if there is none. The caller holds Manager.mu.
func (h *hold) successor() *waiter {
	if h.s == nil || len(h.parts) != 1 {
		return nil
	}
	w := h.parts[0].q.head()
	switch {
	case h.last || h.heir != nil || w == nil || w.onto != nil || h.m.closed || h.lent:
		return nil
	case h.Info().Mode != ports.Exclusive || w.opts.Mode != ports.Exclusive || w.opts.Fencing:
		return nil // a token is the server's to give
	case h.passes >= maxPasses || time.Since(h.granted) > passFor:
		return nil
	}
	return w
}
