package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// pickyPool is a pool whose opening a test can watch, delay and fail, and whose
// sessions it can bend.
type pickyPool struct {
	*memlock.Pool
	open   func(ctx context.Context) error
	bend   func(ports.Session) ports.Session
	opened atomic.Int32
}

func (p *pickyPool) Open(ctx context.Context) (ports.Session, error) {
	p.opened.Add(1)
	if p.open != nil {
		if err := p.open(ctx); err != nil {
			return nil, err
		}
	}
	s, err := p.Pool.Open(ctx)
	if err == nil && p.bend != nil {
		s = p.bend(s)
	}
	return s, err
}

// bent is a session that answers as a pooler or a strange server makes it.
type bent struct {
	ports.Session
	pid    func(pid int) int
	lock   func(g ports.Grant, err error) (ports.Grant, error)
	unlock func(held bool, err error) (bool, error)
	check  func(pid int, err error) (int, error)
}

func (b *bent) Lock(ctx context.Context, r ports.LockRequest) (ports.Grant, error) {
	g, err := b.Session.Lock(ctx, r)
	if b.pid != nil {
		g.PID = b.pid(g.PID)
	}
	if b.lock != nil {
		return b.lock(g, err)
	}
	return g, err
}

func (b *bent) Unlock(ctx context.Context, id int64, mode ports.Mode) (bool, error) {
	held, err := b.Session.Unlock(ctx, id, mode)
	if b.unlock != nil {
		return b.unlock(held, err)
	}
	return held, err
}

func (b *bent) Check(ctx context.Context, full bool) (int, error) {
	pid, err := b.Session.Check(ctx, full)
	if b.pid != nil {
		pid = b.pid(pid)
	}
	if b.check != nil {
		return b.check(pid, err)
	}
	return pid, err
}

// verifying makes a manager that proves its setup, and checks at the end of the
// test that it has left nothing.
func verifying(t *testing.T, server *memlock.Server, pool ports.SessionPool, opts ...pglock.Option) *pglock.Manager {
	t.Helper()
	m := pglock.NewManager(pool, opts...)
	t.Cleanup(func() {
		if err := m.Close(bg); err != nil {
			t.Errorf("close: %v", err)
		}
		time.Sleep(window) // until what hangs was given up
		if n, _ := pool.Usage(); n != 0 || server.Locks() != 0 {
			t.Errorf("%d sessions are in use, %d locks are left", n, server.Locks())
		}
	})
	return m
}

func TestAProofIsMadeOnceBeforeTheFirstLock(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		m := verifying(t, server, pool)
		if server.Sessions() != 0 {
			t.Error("a manager has opened something on its own")
		}
		acquire(t, m, "k").Release(bg)
		locks, checks := server.Commands("lock"), server.Commands("check")
		if server.Sessions() != 2 || locks < 3 || checks < 2 {
			t.Errorf("%d sessions, %d locks, %d checks", server.Sessions(), locks, checks)
		}
		for range 3 {
			acquire(t, m, "k").Release(bg)
		}
		if n := server.Commands("lock") - locks; n != 3 || server.Commands("check") != checks {
			t.Errorf("3 later locks took %d statements and %d checks", n, server.Commands("check")-checks)
		}
		if n := m.Stats().Destroyed; n != 0 {
			t.Errorf("%d connections were burnt", n)
		}
		// Verify makes it anew.
		if err := m.Verify(bg); err != nil || server.Commands("check") == checks {
			t.Errorf("%v after %d checks", err, server.Commands("check")-checks)
		}
	})
}

func TestVerifyInsteadOfTheFirstLock(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := verifying(t, server, server.Pool())
		if err := m.Verify(bg); err != nil {
			t.Fatal(err)
		}
		asked := server.Commands("lock")
		acquire(t, m, "k").Release(bg)
		if n := server.Commands("lock") - asked; n != 1 {
			t.Errorf("%d statements", n)
		}
	})
}

