// Package memlock is an in-memory lock server: real exclusion between managers
// of one process, without a database.
//
// It is the double for unit tests of code that locks, and the simulator under
// the manager's own tests: sessions can be killed, locks dropped, and commands
// delayed or failed. It queues, shares and counts as PostgreSQL's advisory
// locks do, and it starts no goroutine and no timer of its own, so it runs in
// the virtual time of testing/synctest.
//
// It does not lock anything across processes, and it has no transactions:
// sqllock's RunTx and RunConn say ports.ErrUnsupported.
package memlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// New makes a manager with a pool of its own on server. Several managers on one
// server exclude each other like several processes on one database. That they
// do need not be proved, so the manager sends nothing but what it is asked for.
func New(server *Server, opts ...pglock.Option) *pglock.Manager {
	return pglock.NewManager(server.Pool(), append([]pglock.Option{pglock.WithoutVerification()}, opts...)...)
}

// Server is the in-memory counterpart of one database. The zero value is not
// useful; NewServer makes one.
type Server struct {
	mu *sync.Mutex // of both spaces
	*counters
	pairs     *Server // the other space; itself, for that of pairs
	sessions  map[int]*backend
	locks     map[int64]*lock
	commands  map[string]int
	intercept func(ctx context.Context, c Command) error
	lockTable int
}

// counters are what both spaces of a server count together.
type counters struct {
	lastPID   int
	lastToken ports.Token
}

// Holder is one holder of a lock, as seen from outside.
type Holder struct {
	PID  int
	Mode ports.Mode
}

// Command is what a session asks of the server.
type Command struct {
	// PID is the server process that is asked.
	PID int
	// Op is "lock", "unlock", "exchange" for both, "check", "batch", or "holds"
	// for a question about another session.
	Op string
	// ID is the lock's ID; 0 where there is not one.
	ID int64
	// Done is false before the server acts, and true when it has acted and
	// its answer is on its way.
	Done bool
}

// backend is the server's side of a session.
type backend struct {
	pid  int
	held map[int64]map[ports.Mode]int // how often, as PostgreSQL counts
	// holderID and since name the holder since its first lock, as sqllock does
	// in application_name.
	holderID string
	since    time.Time
	over     chan struct{} // closed when the session has ended
	why      error
}

// lock is the state of one ID.
type lock struct {
	holders []Holder
	queue   []*request
}

// request is one wait for a lock.
type request struct {
	b        *backend
	mode     ports.Mode
	holderID string
	since    time.Time
	granted  chan struct{}
}

// database is the name of the one database that there is.
const database = "memlock"

// errKilled is why a session ended that Kill has ended.
var errKilled = errors.New("terminating connection due to administrator command")

// NewServer makes an empty server.
func NewServer() *Server {
	mu, c := new(sync.Mutex), new(counters)
	s, pairs := newSpace(mu, c), newSpace(mu, c)
	s.pairs, pairs.pairs = pairs, pairs
	return s
}

// newSpace makes one of the two spaces of a server.
func newSpace(mu *sync.Mutex, c *counters) *Server {
	return &Server{
		mu:       mu,
		counters: c,
		sessions: make(map[int]*backend),
		locks:    make(map[int64]*lock),
		commands: make(map[string]int),
	}
}

// Pairs returns the locks of two integers, which managers with
// pglock.WithTwoIntegerKeys take, as a server of its own: it has its own locks,
// sessions and commands. What it calls an ID is what ports.PairID makes of the
// integers.
func (s *Server) Pairs() *Server { return s.pairs }

// Holders returns who holds id, in the order of the grants.
func (s *Server) Holders(id int64) []Holder {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[id]; l != nil {
		return slices.Clone(l.holders)
	}
	return nil
}

// Waiters returns how many sessions wait for id.
func (s *Server) Waiters(id int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.locks[id]; l != nil {
		return len(l.queue)
	}
	return 0
}

// Sessions returns the number of sessions that exist, idle ones in pools too.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

// Locks returns the number of IDs that somebody holds.
func (s *Server) Locks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, l := range s.locks {
		if len(l.holders) > 0 {
			n++
		}
	}
	return n
}

// Commands returns how many commands of this op the server has been sent.
func (s *Server) Commands(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commands[op]
}

// Kill ends the session with this PID, as pg_terminate_backend does, and
// reports whether there was one.
func (s *Server) Kill(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sessions[pid]
	if b == nil {
		return false
	}
	s.end(b, errKilled)
	return true
}

