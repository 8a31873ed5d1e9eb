// Package pglock is the lock manager of Holdfast: it turns server sessions that
// can lock numbers into named locks that a service can rely on.
//
// A [Manager] derives IDs from keys, lets one goroutine per key contend at the
// server while the others queue in memory, waits in short slices, watches every
// hold, and tells the holder when it is lost. [Do] and [TryDo] are the short
// way to use any lock; adapters/pqlock, adapters/pgxlock and adapters/sqllock
// make Managers for a *sql.DB.
//
// It promises one holder per key and database for as long as the holder's
// server session lives, and that a session about which there is any doubt is
// ended rather than reused. It does not promise fairness between processes
// beyond the server's own queue, re-entrancy, or exclusion across databases.
//
// The package knows no SQL and no driver; see ports.SessionPool for what it
// asks of one.
package pglock

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// Manager implements ports.LockManager. It is safe for concurrent use; make one
// per database and process, with the constructor of an adapter.
type Manager struct {
	pool ports.SessionPool
	config

	// mu guards all that follows, and the fields that say so in queue, waiter,
	// contender and hold. No command and no callback runs under it.
	mu     sync.Mutex
	closed bool
	queues map[int64]*queue
	// byKey has, per key, the live holds, oldest first. A lost hold stays, so
	// that a release can say that it was lost, until that release or until the
	// key is granted again.
	byKey map[string][]*hold
	// sessions counts the sessions pinned now, with those being opened.
	sessions int
	// pinned has the sessions that are open, and whether they carry a hold or
	// only wait for one.
	pinned map[ports.Session]bool
	// spares are sessions that are kept warm, the oldest first; cooling runs when
	// there are any, and recycles them.
	spares  []spare
	cooling *time.Timer
	// young are the holds that have no keeper yet; sweeping says that a timer runs
	// that looks after them.
	young    map[*hold]struct{}
	sweeping bool
	// lastRelease is when a session was last let go; inARow counts the locks that
	// followed each other closely.
	lastRelease time.Time
	inARow      int
	warmAfter   int
	keepWarm    time.Duration
	// pending has the *contenders that wait for a session, first come first
	// served.
	pending list.List
	// running counts contenders, holds and other things that Close has to wait
	// for; idle is closed when the manager is closed and running is 0.
	running int
	idle    chan struct{}
	stats   Stats
	// verified: a proof has shown that this setup excludes. proof is the one
	// that is under way.
	verified bool
	proof    *proof
	// carriers are the shared sessions, if holds are on those; held counts the
	// locks that they have at the server, asking those that they are asking for,
	// and mostHeld bounds both; 0 before the server has told what it has room
	// for, and if it does not tell.
	carriers               []*carrier
	held, asking, mostHeld int
	told                   bool
	// cancelOpens ends the opening of sessions for proofs when the manager
	// closes; it is the end of openCtx.
	openCtx     context.Context
	cancelOpens context.CancelFunc
}

var _ ports.LockManager = (*Manager)(nil)

// Stats are a manager's gauges (Held, Waiting, Sessions, MaxSessions) and its
// counts since it was made.
type Stats struct {
	// Held is the number of current holds.
	Held int
	// Waiting is the number of calls that wait for a key.
	Waiting int
	// Sessions is the number of pinned sessions, for holds and for waits. One
	// that is kept for the next lock for a moment, because locks are wanted all
	// the time, does not count.
	Sessions int
	// MaxSessions is the most there may be; 0 if there is no limit.
	MaxSessions int
	// Acquired counts the grants handed to callers.
	Acquired uint64
	// Contended counts calls that ended without the lock because someone else
	// held it.
	Contended uint64
	// Lost counts holds that ended in a loss.
	Lost uint64
	// Destroyed counts sessions that were ended instead of going back to the
	// pool.
	Destroyed uint64
}

// NewManager makes a manager of locks on the sessions of pool. Adapters call
// it; it opens nothing. It panics if pool is nil, or has no locks of two integers
// although WithTwoIntegerKeys asks for them.
func NewManager(pool ports.SessionPool, opts ...Option) *Manager {
	if pool == nil {
		panic("pglock.NewManager: nil session pool")
	}
	m := &Manager{
		pool: pool,
		config: config{
			holderID: defaultHolderID(),
			keyFunc:  SHA256Key,
			window:   DefaultLivenessWindow,
			logKey:   func(key string) string { return key },
		},
		queues: make(map[int64]*queue),
		byKey:  make(map[string][]*hold),
		young:  make(map[*hold]struct{}),
		pinned: make(map[ports.Session]bool),
		idle:   make(chan struct{}),

		warmAfter: warmAfter,
		keepWarm:  keepWarm,
	}
	m.openCtx, m.cancelOpens = context.WithCancel(context.Background())
	for _, opt := range opts {
		if opt != nil {
			opt(&m.config)
		}
	}
	if m.pairs {
		p, ok := pool.(ports.PairPool)
		if !ok {
			panic(fmt.Sprintf("pglock.NewManager: %T has no locks of two integers; leave WithTwoIntegerKeys out, or use an adapter that has them", pool))
		}
		m.pool = p.Pairs()
	}
	if m.logger == nil {
		m.logger = slog.New(slog.DiscardHandler)
	} else {
		m.observers = append(m.observers, logObserver(m.logger, m.logKey))
	}
	for range m.shared {
		m.carriers = append(m.carriers, newCarrier(m))
	}
	return m
}