func TestWithoutVerificationNothingIsProved(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := verifying(t, server, server.Pool(), pglock.WithoutVerification())
		acquire(t, m, "k").Release(bg)
		if server.Sessions() != 1 || server.Commands("lock") != 1 || server.Commands("check") != 0 {
			t.Errorf("%d sessions, %d locks, %d checks", server.Sessions(), server.Commands("lock"), server.Commands("check"))
		}
		if err := m.Verify(bg); err != nil || server.Commands("check") == 0 {
			t.Errorf("asked for, it is made all the same: %v", err)
		}
	})
}

// Each of these setups lets two holders in, or may.
func TestSetupsThatCannotExcludeAreRefused(t *testing.T) {
	setups := []struct {
		name, says string
		bend       func() func(ports.Session) ports.Session
	}{
		{"two connections on one server process", "one server process (77)", func() func(ports.Session) ports.Session {
			return func(s ports.Session) ports.Session { return &bent{Session: s, pid: func(int) int { return 77 }} }
		}},
		{"a server process that changes", "spread", func() func(ports.Session) ports.Session {
			return func(s ports.Session) ports.Session {
				n := 0
				return &bent{Session: s, check: func(pid int, err error) (int, error) {
					if n++; n > 2 {
						return 0, fmt.Errorf("%w: statements are spread", ports.ErrUnsafeConnection)
					}
					return pid, err
				}}
			}
		}},
		{"locks that do nothing", "do nothing", func() func(ports.Session) ports.Session {
			return func(s ports.Session) ports.Session {
				return &bent{Session: s,
					lock:   func(g ports.Grant, err error) (ports.Grant, error) { g.Granted = true; return g, err },
					unlock: func(bool, error) (bool, error) { return true, nil },
				}
			}
		}},
		{"locks that nobody gets", "refused", func() func(ports.Session) ports.Session {
			return func(s ports.Session) ports.Session {
				return &bent{Session: s, lock: func(ports.Grant, error) (ports.Grant, error) { return ports.Grant{}, nil }}
			}
		}},
		{"unlocks that find nothing", "gone when it was given back", func() func(ports.Session) ports.Session {
			return func(s ports.Session) ports.Session {
				return &bent{Session: s, unlock: func(bool, error) (bool, error) { return false, nil }}
			}
		}},
		{"a server in recovery", "in recovery", func() func(ports.Session) ports.Session {
			return func(s ports.Session) ports.Session {
				return &bent{Session: s, lock: func(ports.Grant, error) (ports.Grant, error) {
					return ports.Grant{}, fmt.Errorf("%w: in recovery", ports.ErrUnsafeConnection)
				}}
			}
		}},
		{"one session in two that is elsewhere", "do nothing", func() func(ports.Session) ports.Session {
			elsewhere, n := memlock.NewServer().Pool(), 0
			return func(s ports.Session) ports.Session {
				if n++; n%2 == 0 {
					other, _ := elsewhere.Open(bg)
					return &elsewhereSession{&bent{Session: other, pid: func(pid int) int { return pid + 1000 }}, s}
				}
				return s
			}
		}},
	}
	for _, setup := range setups {
		t.Run(setup.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				m := verifying(t, server, &pickyPool{Pool: server.Pool(), bend: setup.bend()})
				lock, err := m.Acquire(bg, "k")
				wraps(t, err, ports.ErrUnsafeConnection)
				var typed *ports.LockError
				if lock != nil || !errors.As(err, &typed) || !strings.Contains(err.Error(), setup.says) {
					t.Errorf("%v %v", lock, err)
				}
				_, ok, err := m.TryAcquire(bg, "k")
				wraps(t, err, ports.ErrUnsafeConnection)
				if ok {
					t.Error("a try got it")
				}
				_, err = m.AcquireAll(bg, []string{"k", "l"})
				wraps(t, err, ports.ErrUnsafeConnection)
				wraps(t, m.Verify(bg), ports.ErrUnsafeConnection)
				if n := m.Stats().Acquired; n != 0 {
					t.Errorf("%d locks were granted", n)
				}
			})
		})
	}
}

// elsewhereSession works on another server, and gives its place in the pool
// back.
type elsewhereSession struct {
	*bent
	here ports.Session
}

