package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

const (
	// proofRounds is how often the proof is repeated. A pooler that spreads
	// the statements of a connection over n server sessions passes each
	// comparison with a probability of about 1/n at best.
	proofRounds = 4

	// sparePatience is how long the proof waits for its second session in a
	// pool that does not tell its size.
	sparePatience = 200 * time.Millisecond

	// proofPause is how long a manager leaves it, after it has waited for a
	// second session in vain.
	proofPause = time.Minute
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
	if m.verified || m.unverified || m.closed || time.Now().Before(m.proofAfter) {
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
	m.verified = err == nil && !deferred
	m.proof = nil
	m.mu.Unlock()
	p.err = err
	close(p.done)
	return err
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
		if sessions[i], err = m.openForProof(ctx, i > 0); err != nil {
			return err
		}
	}
	for range proofRounds {
		if err := m.proveDistinct(ctx, sessions); err != nil {
			return err
		}
	}
	for range proofRounds {
		if err := m.proveExclusive(ctx, sessions, rand.Int64()); err != nil {
			return err
		}
	}
	return nil
}

// openForProof pins a session. A second one is not waited for.
func (m *Manager) openForProof(ctx context.Context, second bool) (ports.Session, error) {
	patience := m.releaseBound()
	if second {
		patience = sparePatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := m.pool.Open(ctx)
	if err != nil && ctx.Err() != nil && second {
		m.mu.Lock()
		m.proofAfter = time.Now().Add(proofPause)
		m.mu.Unlock()
		return nil, errDeferred
	}
	if err != nil {
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
		bound := time.AfterFunc(m.releaseBound(), s.Destroy)
		pid, err := s.Check(ctx, false)
		bound.Stop()
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
		if granted, err := try(other); err != nil {
			return err
		} else if granted {
			return unsafe("two sessions got one lock, as on a server whose advisory locks do nothing")
		}
		if held, err := m.unlock(ctx, holder, id, ports.Exclusive); err != nil {
			return err
		} else if !held {
			return unsafe("a lock was gone when it was given back, as behind a proxy that spreads statements over sessions")
		}
	}
	return nil
}
