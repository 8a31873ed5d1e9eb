package mocklock

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

var errLost = fmt.Errorf("%w: by Lose", ports.ErrSessionEnded)

// pool implements ports.SessionPool on a mock. A session pins no connection: it
// would be one more for the application's mock to see closed.
type pool struct {
	db *sql.DB
	// turn has room for one who asks the mock; with two at a time the *sql.DB
	// would open a second connection.
	turn chan struct{}

	mu       sync.Mutex
	keys     map[int64]string // of the IDs that were asked for
	refused  map[int64]bool   // IDs that someone else keeps until the call ends
	sessions []*session
	lastPID  int
	token    ports.Token
}

func newPool(db *sql.DB) *pool {
	return &pool{db: db, turn: make(chan struct{}, 1), keys: make(map[int64]string), refused: make(map[int64]bool)}
}

// Pairs implements ports.PairPool. Expectations are about keys, so an ID of
// either kind is the same to the mock.
func (p *pool) Pairs() ports.SessionPool { return p }

// Open implements ports.SessionPool.
func (p *pool) Open(context.Context) (ports.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastPID++
	s := &session{pool: p, pid: p.lastPID, over: make(chan struct{}), gone: make(chan struct{}), locks: make(map[int64]string)}
	p.sessions = append(p.sessions, s)
	return s, nil
}

// Usage implements ports.SessionPool.
func (p *pool) Usage() (inUse, limit int) { return 0, 0 }

// key is the key behind an ID.
func (p *pool) key(id int64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if key, ok := p.keys[id]; ok {
		return key
	}
	return fmt.Sprintf("(lock ID %d)", id) // of a proof that was asked for
}

// keeps reports whether someone else keeps the lock.
func (p *pool) keeps(id int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused[id]
}

// refuse notes that someone else keeps the lock.
func (p *pool) refuse(id int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused[id] = true
}

// nextToken makes a fencing token.
func (p *pool) nextToken() ports.Token {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.token++
	return p.token
}

// lose ends the sessions that hold key, and waits until the manager has noticed.
func (p *pool) lose(key string) (found bool) {
	p.mu.Lock()
	var holders []*session
	for _, s := range p.sessions {
		for _, held := range s.locks {
			if held == key {
				holders = append(holders, s)
			}
		}
	}
	p.mu.Unlock()
	for _, s := range holders {
		s.end()
		<-s.gone
	}
	return len(holders) > 0
}

// session implements ports.Session and ports.Watcher.
type session struct {
	pool *pool
	pid  int
	// over is closed when the session has ended, gone when the manager has let
	// go of it.
	over, gone  chan struct{}
	ends, leave sync.Once
	locks       map[int64]string // their keys; guarded by pool.mu
}

// end ends the session.
func (s *session) end() { s.ends.Do(func() { close(s.over) }) }

// ask sends a statement about a key to the mock.
func (s *session) ask(ctx context.Context, statement, key string) (answer bool, err error) {
	select {
	case s.pool.turn <- struct{}{}:
		defer func() { <-s.pool.turn }()
	case <-s.over:
		return false, errLost
	}
	err = s.pool.db.QueryRowContext(ctx, statement, key).Scan(&answer)
	return answer, err
}

// Lock implements ports.Session. A lock that was refused stays so for the rest of
// the call, without another statement.
func (s *session) Lock(ctx context.Context, r ports.LockRequest) (ports.Grant, error) {
	if s.pool.keeps(r.ID) {
		wait := time.NewTimer(r.Wait)
		defer wait.Stop()
		select {
		case <-wait.C:
			return ports.Grant{PID: s.pid}, nil
		case <-s.over:
			return ports.Grant{}, errLost
		}
	}
	key := s.pool.key(r.ID)
	granted, err := s.ask(ctx, lockStatement(r.Mode), key)
	switch {
	case err != nil:
		return ports.Grant{}, err
	case !granted:
		s.pool.refuse(r.ID)
		return ports.Grant{PID: s.pid}, nil
	}
	token := s.pool.nextToken()
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.locks[r.ID] = key
	return ports.Grant{Granted: true, PID: s.pid, Database: "sqlmock", Token: token}, nil
}

// Unlock implements ports.Session.
func (s *session) Unlock(ctx context.Context, id int64, mode ports.Mode) (bool, error) {
	s.pool.mu.Lock()
	key := s.locks[id]
	delete(s.locks, id)
	s.pool.mu.Unlock()
	return s.ask(ctx, unlockStatement(mode), key)
}

// Check implements ports.Session. It asks nobody.
func (s *session) Check(context.Context, bool) (int, error) {
	select {
	case <-s.over:
		return 0, errLost
	default:
		return s.pid, nil
	}
}

// Watch implements ports.Watcher.
func (s *session) Watch(ctx context.Context) error {
	select {
	case <-s.over:
		return errLost
	case <-ctx.Done():
		return nil
	}
}

// Recycle implements ports.Session.
func (s *session) Recycle(context.Context) bool {
	s.Destroy()
	return true
}

// Destroy implements ports.Session.
func (s *session) Destroy() {
	s.leave.Do(func() {
		s.end()
		s.pool.mu.Lock()
		defer s.pool.mu.Unlock()
		s.pool.sessions = slices.DeleteFunc(s.pool.sessions, func(other *session) bool { return other == s })
		close(s.gone)
	})
}

var _ ports.Watcher = (*session)(nil)