func (e *elsewhereSession) Recycle(ctx context.Context) bool {
	e.here.Recycle(ctx)
	return e.bent.Recycle(ctx)
}

func (e *elsewhereSession) Destroy() {
	e.here.Destroy()
	e.bent.Destroy()
}

// A setup in which the statements of a connection reach one of several server
// sessions by chance is found out, too, if not by each comparison.
func TestAProxyThatSpreadsStatementsIsFoundOut(t *testing.T) {
	for round := range 100 {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			m := verifying(t, server, newSpreadingPool(server, 4, round))
			wraps(t, m.Verify(bg), ports.ErrUnsafeConnection)
		})
	}
}

// spreadingPool sends each statement to one of a few sessions, which answer
// with their own PID.
type spreadingPool struct {
	*memlock.Pool
	mu       sync.Mutex
	sessions []ports.Session
	next     int
}

func newSpreadingPool(server *memlock.Server, n, start int) *spreadingPool {
	p := &spreadingPool{Pool: server.Pool(), next: start}
	back := server.Pool()
	for range n {
		s, _ := back.Open(bg)
		p.sessions = append(p.sessions, s)
	}
	return p
}

func (p *spreadingPool) Open(ctx context.Context) (ports.Session, error) {
	s, err := p.Pool.Open(ctx)
	return &spread{s, p}, err
}

type spread struct {
	ports.Session
	p *spreadingPool
}

func (s *spread) any() ports.Session {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.next = s.p.next*5 + 3
	return s.p.sessions[s.p.next>>3%len(s.p.sessions)]
}

func (s *spread) Lock(ctx context.Context, r ports.LockRequest) (ports.Grant, error) {
	return s.any().Lock(ctx, r)
}

func (s *spread) Unlock(ctx context.Context, id int64, mode ports.Mode) (bool, error) {
	return s.any().Unlock(ctx, id, mode)
}

func (s *spread) Check(ctx context.Context, full bool) (int, error) { return s.any().Check(ctx, full) }

func (s *spread) Destroy() {
	s.Session.Destroy()
	for _, back := range s.p.sessions {
		back.Destroy()
	}
}

func TestAProofIsDeferredUntilThereIsRoomForIt(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var log bytes.Buffer
		pool := server.Pool(memlock.WithLimit(2))
		m := verifying(t, server, pool, pglock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		busy, _ := pool.Open(bg)
		start := time.Now()
		wraps(t, m.Verify(bg), ports.ErrPoolExhausted)
		lock := acquire(t, m, "k")
		if d := time.Since(start); d != 0 || server.Commands("lock") != 1 {
			t.Errorf("the first lock took %v and %d statements", d, server.Commands("lock"))
		}
		if !strings.Contains(log.String(), "verification deferred") || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("log: %s", log.String())
		}
		lock.Release(bg)
		busy.Recycle(bg)
		acquire(t, m, "k").Release(bg)
		if server.Commands("check") == 0 {
			t.Error("the proof was not made when there was room")
		}
		checks := server.Commands("check")
		acquire(t, m, "k").Release(bg)
		if server.Commands("check") != checks {
			t.Error("it was made again")
		}
	})
}

func TestAPoolOfOneForLocksAloneDefersTheProofForEver(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := verifying(t, server, server.Pool(memlock.WithLimit(1)), pglock.WithMaxSessions(1))
		for range 3 {
			start := time.Now()
			acquire(t, m, "k").Release(bg)
			if d := time.Since(start); d != 0 {
				t.Errorf("it took %v", d)
			}
		}
		wraps(t, m.Verify(bg), ports.ErrPoolExhausted)
	})
}

// A connection that is slow to come is waited for: without it nothing would be
// proved. One that never comes is an error, not a reason to trust the setup.
func TestAProofWaitsForItsSecondSession(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		for _, delay := range []time.Duration{time.Second, time.Hour} {
			pool := &pickyPool{Pool: server.Pool()}
			pool.open = func(ctx context.Context) error {
				if pool.opened.Load() != 2 {
					return nil
				}
				select {
				case <-time.After(delay):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			m := verifying(t, server, pool)
			lock, err := m.Acquire(bg, "k")
			if delay == time.Second {
				if err != nil {
					t.Fatal(err)
				}
				lock.Release(bg)
			} else {
				wraps(t, err, ports.ErrPoolExhausted)
			}
		}
	})
}