// defaultHolderID names the process by host and process ID.
func defaultHolderID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d", host, os.Getpid())
}

// KeyID returns the advisory-lock ID of key under the manager's namespace and
// key function; with WithTwoIntegerKeys, ports.IDPair has the two. It opens
// nothing.
func (m *Manager) KeyID(key string) int64 { return m.keyFunc(m.namespace + key) }

// Acquire implements ports.DistributedLock.
func (m *Manager) Acquire(ctx context.Context, key string, opts ...ports.AcquireOption) (ports.Lock, error) {
	h, err := m.acquire(ctx, key, nil, ports.NewAcquireOptions(opts...))
	if err != nil {
		return nil, err
	}
	return h, nil
}

// acquire is Acquire, onto a hold that there is already if onto is not nil.
func (m *Manager) acquire(ctx context.Context, key string, onto *hold, opts ports.AcquireOptions) (*hold, error) {
	ctx, end := m.observers.acquire(ctx, m, "acquire", key, opts)
	h, err := m.take(ctx, key, onto, false, opts)
	if err == errRefused { // by a timeout of zero
		err = fmt.Errorf("%w: %w", ports.ErrNotAcquired, context.DeadlineExceeded)
	}
	if err != nil {
		err = &ports.LockError{Op: "acquire", Key: key, Err: err}
	}
	end(h, err)
	return h, err
}

// TryAcquire implements ports.DistributedLock.
func (m *Manager) TryAcquire(ctx context.Context, key string, opts ...ports.AcquireOption) (ports.Lock, bool, error) {
	h, err := m.try(ctx, key, ports.NewAcquireOptions(opts...))
	if h == nil {
		return nil, false, err
	}
	return h, true, nil
}

// try is TryAcquire; it returns neither a hold nor an error if someone else has
// the lock.
func (m *Manager) try(ctx context.Context, key string, opts ports.AcquireOptions) (*hold, error) {
	ctx, end := m.observers.acquire(ctx, m, "try", key, opts)
	h, err := m.take(ctx, key, nil, true, opts)
	switch {
	case err == nil:
	case err == errRefused, errors.Is(err, ports.ErrNotAcquired): // the latter if its time ran out as well
		err = nil
	default:
		err = &ports.LockError{Op: "try", Key: key, Err: err}
	}
	end(h, err)
	return h, err
}

// Release implements ports.DistributedLock.
func (m *Manager) Release(ctx context.Context, key string) error {
	m.mu.Lock()
	var oldest *hold
	if holds := m.byKey[key]; len(holds) > 0 {
		oldest = holds[0]
	}
	m.mu.Unlock()
	if oldest == nil {
		return &ports.LockError{Op: "release", Key: key, Err: ports.ErrNotHeld}
	}
	return oldest.Release(ctx)
}

// IsHeld implements ports.DistributedLock.
func (m *Manager) IsHeld(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.byKey[key], (*hold).live)
}

// Held implements ports.LockRegistry.
func (m *Manager) Held() []ports.LockInfo {
	holds := m.liveHolds()
	var infos []ports.LockInfo
	for _, h := range holds {
		infos = append(infos, h.infos()...)
	}
	oldestFirst(infos)
	return infos
}

// oldestFirst puts infos into the order of Held.
func oldestFirst(infos []ports.LockInfo) {
	slices.SortStableFunc(infos, func(a, b ports.LockInfo) int {
		return cmp.Or(a.AcquiredAt.Compare(b.AcquiredAt), cmp.Compare(a.Key, b.Key))
	})
}

// HeldCount implements ports.LockRegistry.
func (m *Manager) HeldCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats.Held
}

// ReleaseAll implements ports.LockRegistry. The holds are released side by
// side.
func (m *Manager) ReleaseAll(ctx context.Context) (released int, err error) {
	return releaseEach(ctx, m.liveHolds())
}

