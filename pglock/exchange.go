package pglock

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// exchange is a release and a try of another key in one round trip: where all
// sessions that may be pinned are in use, one that gives its lock back goes on
// with the first contender that waits for one.
type exchange struct {
	c *contender
	s ports.Exchanger
	a attempt
}

// exchange takes the contender out of the line that can go on with the session
// of h; nil if there is none. The caller holds Manager.mu.
func (h *hold) exchange() *exchange {
	m := h.m
	s, ok := h.s.(ports.Exchanger)
	if !ok || h.heir != nil || h.err != ports.ErrReleased || h.lent || h.carrier != nil || len(h.parts) != 1 {
		return nil
	}
	if m.closed || m.pending.Len() == 0 || m.proofIsDue() {
		return nil
	}
	if limit := m.sessionLimit(); limit < 0 || limit > 0 && m.sessions > limit {
		return nil
	}
	c := m.pending.Front().Value.(*contender)
	w := c.q.head()
	if c.q == h.parts[0].q || c.q.contender != c || w == nil || w.onto != nil || w.opts.Fencing || !c.q.admits(w.opts.Mode) {
		return nil
	}
	m.pending.Remove(c.pending)
	c.pending, c.starved = nil, false
	m.running++ // m.pinned stays as it is; Close must not end a release
	return &exchange{c: c, s: s, a: attempt{turn: turn{w: w, poll: c.q.polling()}}}
}

// ask sends the statement. The answer to the try is kept for goOn.
func (ex *exchange) ask(info ports.LockInfo) (held bool, err error) {
	a := &ex.a
	a.sent, a.req = time.Now(), ex.c.m.request(ex.c.q.id, a.w.opts, 0)
	held, a.grant, a.err = ex.s.Exchange(context.Background(), info.ID, info.Mode, a.req)
	return held, a.err
}

// goOn has the contender act upon its answer. If that was a grant, it returns the
// hold that the caller has to keep, unless that is young.
func (ex *exchange) goOn(s ports.Session, young bool) *hold {
	if ex.a.grant.Granted {
		switch next := ex.c.deliver(s, &ex.a, young); {
		case next != nil && young:
			next.keepSoon()
			return nil
		case next != nil:
			return next
		}
	}
	m := ex.c.m
	m.mu.Lock()
	m.pinned[s] = false
	m.mu.Unlock()
	go ex.c.contend(s, &ex.a)
	return nil
}

// comeBack puts the contender back into the line, first, since the session is
// over. The caller holds Manager.mu.
func (ex *exchange) comeBack() {
	m := ex.c.m
	m.running--
	ex.c.pending, ex.c.starved = m.pending.PushFront(ex.c), true
}