func TestFirstLocksAtOnceShareOneProof(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		server.Intercept(func(context.Context, memlock.Command) error {
			time.Sleep(time.Millisecond)
			return nil
		})
		alone := memlock.NewServer()
		one := verifying(t, alone, alone.Pool())
		if err := one.Verify(bg); err != nil {
			t.Fatal(err)
		}
		m := verifying(t, server, server.Pool())
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { acquire(t, m, fmt.Sprint("k", i)).Release(bg) })
		}
		wg.Wait()
		if n, want := server.Commands("check"), alone.Commands("check"); n != want {
			t.Errorf("%d checks, one proof takes %d", n, want)
		}
	})
}

func TestAProofThatFailedIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pooler := atomic.Bool{}
		pooler.Store(true)
		pool := &pickyPool{Pool: server.Pool(), bend: func(s ports.Session) ports.Session {
			return &bent{Session: s, pid: func(pid int) int {
				if pooler.Load() {
					return 77
				}
				return pid
			}}
		}}
		m := verifying(t, server, pool)
		for range 2 {
			_, err := m.Acquire(bg, "k")
			wraps(t, err, ports.ErrUnsafeConnection)
		}
		pooler.Store(false) // the operator has mended it
		acquire(t, m, "k").Release(bg)
		pooler.Store(true)
		wraps(t, m.Verify(bg), ports.ErrUnsafeConnection)
	})
}

func TestTheErrorsOfAProofPassThrough(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		for _, op := range []string{"open", "check", "lock", "unlock"} {
			for _, done := range []bool{false, true} {
				why := fmt.Errorf("%s: permission denied", op)
				pool := &pickyPool{Pool: server.Pool()}
				if op == "open" {
					pool.open = func(context.Context) error { return why }
				}
				server.Intercept(func(_ context.Context, c memlock.Command) error {
					if c.Op == op && c.Done == done {
						return why
					}
					return nil
				})
				m := pglock.NewManager(pool)
				wraps(t, m.Verify(bg), why)
				_, err := m.Acquire(bg, "k")
				wraps(t, err, why)
				var typed *ports.LockError
				if !errors.As(err, &typed) || errors.Is(err, ports.ErrUnsafeConnection) || errors.Is(err, ports.ErrNotAcquired) {
					t.Errorf("%v", err)
				}
				server.Intercept(nil)
				if op != "open" {
					acquire(t, m, "k").Release(bg)
				}
				m.Close(bg)
				if n, _ := pool.Usage(); n != 0 || server.Locks() != 0 {
					t.Errorf("%s: %d sessions, %d locks", op, n, server.Locks())
				}
			}
		}
	})
}

// A session that the server ends during the proof frees its probe; that the
// other one gets it then says nothing against the setup.
func TestASessionThatIsKilledDuringTheProofIsNoUnsafeSetup(t *testing.T) {
	for nth := 1; nth <= 60; nth++ {
		for victim := 1; victim <= 2; victim++ {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				n := 0
				server.Intercept(func(_ context.Context, c memlock.Command) error {
					if n++; n == nth {
						server.Kill(victim)
					}
					return nil
				})
				m := verifying(t, server, server.Pool())
				if err := m.Verify(bg); errors.Is(err, ports.ErrUnsafeConnection) {
					t.Errorf("session %d was killed at step %d: %v", victim, nth, err)
				}
			})
		}
	}
}

// As without a proof, sessions that were dead when they came are replaced, and
// so is one that dies.
func TestAProofReplacesSessionsThatDiedInThePool(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		m := verifying(t, server, pool)
		var idle []ports.Session
		for range 5 {
			s, _ := pool.Open(bg)
			idle = append(idle, s)
		}
		for _, s := range idle {
			s.Recycle(bg)
		}
		for pid := 1; pid <= 5; pid++ { // a restart of the server
			server.Kill(pid)
		}
		lock, err := m.Acquire(bg, "k")
		if err != nil {
			t.Fatal(err)
		}
		lock.Release(bg)
	})
}