// DropLocks takes all locks from a session that lives on, as DISCARD ALL or
// pg_advisory_unlock_all do.
func (s *Server) DropLocks(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.sessions[pid]; b != nil {
		s.unlockAll(b)
	}
}

// LimitLocks sets how many locks the server has room for, as
// max_locks_per_transaction does; it has no limit otherwise. A batch past it
// fails.
func (s *Server) LimitLocks(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lockTable = n
}

// Intercept has f called twice for each command, on the goroutine of its
// caller: before the server acts, and before the answer goes back. An error
// from f is the command's. A f that blocks is a slow or dead network; its
// context ends when the session is destroyed. Nil takes the function away.
func (s *Server) Intercept(f func(ctx context.Context, c Command) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.intercept = f
}

// end ends a session. The caller holds s.mu.
func (s *Server) end(b *backend, why error) {
	if s.sessions[b.pid] != b {
		return
	}
	delete(s.sessions, b.pid)
	b.why = why
	close(b.over)
	for id := range s.locks {
		s.withdraw(id, func(r *request) bool { return r.b == b })
	}
	s.unlockAll(b)
}

// unlockAll frees what b holds. The caller holds s.mu.
func (s *Server) unlockAll(b *backend) {
	for id, modes := range b.held {
		for mode := range modes {
			s.free(b, id, mode)
		}
	}
	clear(b.held)
}

// free takes a holder off a lock and grants it on. The caller holds s.mu.
func (s *Server) free(b *backend, id int64, mode ports.Mode) {
	l := s.locks[id]
	l.holders = slices.DeleteFunc(l.holders, func(h Holder) bool { return h == Holder{b.pid, mode} })
	s.grantOn(id)
}

// withdraw takes requests out of a queue. The caller holds s.mu.
func (s *Server) withdraw(id int64, which func(*request) bool) {
	l := s.locks[id]
	l.queue = slices.DeleteFunc(l.queue, which)
	s.grantOn(id)
}

// grantOn grants the lock to those at the head of its queue who can have it,
// and forgets a lock that nobody wants. The caller holds s.mu.
func (s *Server) grantOn(id int64) {
	l := s.locks[id]
	for len(l.queue) > 0 && l.free(l.queue[0]) {
		r := l.queue[0]
		l.queue = l.queue[1:]
		l.grant(id, r)
		close(r.granted)
	}
	if len(l.queue) == 0 && len(l.holders) == 0 {
		delete(s.locks, id)
	}
}

// free reports whether no holder other than r's own session is in r's way.
func (l *lock) free(r *request) bool {
	for _, h := range l.holders {
		if h.PID != r.b.pid && (h.Mode == ports.Exclusive || r.mode == ports.Exclusive) {
			return false
		}
	}
	return true
}

// grant makes r a holder, once more if its session holds the lock already.
func (l *lock) grant(id int64, r *request) {
	if len(r.b.held) == 0 {
		r.b.holderID, r.b.since = r.holderID, time.Now()
	}
	if r.b.held[id] == nil {
		r.b.held[id] = make(map[ports.Mode]int)
	}
	if r.b.held[id][r.mode]++; r.b.held[id][r.mode] == 1 {
		l.holders = append(l.holders, Holder{r.b.pid, r.mode})
	}
}

// PoolOption adjusts a Pool.
type PoolOption func(*Pool)

// WithLimit bounds the number of sessions that a pool has in use at a time, as
// sql.DB.SetMaxOpenConns does.
func WithLimit(n int) PoolOption { return func(p *Pool) { p.limit = n } }

// WithoutWatch makes sessions that do not notice their end without a command,
// like those of most drivers.
func WithoutWatch() PoolOption { return func(p *Pool) { p.blind = true } }

// Pool is a ports.SessionPool on a Server.
type Pool struct {
	server *Server
	limit  int
	blind  bool

	mu    sync.Mutex
	inUse int
	idle  []*backend
	room  chan struct{} // closed and replaced when a session is given back
}

var (
	_ ports.SessionPool = (*Pool)(nil)
	_ ports.Inspector   = (*Pool)(nil)
	_ ports.Lister      = (*Pool)(nil)
	_ ports.Witness     = (*Pool)(nil)
	_ ports.PairPool    = (*Pool)(nil)
)

