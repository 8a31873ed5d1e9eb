package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

var errNoKeys = errors.New("no keys; name at least one")

// LockSet is one hold of several keys, on one session, or on those of their keys
// with WithSharedSessions: it is released, and lost, as a whole. Releasing one of
// its keys by name releases all of it.
type LockSet struct{ *hold }

var _ interface {
	ports.Lock
	ports.SessionLender
} = (*LockSet)(nil)

// Infos describes the locks of the set, in the order of their IDs. Of keys with
// one ID there is one lock, under the first of them.
func (s *LockSet) Infos() []ports.LockInfo { return s.infos() }

// AcquireAll waits for all of keys and holds them as one, or returns an error and
// holds none. It takes them one after the other in the
// order of their IDs, each ID once; so calls whose keys overlap cannot deadlock
// with each other, whatever the order of their keys. A timeout bounds the whole
// wait. The rest is as with Acquire; the error names the key that could not be
// had.
func (m *Manager) AcquireAll(ctx context.Context, keys []string, opts ...ports.AcquireOption) (*LockSet, error) {
	if len(keys) == 0 {
		return nil, &ports.LockError{Op: "acquire", Err: errNoKeys}
	}
	o := ports.NewAcquireOptions(opts...)
	ordered := slices.Clone(keys)
	slices.SortStableFunc(ordered, func(a, b string) int { return cmp.Compare(m.KeyID(a), m.KeyID(b)) })
	ordered = slices.CompactFunc(ordered, func(a, b string) bool { return m.KeyID(a) == m.KeyID(b) })

	start, timeout := time.Now(), o.Timeout
	var h *hold
	for _, key := range ordered {
		if timeout > 0 {
			o.Timeout = timeout - time.Since(start)
		}
		var next *hold
		var err error
		if timeout > 0 && o.Timeout <= 0 {
			err = &ports.LockError{Op: "acquire", Key: key, Err: context.DeadlineExceeded}
		} else {
			next, err = m.acquire(ctx, key, h, o)
		}
		if err != nil {
			if h != nil {
				// What could not be given back in time is freed with the
				// session, which is ended then.
				_ = h.release(ctx)
			}
			return nil, err
		}
		h = next
	}
	return &LockSet{h}, nil
}

// extend contends for w's lock on the session of a hold that w has already. The
// keeper of that hold lends the session for one statement at a time, so that it
// can watch and check it in between. It ends when w is served or has left.
func (c *contender) extend(w *waiter) {
	defer func() {
		c.m.mu.Lock()
		c.m.exit()
		c.m.mu.Unlock()
	}()
	for first := true; ; first = false {
		t := c.next(first, w.onto)
		if t.w != w {
			return
		}
		var grant ports.Grant
		var err error
		served := false
		lent := w.onto.LendSession(w.ctx, func(s ports.Session) bool {
			req := c.m.request(c.q.id, w.opts, t.wait)
			if grant, err = c.m.lock(w.ctx, s, req); err != nil || !grant.Granted {
				return err == nil
			}
			if served = c.serve(w, grant); served {
				return true
			}
			_, err = c.m.unlock(w.ctx, s, req.ID, req.Mode) // w has left
			return err == nil
		})
		if lent != nil {
			err = errors.Unwrap(lent) // it is a LockError
		}
		switch {
		case errors.Is(err, ports.ErrSessionEnded):
			c.quit(w, fmt.Errorf("%w: %w", ports.ErrLost, err)) // and with it all that the set had
			return
		case err != nil:
			c.quit(w, err)
			return
		case served:
			return
		case grant.Granted:
			continue // to find out that w has left
		}
		c.refused(w)
		switch {
		case t.poll > 0:
			c.sleep(t.poll)
		case grant.Interrupted:
			c.sleep(interruptPause)
		}
	}
}

// serve makes a lock that was granted part of w's hold and answers w. It
// returns false if w has left, or the hold has ended.
func (c *contender) serve(w *waiter, g ports.Grant) bool {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if c.q.contender != c || w.place == nil || !w.onto.live() {
		return false
	}
	c.give(w, w.onto, g)
	return true
}

// quit answers w with an error and makes way for the next in the queue.
func (c *contender) quit(w *waiter, err error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if w.place != nil {
		c.q.answerOne(w, answer{err: err})
	}
	if c.q.contender == c {
		c.q.contender = nil
	}
	c.m.advance(c.q)
}