func TestAProofOnADeadNetworkIsBounded(t *testing.T) {
	for _, op := range []string{"check", "lock", "unlock"} {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			server.Intercept(stuck(op))
			m := verifying(t, server, server.Pool())
			start := time.Now()
			_, err := m.Acquire(bg, "k")
			if d := time.Since(start); err == nil || d > window/3+time.Second {
				t.Errorf("%s hangs: %v after %v", op, err, d)
			}
			start = time.Now()
			_, err = m.Acquire(bg, "k", ports.WithTimeout(time.Second))
			wraps(t, err, context.DeadlineExceeded)
			if d := time.Since(start); d > 1250*time.Millisecond {
				t.Errorf("%s hangs: a wait of 1 s took %v", op, d)
			}
		})
	}
}

func TestACallThatLeavesDoesNotBreakTheProofOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		server.Intercept(func(context.Context, memlock.Command) error {
			time.Sleep(10 * time.Millisecond)
			return nil
		})
		m := verifying(t, server, server.Pool())
		ctx, cancel := context.WithCancel(bg)
		time.AfterFunc(25*time.Millisecond, cancel)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := m.Acquire(ctx, "a")
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
		time.Sleep(time.Millisecond)
		wg.Go(func() { acquire(t, m, "b").Release(bg) })
		wg.Wait()
		if n := m.Stats().Destroyed; n != 0 {
			t.Errorf("%d sessions were destroyed", n)
		}
	})
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := verifying(t, server, &pickyPool{Pool: server.Pool(), open: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		start := time.Now()
		wraps(t, m.Verify(ctx), context.DeadlineExceeded)
		if d := time.Since(start); d != time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// Close comes at each moment of a proof.
func TestCloseDuringAProofIsCleanAndSoon(t *testing.T) {
	const latency = 100 * time.Millisecond
	for delay := range 40 {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			server.Intercept(func(context.Context, memlock.Command) error {
				time.Sleep(latency)
				return nil
			})
			pool := &pickyPool{Pool: server.Pool(), open: func(context.Context) error {
				time.Sleep(latency)
				return nil
			}}
			m := pglock.NewManager(pool, pglock.WithLivenessWindow(pglock.MinLivenessWindow))
			done := make(chan error, 1)
			go func() {
				lock, err := m.Acquire(bg, "k")
				if err == nil {
					err = lock.Release(bg)
				}
				done <- err
			}()
			time.Sleep(time.Duration(delay) * latency / 2)
			start := time.Now()
			err := m.Close(bg)
			if d := time.Since(start); err != nil || d > 5*latency {
				t.Errorf("closed at %v: %v after %v", time.Duration(delay)*latency/2, err, d)
			}
			if err := <-done; err != nil && !errors.Is(err, ports.ErrClosed) {
				t.Error(err)
			}
			time.Sleep(window) // until what hangs was given up
			if n, _ := pool.Usage(); n != 0 || server.Locks() != 0 {
				t.Errorf("%d sessions, %d locks", n, server.Locks())
			}
		})
	}
}

// Nothing comes of the opening of a session that hangs once the manager is
// closed, so Close does not wait for it.
func TestCloseDoesNotWaitForAProofThatCannotConnect(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := &pickyPool{Pool: server.Pool(), open: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		m := pglock.NewManager(pool)
		done := make(chan error, 1)
		go func() { _, err := m.Acquire(bg, "k"); done <- err }()
		time.Sleep(time.Second)
		start := time.Now()
		if err := m.Close(bg); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("it took %v", d)
		}
		wraps(t, <-done, ports.ErrClosed)
	})
}

func TestAClosedManagerVerifiesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := verifying(t, server, server.Pool())
		m.Close(bg)
		wraps(t, m.Verify(bg), ports.ErrClosed)
		if server.Sessions() != 0 {
			t.Errorf("%d sessions were opened", server.Sessions())
		}
	})
}