// releaseEach releases holds side by side and counts those that the server
// confirmed.
func releaseEach(ctx context.Context, holds []*hold) (released int, err error) {
	holds = slices.DeleteFunc(holds, (*hold).postpone)
	errs := make([]error, len(holds))
	var wg sync.WaitGroup
	for i, h := range holds {
		wg.Go(func() { errs[i] = h.release(ctx) })
	}
	wg.Wait()
	for _, err := range errs {
		if err == nil {
			released++
		}
	}
	return released, errors.Join(errs...)
}

// liveHolds returns the current holds in no order, each once.
func (m *Manager) liveHolds() []*hold {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := make(map[*hold]struct{}, m.stats.Held)
	for _, hs := range m.byKey {
		for _, h := range hs {
			if h.live() {
				seen[h] = struct{}{}
			}
		}
	}
	return slices.Collect(maps.Keys(seen))
}

// Stats returns the manager's gauges and counts.
func (m *Manager) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Sessions = m.sessions
	s.MaxSessions = max(m.sessionLimit(), 0)
	if n := len(m.carriers); n > 0 && (s.MaxSessions == 0 || n < s.MaxSessions) {
		s.MaxSessions = n
	}
	for _, q := range m.queues {
		s.Waiting += q.waiters.Len()
	}
	return s
}

// Close ends the manager: calls that wait and calls that come later get
// ports.ErrClosed, every hold is released and its session goes back to the
// pool, and the sessions of those who wait are ended. It returns when all that
// is done, or when ctx ends, or after a third of the liveness window; then it
// ends the sessions that are still busy and says so. A context that is done
// already does not shorten it. It does not close the pool's *sql.DB. Later
// calls return nil.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	again := m.closed
	m.closed = true
	bound := time.Now().Add(m.releaseBound())
	m.cancelOpens()
	for _, q := range m.queues {
		q.answerAll(answer{err: ports.ErrClosed})
		m.advance(q)
	}
	m.coolDown()
	if !again && m.running == 0 {
		close(m.idle)
	}
	for _, c := range m.carriers {
		c.hasten(m.releaseBound())
		c.stir()
	}
	for s, held := range m.pinned {
		if !held {
			go s.Destroy() // sooner than the server would end its wait
		}
	}
	m.mu.Unlock()
	if again {
		return nil
	}

	_, err := releaseEach(ctx, m.liveHolds())
	if !within(ctx, m.idle, time.Until(bound)) {
		m.mu.Lock()
		stuck := len(m.pinned)
		for s := range m.pinned {
			go s.Destroy()
		}
		m.mu.Unlock()
		err = errors.Join(err, fmt.Errorf("pglock: close: %d sessions were still busy and have been ended", stuck))
	}
	return err
}

// within waits for done for limit or until ctx ends, and reports whether done
// came. A ctx that is done at the call does not count.
func within(ctx context.Context, done <-chan struct{}, limit time.Duration) bool {
	bound := time.NewTimer(limit)
	defer bound.Stop()
	ended := ctx.Done()
	if ctx.Err() != nil {
		ended = nil
	}
	select {
	case <-done:
		return true
	case <-ended:
	case <-bound.C:
	}
	return false
}

// releaseBound is the longest that a release waits for the server. It is also
// the longest that any other command may take beyond the wait that was asked
// of the server.
func (m *Manager) releaseBound() time.Duration { return m.window / 3 }

// sessionLimit is the most sessions that may be pinned; 0 for no limit, and
// negative if the pool is too small for any. It needs no lock.
func (m *Manager) sessionLimit() int {
	_, limit := m.pool.Usage()
	switch {
	case m.maxSessions > 0 && limit > 0:
		return min(m.maxSessions, limit)
	case m.maxSessions > 0:
		return m.maxSessions
	case limit == 1:
		return -1
	case limit > 1:
		return limit - 1
	default:
		return 0
	}
}

// hasRoom reports whether one more session may be pinned. The caller holds mu.
func (m *Manager) hasRoom() bool {
	limit := m.sessionLimit()
	return limit == 0 || m.sessions < limit
}

// exhausted is the error of a call for which no session could be pinned. The
// caller holds mu.
func (m *Manager) exhausted() error {
	inUse, limit := m.pool.Usage()
	most := m.sessionLimit()
	if most < 0 {
		return fmt.Errorf("%w: the pool has one connection, and a lock would keep it from the queries of its holder; raise SetMaxOpenConns, or use WithMaxSessions(1) if the pool is for locks alone", ports.ErrPoolExhausted)
	}
	return fmt.Errorf("%w: %d of %s connections of the pool are in use, %d of %s sessions pinned for locks; release locks sooner, or raise SetMaxOpenConns or WithMaxSessions",
		ports.ErrPoolExhausted, inUse, orUnlimited(limit), m.sessions, orUnlimited(most))
}

// orUnlimited prints a limit of which 0 means that there is none.
func orUnlimited(n int) string {
	if n == 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}
