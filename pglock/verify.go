package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/holdfast-go/holdfast/ports"
)

// distinctRounds and exclusiveRounds are how often the two parts of the proof are
// repeated. A pooler that spreads the statements of a connection over n server
// sessions passes each comparison with a probability of about 1/n; the first part
// has to find it out, since the locks of the second could be stranded there.
const (
	distinctRounds  = 8
	exclusiveRounds = 2
)

// errDeferred says that there was no room for a proof.
var errDeferred = fmt.Errorf("%w: the proof that this setup excludes needs two connections", ports.ErrPoolExhausted)

// proof is a verification that is under way, for all who wait for it.
type proof struct {
	done chan struct{}
	err  error // set before done is closed
}

// Verify proves that the connections of the pool exclude each other: on two
// sessions, which must be served by two server processes that stay the same, it
// takes a lock under a random ID that the other session must not get, and gives
// it back. Anything else, such as a pooler in transaction or statement mode, a
// server in recovery, or one whose advisory locks do nothing, is an error that
// wraps ports.ErrUnsafeConnection and says what was seen and what to do.
//
// A manager does this once before its first lock. If its pool has no second
// connection to spare, it logs that and does it later; Verify itself returns an
// error that wraps ports.ErrPoolExhausted then.
func (m *Manager) Verify(ctx context.Context) error {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed {
		return ports.ErrClosed
	}
	err := m.prove(ctx)
	if err == nil {
		m.mu.Lock()
		m.verified = true
		m.mu.Unlock()
	}
	return err
}

// ensureVerified makes the proof, or waits for the one that is under way,
// unless it was made before. A failed proof is made again by the next call: the
// setup may have been mended.
func (m *Manager) ensureVerified(ctx context.Context) error {
	m.mu.Lock()
	if m.verified || m.unverified || m.closed {
		m.mu.Unlock()
		return nil
	}
	p := m.proof
	if p != nil {
		m.mu.Unlock()
		<-p.done
		return p.err
	}
	p = &proof{done: make(chan struct{})}
	m.proof = p
	m.mu.Unlock()

	err := m.prove(ctx)
	deferred := errors.Is(err, errDeferred)
	if deferred {
		m.logger.Info("lock verification deferred", "error", err)
		err = nil
	}
	m.mu.Lock()
	m.verified = m.verified || err == nil && !deferred // Verify may have come first
	m.proof = nil
	m.mu.Unlock()
	p.err = err
	close(p.done)
	return err
}

// proofIsDue reports whether the next session that is opened has to be preceded
// by a proof. A pool of one never has room for it. The caller holds mu.
func (m *Manager) proofIsDue() bool {
	if m.verified || m.unverified {
		return false
	}
	_, limit := m.pool.Usage()
	return limit != 1
}

// prove is Verify without the book-keeping.
func (m *Manager) prove(ctx context.Context) (err error) {
	var sessions [2]ports.Session
	defer func() {
		for _, s := range sessions {
			switch {
			case s == nil:
			case err == nil:
				m.recycle(s)
			default:
				m.destroy(s, err)
			}
		}
	}()
	if inUse, limit := m.pool.Usage(); limit > 0 && limit-inUse < len(sessions) {
		return errDeferred
	}
	for i := range sessions {
		if sessions[i], err = m.openForProof(ctx); err != nil {
			return err
		}
	}
	for range distinctRounds {
		if err := m.proveDistinct(ctx, sessions); err != nil {
			return err
		}
	}
	for range exclusiveRounds {
		if err := m.proveExclusive(ctx, sessions, rand.Int64()); err != nil {
			return err
		}
	}
	return nil
}

// openForProof pins a session. A slow connection is waited for, since nothing is
// proved without it; it fails when the manager closes.
func (m *Manager) openForProof(ctx context.Context) (ports.Session, error) {
	ctx, cancel := context.WithTimeout(ctx, m.window)
	defer cancel()
	defer context.AfterFunc(m.openCtx, cancel)()
	s, err := m.open(ctx)
	switch {
	case m.openCtx.Err() != nil:
		if err == nil {
			m.recycle(s)
		}
		return nil, ports.ErrClosed
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%w within %v, to prove that this setup excludes; the server does not answer, or a pool that the driver keeps has no room: %w", ports.ErrPoolExhausted, m.window, err)
	case err != nil:
		return nil, err
	}
	m.mu.Lock()
	m.pinned[s] = false
	m.mu.Unlock()
	return s, nil
}

// unsafe is the error of a proof that failed.
func unsafe(seen string) error {
	return fmt.Errorf("%w: %s; use session pooling or a direct connection to the primary, or transaction locks (AcquireTx)", ports.ErrUnsafeConnection, seen)
}

// proveDistinct shows, without taking any lock, that two server processes stand
// behind the two sessions. A process that changes is an error of Check.
func (m *Manager) proveDistinct(ctx context.Context, sessions [2]ports.Session) error {
	var pids [2]int
	for i, s := range sessions {
		pid, err := bounded(s, m.releaseBound(), func() (int, error) { return s.Check(ctx, false) })
		if err != nil {
			return err
		}
		pids[i] = pid
	}
	if pids[0] == pids[1] && pids[0] != 0 {
		return unsafe(fmt.Sprintf("two connections were answered by one server process (%d), as behind a pooler in transaction or statement mode", pids[0]))
	}
	return nil
}

// proveExclusive shows that a lock that one session has is not given to the
// other, and that it can be given back.
func (m *Manager) proveExclusive(ctx context.Context, sessions [2]ports.Session, id int64) error {
	try := func(s ports.Session) (bool, error) {
		g, err := m.lock(ctx, s, ports.LockRequest{ID: id})
		return g.Granted, err
	}
	for turn := range sessions {
		holder, other := sessions[turn], sessions[1-turn]
		if granted, err := try(holder); err != nil {
			return err
		} else if !granted {
			return unsafe("a lock that nobody can have was refused")
		}
		both, err := try(other)
		if err != nil {
			return err
		}
		// Only a session that still has the lock proves anything: the server
		// may have ended it meanwhile.
		if held, err := m.unlock(ctx, holder, id, ports.Exclusive); err != nil {
			return err
		} else if !held {
			return unsafe("a lock was gone when it was given back, as behind a proxy that spreads statements over sessions")
		}
		if both {
			return unsafe("two sessions got one lock, as on a server whose advisory locks do nothing")
		}
	}
	return nil
}