// Every third check looks at the locks. One that gives no answer must be made
// up for, or a lock that was dropped goes unnoticed for longer than the window.
func TestALookAtTheLocksThatFailedIsMadeUpFor(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		fulls := 0
		pool := &pickyPool{Pool: server.Pool(memlock.WithoutWatch()), bend: func(s ports.Session) ports.Session {
			return &fullFails{s, &fulls}
		}}
		m := verifying(t, server, pool, pglock.WithoutVerification())
		lock := acquire(t, m, "k")
		start := time.Now()
		server.DropLocks(lock.Info().PID)
		<-lock.Done()
		if d := time.Since(start); d > window {
			t.Errorf("told after %v, the window is %v", d, window)
		}
		wraps(t, lock.Err(), ports.ErrLost)
	})
}

// fullFails is a session whose first full check gives no answer.
type fullFails struct {
	ports.Session
	fulls *int
}

func (s *fullFails) Check(ctx context.Context, full bool) (int, error) {
	if full {
		if *s.fulls++; *s.fulls == 1 {
			return 0, errors.New("canceling statement due to user request")
		}
	}
	return s.Session.Check(ctx, full)
}

// Nothing bounds this try but the manager: it must not wait for a connection
// longer than its second, even if it had one that died.
func TestATryWhoseSessionDiesDoesNotWaitForAFullPool(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := &pickyPool{Pool: server.Pool(memlock.WithLimit(2))}
		first, _ := pool.Pool.Open(bg) // session 1
		pool.bend = func(s ports.Session) ports.Session { return &taken{s, pool.Pool} }
		server.Intercept(func(_ context.Context, c memlock.Command) error {
			if c.PID == 2 && !c.Done {
				time.Sleep(1500 * time.Millisecond)
				server.Kill(2)
			}
			return nil
		})
		m := verifying(t, server, pool, pglock.WithoutVerification())
		time.AfterFunc(10*window, func() { first.Recycle(bg) })
		start := time.Now()
		lock, _, err := m.TryAcquire(bg, "k")
		if d := time.Since(start); d > window/3+time.Second {
			t.Errorf("a try took %v: %v", d, err)
		}
		if err == nil {
			lock.Release(bg)
		}
		time.Sleep(11 * window)
	})
}

// taken is a session whose place in the pool is taken by somebody who has
// waited for it, for a long time.
type taken struct {
	ports.Session
	pool *memlock.Pool
}

func (s *taken) Destroy() {
	s.Session.Destroy()
	if next, err := s.pool.Open(bg); err == nil {
		time.AfterFunc(10*window, func() { next.Recycle(bg) })
	}
}

// The pool's limit may be changed at any time.
func TestAPoolThatShrinksMeanwhileHangsNobody(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := &shrinkingPool{Pool: server.Pool()}
		pool.limit.Store(2)
		m := pglock.NewManager(pool, pglock.WithoutVerification())
		lock := acquire(t, m, "a")
		done := make(chan error, 1)
		go func() {
			_, err := m.Acquire(bg, "b", ports.WithTimeout(window))
			done <- err
		}()
		time.Sleep(time.Second) // it waits for a session
		pool.shrink.Store(true) // between two looks at it
		lock.Release(bg)
		<-done
		if n := pool.looks.Load(); n > 100 {
			t.Errorf("the manager has looked at its pool %d times", n)
		}
		m.Close(bg)
	})
}

// shrinkingPool has no room any more after it was looked at once more; after
// many more looks it has, lest a test hang for ever.
type shrinkingPool struct {
	*memlock.Pool
	limit, looks atomic.Int32
	shrink       atomic.Bool
}

func (p *shrinkingPool) Usage() (int, int) {
	inUse, _ := p.Pool.Usage()
	if p.shrink.Load() {
		if n := p.looks.Add(1); n > 1 && n < 10000 {
			return inUse, 1
		}
	}
	return inUse, int(p.limit.Load())
}