// Pool makes a pool of sessions on s.
func (s *Server) Pool(opts ...PoolOption) *Pool {
	p := &Pool{server: s, room: make(chan struct{})}
	for _, opt := range opts {
		opt(p)
	}
	return p
}

// Pairs implements ports.PairPool: it makes a pool of the same kind on
// Server.Pairs.
func (p *Pool) Pairs() ports.SessionPool {
	return p.server.Pairs().Pool(func(q *Pool) { q.limit, q.blind = p.limit, p.blind })
}

// Open implements ports.SessionPool: it takes an idle session, or a new one.
func (p *Pool) Open(ctx context.Context) (ports.Session, error) {
	s, err := p.open(ctx)
	switch {
	case err != nil:
		return nil, err
	case p.blind:
		return s, nil
	}
	return watched{s}, nil
}

func (p *Pool) open(ctx context.Context) (*session, error) {
	for {
		p.mu.Lock()
		if p.limit == 0 || p.inUse < p.limit {
			p.inUse++
			var b *backend
			if n := len(p.idle); n > 0 {
				b, p.idle = p.idle[n-1], p.idle[:n-1]
			}
			p.mu.Unlock()
			return p.session(b), nil
		}
		room := p.room
		p.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// session wraps b, or a new backend.
func (p *Pool) session(b *backend) *session {
	s := p.server
	if b == nil {
		b = &backend{held: make(map[int64]map[ports.Mode]int), over: make(chan struct{})}
		s.mu.Lock()
		s.lastPID++
		b.pid = s.lastPID
		s.sessions[b.pid] = b
		s.mu.Unlock()
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &session{pool: p, server: s, b: b, ctx: ctx, cancel: cancel, locks: make(map[int64]ports.Mode)}
}

// Usage implements ports.SessionPool.
func (p *Pool) Usage() (inUse, limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inUse, p.limit
}

// Inspect implements ports.Inspector.
func (p *Pool) Inspect(_ context.Context, id int64) ([]ports.SessionInfo, error) {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inspect(id), nil
}

// List implements ports.Lister.
func (p *Pool) List(context.Context) (map[int64][]ports.SessionInfo, error) {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	locks := make(map[int64][]ports.SessionInfo)
	for id := range s.locks {
		if infos := s.inspect(id); len(infos) > 0 {
			locks[id] = infos
		}
	}
	return locks, nil
}

// inspect tells who holds id and who waits for it. It holds s.mu.
func (s *Server) inspect(id int64) []ports.SessionInfo {
	l := s.locks[id]
	if l == nil {
		return nil
	}
	var infos []ports.SessionInfo
	for _, h := range l.holders {
		b := s.sessions[h.PID]
		infos = append(infos, ports.SessionInfo{PID: h.PID, Granted: true, Mode: h.Mode, HolderID: b.holderID, Since: b.since, Database: database})
	}
	for _, r := range l.queue {
		infos = append(infos, ports.SessionInfo{PID: r.b.pid, Mode: r.mode, Since: r.since, Database: database})
	}
	return infos
}

// Evict implements ports.Inspector.
func (p *Pool) Evict(_ context.Context, id int64, pid int) (bool, error) {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sessions[pid]
	if b == nil || len(b.held[id]) == 0 {
		return false, nil
	}
	s.end(b, errKilled)
	return true, nil
}

// Holds implements ports.Witness.
func (p *Pool) Holds(ctx context.Context, pid int, ids []int64) (held bool, err error) {
	s, err := p.open(ctx)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ports.ErrPoolExhausted, err)
	}
	defer context.AfterFunc(ctx, s.Destroy)()
	defer s.Recycle(ctx)
	err = s.command("holds", 0, func() error {
		s.server.mu.Lock()
		defer s.server.mu.Unlock()
		b := s.server.sessions[pid]
		held = b != nil && !slices.ContainsFunc(ids, func(id int64) bool { return len(b.held[id]) == 0 })
		return s.end()
	})
	return held, err
}

// giveBack makes room for another session; b is nil if it has ended.
func (p *Pool) giveBack(b *backend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inUse--
	if b != nil {
		p.idle = append(p.idle, b)
	}
	close(p.room)
	p.room = make(chan struct{})
}

// session implements ports.Session and ports.Batcher.
type session struct {
	pool   *Pool
	server *Server
	b      *backend
	ctx    context.Context // ends with Destroy
	cancel context.CancelFunc
	once   sync.Once // Recycle or Destroy, whichever comes first
	// locks is what Lock and Batch have granted and not taken back, in the eyes of
	// the client; only the goroutine that uses the session touches it.
	locks map[int64]ports.Mode
}

// Interruptible implements ports.Interruptible.
func (s *session) Interruptible() bool { return true }

// watched is a session that notices its own end.
type watched struct{ *session }

// Watch implements ports.Watcher.
func (w watched) Watch(ctx context.Context) error {
	select {
	case <-w.b.over:
	case <-w.ctx.Done():
	case <-ctx.Done():
	}
	return w.end() // nil if it was ctx that ended
}

// end is why the session is over; nil if it is not.
func (s *session) end() error {
	select {
	case <-s.ctx.Done():
		return fmt.Errorf("%w: destroyed by its user", ports.ErrSessionEnded)
	case <-s.b.over:
		return fmt.Errorf("%w: %w", ports.ErrSessionEnded, s.b.why)
	default:
		return nil
	}
}

// command runs act as one command, with what Intercept asks for around it.
func (s *session) command(op string, id int64, act func() error) error {
	if err := s.end(); err != nil {
		return err
	}
	s.server.mu.Lock()
	s.server.commands[op]++
	intercept := s.server.intercept
	s.server.mu.Unlock()
	if intercept == nil {
		return act()
	}
	c := Command{PID: s.b.pid, Op: op, ID: id}
	if err := intercept(s.ctx, c); err != nil {
		return err
	}
	if err := s.end(); err != nil {
		return err
	}
	err := act()
	c.Done = true
	if err := intercept(s.ctx, c); err != nil {
		return err
	}
	return err
}

// Lock implements ports.Session.
func (s *session) Lock(_ context.Context, r ports.LockRequest) (g ports.Grant, err error) {
	err = s.command("lock", r.ID, func() error {
		g, err = s.fenced(r)
		return err
	})
	if err == nil && g.Granted {
		s.locks[r.ID] = r.Mode
	}
	return g, err
}

// Exchange implements ports.Exchanger.
func (s *session) Exchange(_ context.Context, id int64, mode ports.Mode, r ports.LockRequest) (held bool, g ports.Grant, err error) {
	err = s.command("exchange", r.ID, func() error {
		if held, err = s.unlock(id, mode); err != nil || !held {
			return err
		}
		g, err = s.fenced(r)
		return err
	})
	if err == nil {
		delete(s.locks, id)
	}
	if err == nil && g.Granted {
		s.locks[r.ID] = r.Mode
	}
	return held, g, err
}

// fenced is lock, with a token if one is wanted.
func (s *session) fenced(r ports.LockRequest) (ports.Grant, error) {
	g, err := s.lock(r)
	if g.Granted && r.Fencing {
		s.server.mu.Lock()
		s.server.lastToken++
		g.Token = s.server.lastToken
		s.server.mu.Unlock()
	}
	return g, err
}

// lock takes or waits.
func (s *session) lock(r ports.LockRequest) (ports.Grant, error) {
	srv := s.server
	req := &request{b: s.b, mode: r.Mode, holderID: r.HolderID, since: time.Now(), granted: make(chan struct{})}
	grant := ports.Grant{Granted: true, PID: s.b.pid, Database: database}

	srv.mu.Lock()
	if err := s.end(); err != nil {
		srv.mu.Unlock()
		return ports.Grant{}, err
	}
	l := srv.locks[r.ID]
	if l == nil {
		l = &lock{}
		srv.locks[r.ID] = l
	}
	if len(l.queue) == 0 && l.free(req) {
		l.grant(r.ID, req)
		srv.mu.Unlock()
		return grant, nil
	}
	if r.Wait <= 0 {
		srv.mu.Unlock()
		return ports.Grant{PID: s.b.pid}, nil
	}
	l.queue = append(l.queue, req)
	srv.mu.Unlock()

	timer := time.NewTimer(r.Wait)
	defer timer.Stop()
	select {
	case <-req.granted:
		return grant, nil
	case <-s.b.over:
		return ports.Grant{}, s.end()
	case <-s.ctx.Done():
		return ports.Grant{}, s.end()
	case <-timer.C:
	}
	srv.mu.Lock()
	defer srv.mu.Unlock()
	select {
	case <-req.granted: // in the moment of the timeout
		return grant, nil
	default:
		srv.withdraw(r.ID, func(other *request) bool { return other == req })
		return ports.Grant{PID: s.b.pid}, s.end()
	}
}

// Batch implements ports.Batcher.
func (s *session) Batch(_ context.Context, b ports.Batch) (a ports.BatchAnswer, err error) {
	err = s.command("batch", 0, func() error {
		s.server.mu.Lock()
		defer s.server.mu.Unlock()
		if err := s.end(); err != nil {
			return err
		}
		a, err = s.server.batch(s.b, b)
		return err
	})
	if err != nil {
		return ports.BatchAnswer{}, err
	}
	for _, u := range b.Unlocks {
		delete(s.locks, u.ID)
	}
	for i, t := range b.Tries {
		if a.Granted[i] {
			s.locks[t.ID] = t.Mode
		}
	}
	return a, nil
}

// batch does what a batch asks for. The caller holds s.mu.
func (s *Server) batch(b *backend, batch ports.Batch) (ports.BatchAnswer, error) {
	a := ports.BatchAnswer{PID: b.pid, Database: database, LockTable: s.lockTable}
	for _, u := range batch.Unlocks {
		a.Unlocked = append(a.Unlocked, s.unlock(b, u.ID, u.Mode))
	}
	fenced := false
	for _, t := range batch.Tries {
		granted := t.Held
		if !t.Held {
			r := &request{b: b, mode: t.Mode, holderID: batch.HolderID}
			l := s.locks[t.ID]
			switch {
			case l == nil && s.lockTable > 0 && len(s.locks) >= s.lockTable:
				return a, fmt.Errorf("%w: out of shared memory", ports.ErrTooManyLocks)
			case l == nil:
				l = &lock{}
				s.locks[t.ID] = l
			}
			if granted = len(l.queue) == 0 && l.free(r); granted {
				l.grant(t.ID, r)
			}
		}
		a.Granted = append(a.Granted, granted)
		fenced = fenced || granted && t.Fencing
	}
	if fenced {
		s.lastToken++
		a.Token = s.lastToken
	}
	return a, nil
}

// unlock takes one count of a lock from b, and reports whether it had it. The
// caller holds s.mu.
func (s *Server) unlock(b *backend, id int64, mode ports.Mode) (held bool) {
	if b.held[id][mode] == 0 {
		return false
	}
	if b.held[id][mode]--; b.held[id][mode] == 0 {
		delete(b.held[id], mode)
		s.free(b, id, mode)
	}
	if len(b.held[id]) == 0 {
		delete(b.held, id)
	}
	return true
}

// Unlock implements ports.Session.
func (s *session) Unlock(_ context.Context, id int64, mode ports.Mode) (held bool, err error) {
	err = s.command("unlock", id, func() error {
		held, err = s.unlock(id, mode)
		return err
	})
	if err == nil {
		delete(s.locks, id)
	}
	return held, err
}

// unlock gives a lock back at the server.
func (s *session) unlock(id int64, mode ports.Mode) (held bool, err error) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if err := s.end(); err != nil {
		return false, err
	}
	return s.server.unlock(s.b, id, mode), nil
}

// Check implements ports.Session.
func (s *session) Check(_ context.Context, full bool) (int, error) {
	return s.b.pid, s.command("check", 0, func() error {
		s.server.mu.Lock()
		defer s.server.mu.Unlock()
		if err := s.end(); err != nil {
			return err
		}
		for id, mode := range s.locks {
			if full && s.b.held[id][mode] == 0 {
				return fmt.Errorf("%w: it no longer has the lock %d", ports.ErrSessionEnded, id)
			}
		}
		return nil
	})
}

// Recycle implements ports.Session.
func (s *session) Recycle(context.Context) bool {
	s.server.mu.Lock()
	clean := len(s.b.held) == 0 && s.end() == nil
	s.server.mu.Unlock()
	if !clean {
		s.Destroy()
		return false
	}
	s.once.Do(func() { s.pool.giveBack(s.b) })
	return true
}

// Destroy implements ports.Session.
func (s *session) Destroy() {
	s.once.Do(func() {
		s.cancel()
		s.server.mu.Lock()
		s.server.end(s.b, errors.New("the client closed the connection"))
		s.server.mu.Unlock()
		s.pool.giveBack(nil)
	})
}
