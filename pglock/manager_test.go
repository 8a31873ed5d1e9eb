package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

const window = pglock.DefaultLivenessWindow

var bg = context.Background()

// bubble runs a test in virtual time. A goroutine that it leaves behind fails
// it.
func bubble(t *testing.T, f func(t *testing.T, server *memlock.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, memlock.NewServer()) })
}

// manager makes a manager that the test closes at its end.
func manager(t *testing.T, pool *memlock.Pool, opts ...pglock.Option) *pglock.Manager {
	t.Helper()
	m := pglock.NewManager(pool, append([]pglock.Option{pglock.WithoutVerification()}, opts...)...)
	t.Cleanup(func() {
		if err := m.Close(bg); err != nil {
			t.Errorf("close: %v", err)
		}
		if n, _ := pool.Usage(); n != 0 {
			t.Errorf("%d sessions are left in use", n)
		}
	})
	return m
}

func acquire(t *testing.T, m *pglock.Manager, key string, opts ...ports.AcquireOption) ports.Lock {
	t.Helper()
	lock, err := m.Acquire(bg, key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func wraps(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Fatalf("error %v does not wrap %v", err, target)
		}
	}
}

// stuck has every command of this op block until its session is destroyed, like
// a driver that ignores its context on a dead network.
func stuck(ops ...string) func(context.Context, memlock.Command) error {
	return func(ctx context.Context, c memlock.Command) error {
		for _, op := range ops {
			if c.Op == op {
				<-ctx.Done()
				return errors.New("read: connection timed out")
			}
		}
		return nil
	}
}

func TestAThousandWaitersPinOneSession(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, pool := manager(t, server.Pool()), server.Pool()
		m := manager(t, pool)
		lock := acquire(t, holder, "k")
		var served sync.WaitGroup
		for range 1000 {
			served.Go(func() {
				lock, err := m.Acquire(bg, "k")
				if err != nil {
					t.Error(err)
					return
				}
				if err := lock.Release(bg); err != nil {
					t.Error(err)
				}
			})
		}
		before := server.Commands("lock")
		time.Sleep(10 * time.Second)
		if n, _ := pool.Usage(); n != 1 {
			t.Errorf("%d sessions are pinned", n)
		}
		if n := server.Commands("lock") - before; n > 22 {
			t.Errorf("%d statements in 10 s", n)
		}
		if s := m.Stats(); s.Waiting != 1000 || s.Sessions != 1 {
			t.Errorf("%+v", s)
		}
		if err := lock.Release(bg); err != nil {
			t.Error(err)
		}
		served.Wait()
		if s := m.Stats(); s.Acquired != 1000 || s.Waiting != 0 || s.Held != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestWaitersBehindAHoldOfTheirOwnManagerAskNobody(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		m := manager(t, pool)
		lock := acquire(t, m, "k")
		var served sync.WaitGroup
		for range 100 {
			served.Go(func() {
				if lock, err := m.Acquire(bg, "k"); err == nil {
					lock.Release(bg)
				}
			})
		}
		time.Sleep(10 * time.Second)
		if n, asked := func() (int, int) { n, _ := pool.Usage(); return n, server.Commands("lock") }(); n != 1 || asked != 1 {
			t.Errorf("%d sessions, %d statements", n, asked)
		}
		lock.Release(bg)
		served.Wait()
	})
}

func TestAWaiterThatLeavesDisturbsNoStatement(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, pool := manager(t, server.Pool()), server.Pool()
		m := manager(t, pool)
		lock := acquire(t, holder, "k")
		// Callers come and give up after 10 ms each: they all use one session.
		for range 100 {
			ctx, cancel := context.WithCancel(bg)
			time.AfterFunc(10*time.Millisecond, cancel)
			_, err := m.Acquire(ctx, "k")
			wraps(t, err, context.Canceled)
			if n, _ := pool.Usage(); n > 1 {
				t.Fatalf("%d sessions", n)
			}
		}
		if n := m.Stats().Destroyed; n != 0 {
			t.Errorf("%d connections were burnt", n)
		}
		// And nothing of them is left after a slice.
		time.Sleep(time.Second)
		if n, _ := pool.Usage(); n != 0 || server.Waiters(m.KeyID("k")) != 0 {
			t.Errorf("%d sessions, %d waiters", n, server.Waiters(m.KeyID("k")))
		}
		lock.Release(bg)
	})
}

func TestATryIsNotKeptByWaitersThatHaveLeft(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool()), manager(t, server.Pool())
		lock := acquire(t, holder, "k")
		ctx, cancel := context.WithCancel(bg)
		time.AfterFunc(10*time.Millisecond, cancel)
		_, err := m.Acquire(ctx, "k")
		wraps(t, err, context.Canceled)
		start := time.Now()
		if _, ok, err := m.TryAcquire(bg, "k"); ok || err != nil {
			t.Errorf("%v %v", ok, err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("a try took %v", d)
		}
		lock.Release(bg)
		synctest.Wait() // what was left of the wait is granted the lock, and gives it back
		mine, ok, err := m.TryAcquire(bg, "k")
		if !ok || err != nil {
			t.Fatalf("%v %v", ok, err)
		}
		mine.Release(bg)
	})
}

func TestATryBehindAWaiterIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool()), manager(t, server.Pool())
		lock := acquire(t, holder, "k")
		got := make(chan ports.Lock, 1)
		go func() {
			l, _ := m.Acquire(bg, "k")
			got <- l
		}()
		time.Sleep(1100 * time.Millisecond) // in the middle of a slice
		asked := server.Commands("lock")
		if _, ok, err := m.TryAcquire(bg, "k"); ok || err != nil {
			t.Errorf("%v %v", ok, err)
		}
		if server.Commands("lock") != asked {
			t.Error("the try asked the server what the manager knew")
		}
		lock.Release(bg)
		(<-got).Release(bg)
	})
}

func TestManyTriesAtOnceGiveOneHolder(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		m := manager(t, pool)
		server.Intercept(func(context.Context, memlock.Command) error {
			time.Sleep(time.Millisecond)
			if n, _ := pool.Usage(); n > 1 {
				t.Errorf("%d sessions for one key", n)
			}
			return nil
		})
		var wg sync.WaitGroup
		var mu sync.Mutex
		var locks []ports.Lock
		for range 100 {
			wg.Go(func() {
				if lock, ok, err := m.TryAcquire(bg, "k"); err != nil {
					t.Error(err)
				} else if ok {
					mu.Lock()
					locks = append(locks, lock)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(locks) != 1 {
			t.Fatalf("%d of 100 tries hold the key", len(locks))
		}
		locks[0].Release(bg)
	})
}

func TestSharedAndExclusiveWaitersAreServedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		first := acquire(t, m, "k")
		modes := []string{"shared", "shared", "exclusive", "shared"}
		waited := make([]time.Duration, len(modes))
		var start time.Time
		var wg sync.WaitGroup
		for i, mode := range modes {
			wg.Go(func() {
				var opts []ports.AcquireOption
				if mode == "shared" {
					opts = append(opts, ports.WithShared())
				}
				lock, err := m.Acquire(bg, "k", opts...)
				if err != nil {
					t.Error(err)
					return
				}
				waited[i] = time.Since(start)
				time.Sleep(time.Second)
				lock.Release(bg)
			})
			time.Sleep(time.Millisecond)
		}
		start = time.Now()
		first.Release(bg)
		wg.Wait()
		if got := fmt.Sprint(waited); got != "[0s 0s 1s 2s]" {
			t.Errorf("they waited %s", got)
		}
	})
}

func TestTheNextInLineAdoptsAStatementOfTheRightMode(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool()), manager(t, server.Pool())
		lock := acquire(t, holder, "k")
		ctx, cancel := context.WithCancel(bg)
		go m.Acquire(ctx, "k") // exclusive, and gives up
		time.Sleep(100 * time.Millisecond)
		got := make(chan ports.Lock, 1)
		go func() {
			l, _ := m.Acquire(bg, "k", ports.WithShared())
			got <- l
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		lock.Release(bg)
		shared := <-got
		if h := server.Holders(m.KeyID("k")); len(h) != 1 || h[0].Mode != ports.Shared || shared.Info().Mode != ports.Shared {
			t.Errorf("%v", h)
		}
		shared.Release(bg)
	})
}

func TestPollingPinsNothingBetweenTries(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, pool := manager(t, server.Pool()), server.Pool()
		m := manager(t, pool)
		lock := acquire(t, holder, "k")
		got := make(chan ports.Lock, 1)
		go func() {
			l, _ := m.Acquire(bg, "k", ports.WithPolling(time.Second))
			got <- l
		}()
		before := server.Commands("lock")
		pinned := 0
		for range 1000 {
			time.Sleep(17 * time.Millisecond)
			n, _ := pool.Usage()
			pinned += n
		}
		if tries := server.Commands("lock") - before; tries < 11 || tries > 35 {
			t.Errorf("%d tries in 17 s, at intervals of 0.5 to 1.5 s", tries)
		}
		if pinned > 0 || server.Waiters(m.KeyID("k")) > 0 {
			t.Errorf("a session was pinned %d times of 1000", pinned)
		}
		lock.Release(bg)
		(<-got).Release(bg)
	})
}

func TestOneWhoWaitsAtTheServerEndsThePollingOfOthers(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool()), manager(t, server.Pool())
		lock := acquire(t, holder, "k")
		var wg sync.WaitGroup
		for _, opts := range [][]ports.AcquireOption{{ports.WithPolling(time.Hour)}, nil} {
			wg.Go(func() {
				if l, err := m.Acquire(bg, "k", opts...); err == nil {
					l.Release(bg)
				}
			})
			time.Sleep(1100 * time.Millisecond) // in the middle of a slice
		}
		if server.Waiters(m.KeyID("k")) != 1 {
			t.Error("nobody waits at the server")
		}
		start := time.Now()
		lock.Release(bg)
		wg.Wait()
		if time.Since(start) > time.Second {
			t.Errorf("served after %v", time.Since(start))
		}
	})
}

func TestSessionsAreCappedBelowThePoolsSize(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, pool := manager(t, server.Pool()), server.Pool(memlock.WithLimit(4))
		m := manager(t, pool)
		lock := acquire(t, m, "mine")
		for i := range 6 {
			acquire(t, holder, fmt.Sprint("k", i))
			go m.Acquire(bg, fmt.Sprint("k", i))
		}
		time.Sleep(time.Second)
		if n, _ := pool.Usage(); n != 3 {
			t.Errorf("%d of 4 sessions are pinned", n)
		}
		// The holder's own query still finds a connection.
		s, err := pool.Open(bg)
		if err != nil {
			t.Fatal(err)
		}
		s.Recycle(bg)
		// Who cannot even contend is told that the pool is the reason.
		_, err = m.Acquire(bg, "other", ports.WithTimeout(time.Second))
		wraps(t, err, ports.ErrPoolExhausted, context.DeadlineExceeded)
		if errors.Is(err, ports.ErrNotAcquired) || !strings.Contains(err.Error(), "3 of 3 sessions") {
			t.Errorf("%v", err)
		}
		start := time.Now()
		_, ok, err := m.TryAcquire(bg, "other")
		wraps(t, err, ports.ErrPoolExhausted)
		if ok || time.Since(start) != time.Second {
			t.Errorf("a try without a session took %v", time.Since(start))
		}
		lock.Release(bg)
	})
}

func TestAPoolOfOneIsRefusedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool(memlock.WithLimit(1))
		m := manager(t, pool)
		_, err := m.Acquire(bg, "k")
		wraps(t, err, ports.ErrPoolExhausted)
		_, _, err = m.TryAcquire(bg, "k")
		wraps(t, err, ports.ErrPoolExhausted)
		if !strings.Contains(err.Error(), "WithMaxSessions(1)") {
			t.Errorf("%v does not say what to do", err)
		}
		dedicated := manager(t, pool, pglock.WithMaxSessions(1))
		lock := acquire(t, dedicated, "k")
		_, err = dedicated.Acquire(bg, "other", ports.WithTimeout(time.Second))
		wraps(t, err, ports.ErrPoolExhausted)
		lock.Release(bg)
	})
}

func TestAPoolThatTheApplicationHasFilledIsExhaustedNotContended(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool(memlock.WithLimit(2))
		m := manager(t, pool)
		a, _ := pool.Open(bg)
		b, _ := pool.Open(bg)
		_, err := m.Acquire(bg, "k", ports.WithTimeout(time.Second))
		wraps(t, err, ports.ErrPoolExhausted, context.DeadlineExceeded)
		_, _, err = m.TryAcquire(bg, "k")
		wraps(t, err, ports.ErrPoolExhausted)
		// A patient one is served when there is room, however late.
		got := make(chan ports.Lock, 1)
		go func() { got <- acquire(t, m, "k") }()
		time.Sleep(3 * window)
		a.Recycle(bg)
		(<-got).Release(bg)
		b.Recycle(bg)
	})
}

func TestSessionsThatDiedInThePoolAreReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		m := manager(t, pool)
		var idle []ports.Session
		for range 50 { // a pool full of idle sessions, and a restart of the server
			s, _ := pool.Open(bg)
			idle = append(idle, s)
		}
		for _, s := range idle {
			s.Recycle(bg)
		}
		for pid := 1; pid <= 50; pid++ {
			server.Kill(pid)
		}
		acquire(t, m, "k").Release(bg)
		if server.Sessions() != 1 {
			t.Errorf("%d sessions", server.Sessions())
		}
	})
}

func TestAWaiterOutlivesItsSession(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool()), manager(t, server.Pool())
		lock := acquire(t, holder, "k")
		got := make(chan ports.Lock, 1)
		go func() { got <- acquire(t, m, "k") }()
		for pid := lock.Info().PID + 1; pid < lock.Info().PID+5; pid++ {
			time.Sleep(time.Second)
			if !server.Kill(pid) {
				t.Fatalf("no session %d waits", pid)
			}
		}
		time.Sleep(time.Second)
		lock.Release(bg)
		(<-got).Release(bg)
	})
}

func TestAFailureIsToldToEveryWaiterAndIsNotContention(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		denied := errors.New("permission denied for function pg_advisory_lock")
		server.Intercept(func(_ context.Context, c memlock.Command) error {
			time.Sleep(time.Millisecond)
			return denied
		})
		pool := server.Pool()
		m := manager(t, pool)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				var err error
				if i%2 == 0 {
					_, err = m.Acquire(bg, "k")
				} else {
					_, _, err = m.TryAcquire(bg, "k")
				}
				var typed *ports.LockError
				if !errors.Is(err, denied) || errors.Is(err, ports.ErrNotAcquired) || !errors.As(err, &typed) || typed.Err != denied {
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		if n, _ := pool.Usage(); n != 0 {
			t.Errorf("%d sessions", n)
		}
	})
}

func TestAnAnswerThatIsLostLeavesNoLock(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		lost := errors.New("read: connection reset by peer")
		server.Intercept(func(_ context.Context, c memlock.Command) error {
			if c.Op == "lock" && c.Done {
				return lost
			}
			return nil
		})
		m := manager(t, server.Pool())
		_, err := m.Acquire(bg, "k")
		wraps(t, err, lost)
		if server.Locks() != 0 {
			t.Error("the lock is left behind")
		}
	})
}

func TestAServerThatDoesNotAnswerHangsNobody(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		server.Intercept(stuck("lock"))
		m := manager(t, server.Pool())
		within := func(bound time.Duration, what string, call func() error) error {
			start := time.Now()
			err := call()
			if d := time.Since(start); d > bound {
				t.Errorf("%s took %v, its bound is %v", what, d, bound)
			}
			if err == nil || errors.Is(err, ports.ErrNotAcquired) {
				t.Errorf("%s: %v", what, err)
			}
			return err
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		wraps(t, within(2*time.Second, "a wait with a deadline", func() error { _, err := m.Acquire(ctx, "k"); return err }), context.DeadlineExceeded)
		ctx, cancel = context.WithCancel(bg)
		time.AfterFunc(time.Second, cancel)
		wraps(t, within(time.Second, "a wait that is cancelled", func() error { _, err := m.Acquire(ctx, "k"); return err }), context.Canceled)
		within(window/3+2*time.Second, "a wait without a bound", func() error { _, err := m.Acquire(bg, "k"); return err })
		within(window/3+2*time.Second, "a try", func() error { _, _, err := m.TryAcquire(bg, "k"); return err })
	})
}

func TestATryWhoseTimeRunsOutSaysFalseIfTheAnswerIsKnown(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool()), manager(t, server.Pool())
		lock := acquire(t, holder, "k")
		server.Intercept(func(_ context.Context, c memlock.Command) error {
			if c.Done {
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		})
		for _, call := range []func() (ports.Lock, bool, error){
			func() (ports.Lock, bool, error) { return m.TryAcquire(bg, "k", ports.WithTimeout(50*time.Millisecond)) },
			func() (ports.Lock, bool, error) {
				ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
				defer cancel()
				return m.TryAcquire(ctx, "k")
			},
		} {
			if _, ok, err := call(); ok || err != nil {
				t.Errorf("%v %v", ok, err)
			}
		}
		server.Intercept(nil)
		lock.Release(bg)
	})
}

func TestReleasesByKeyMayRace(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					lock := acquire(t, m, "k", ports.WithShared())
					m.Release(bg, "k")
					lock.Release(bg)
				}
			})
		}
		wg.Wait()
		if m.HeldCount() != 0 || server.Locks() != 0 {
			t.Errorf("%d holds, %d locks", m.HeldCount(), server.Locks())
		}
	})
}

func TestALossIsToldAtOnceWhereTheSessionIsWatched(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		lock := acquire(t, m, "k")
		ctx, cancel := pglock.Context(bg, lock)
		defer cancel()
		start := time.Now()
		server.Kill(lock.Info().PID)
		<-lock.Done()
		<-ctx.Done()
		if time.Since(start) != 0 {
			t.Errorf("told after %v", time.Since(start))
		}
		wraps(t, lock.Err(), ports.ErrLost)
		wraps(t, context.Cause(ctx), ports.ErrLost)
		if m.Stats().Lost != 1 {
			t.Errorf("%+v", m.Stats())
		}
	})
}

func TestALossIsToldByTheNextCheckOtherwise(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(memlock.WithoutWatch()))
		lock := acquire(t, m, "k")
		start := time.Now()
		server.Kill(lock.Info().PID)
		<-lock.Done()
		if d := time.Since(start); d > window/5 {
			t.Errorf("told after %v", d)
		}
		wraps(t, lock.Release(bg), ports.ErrLost)
	})
}

func TestALockDroppedUnderALivingSessionIsNoticed(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		lock := acquire(t, m, "k")
		start := time.Now()
		server.DropLocks(lock.Info().PID)
		<-lock.Done()
		if d := time.Since(start); d > window {
			t.Errorf("told after %v", d)
		}
		wraps(t, lock.Err(), ports.ErrLost)

		again := acquire(t, m, "k")
		server.DropLocks(again.Info().PID)
		wraps(t, again.Release(bg), ports.ErrLost)
	})
}

func TestInAPartitionTheHolderIsToldInTime(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(memlock.WithoutWatch()))
		for offset := range 20 {
			lock := acquire(t, m, "k")
			time.Sleep(time.Duration(offset) * window / 100)
			start := time.Now()
			server.Intercept(stuck("check", "unlock"))
			<-lock.Done()
			// The last confirmed check was sent at most W/5 before the cut.
			if d := time.Since(start); d > 3*window/5 || d < 2*window/5 {
				t.Errorf("told after %v", d)
			}
			wraps(t, lock.Release(bg), ports.ErrLost)
			server.Intercept(nil)
		}
	})
}

// One slow heartbeat is not a loss.
func TestCase39ASlowCheckIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(memlock.WithoutWatch()))
		slow := 0
		server.Intercept(func(ctx context.Context, c memlock.Command) error {
			if c.Op == "check" && !c.Done {
				if slow++; slow%2 == 0 {
					time.Sleep(window * 3 / 10)
				}
			}
			return nil
		})
		lock := acquire(t, m, "k")
		time.Sleep(5 * window)
		if lock.Err() != nil || slow < 10 {
			t.Errorf("%v after %d checks", lock.Err(), slow)
		}
		lock.Release(bg)
	})
}

func TestAFailedCheckIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(memlock.WithoutWatch()))
		checks := 0
		server.Intercept(func(ctx context.Context, c memlock.Command) error {
			if c.Op == "check" && !c.Done {
				if checks++; checks%2 != 0 {
					return errors.New("canceling statement due to user request")
				}
			}
			return nil
		})
		lock := acquire(t, m, "k")
		time.Sleep(5 * window)
		if lock.Err() != nil {
			t.Error(lock.Err())
		}
		lock.Release(bg)
	})
}

func TestAReleaseReturnsWithinItsBound(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		dead, cancel := context.WithCancel(bg)
		cancel()
		for _, ctx := range []context.Context{bg, dead} {
			lock := acquire(t, m, "k")
			server.Intercept(stuck("unlock"))
			start := time.Now()
			err := lock.Release(ctx)
			if err == nil || errors.Is(err, ports.ErrLost) || time.Since(start) != window/3 {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			server.Intercept(nil)
			synctest.Wait()
			if server.Locks() != 0 {
				t.Error("the lock is left behind")
			}
		}
		// A context that ends later ends the waiting, not the release.
		lock := acquire(t, m, "k")
		server.Intercept(func(ctx context.Context, c memlock.Command) error {
			if c.Op == "unlock" && !c.Done {
				time.Sleep(2 * time.Second)
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		wraps(t, lock.Release(ctx), context.DeadlineExceeded)
		time.Sleep(2 * time.Second)
		if n := m.Stats().Destroyed; server.Locks() != 0 || n != 2 {
			t.Errorf("%d locks, %d sessions destroyed", server.Locks(), n)
		}
		server.Intercept(nil)
	})
}

// stuckPool is a pool that takes a session back only when it is destroyed.
type stuckPool struct{ ports.SessionPool }

type stuckSession struct {
	ports.Session
	destroyed chan struct{}
	once      sync.Once
}

func (p stuckPool) Open(ctx context.Context) (ports.Session, error) {
	s, err := p.SessionPool.Open(ctx)
	return &stuckSession{Session: s, destroyed: make(chan struct{})}, err
}

func (s *stuckSession) Interruptible() bool { return true }

func (s *stuckSession) Recycle(context.Context) bool {
	<-s.destroyed
	return false
}

func (s *stuckSession) Destroy() {
	s.once.Do(func() { close(s.destroyed) })
	s.Session.Destroy()
}

func TestTheBoundOfAReleaseIsForAllOfIt(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := pglock.NewManager(stuckPool{server.Pool()}, pglock.WithoutVerification())
		lock := acquire(t, m, "k")
		server.Intercept(func(ctx context.Context, c memlock.Command) error {
			if c.Op == "unlock" && !c.Done {
				time.Sleep(window / 4)
			}
			return nil
		})
		start := time.Now()
		if err := lock.Release(bg); err != nil || time.Since(start) >= window/3 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if n := m.Stats().Destroyed; n != 1 {
			t.Errorf("%d sessions destroyed", n)
		}
	})
}

func TestCloseReleasesEverythingAndRefusesWhatComesLater(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, pool := manager(t, server.Pool()), server.Pool(memlock.WithLimit(6))
		m := manager(t, pool)
		acquire(t, holder, "theirs")
		locks := []ports.Lock{acquire(t, m, "a"), acquire(t, m, "b", ports.WithShared()), acquire(t, m, "c", ports.WithHoldAtLeast(time.Hour))}
		locks[2].Release(bg)
		var waiters sync.WaitGroup
		for _, key := range []string{"a", "theirs", "theirs", "x", "y", "z"} {
			opts := []ports.AcquireOption{}
			if key > "w" {
				acquire(t, holder, key)
				opts = append(opts, ports.WithPolling(time.Hour))
			}
			waiters.Go(func() {
				_, err := m.Acquire(bg, key, opts...)
				if !errors.Is(err, ports.ErrClosed) {
					t.Errorf("%s: %v", key, err)
				}
			})
		}
		time.Sleep(time.Second)
		if err := m.Close(bg); err != nil {
			t.Error(err)
		}
		waiters.Wait()
		for _, l := range locks {
			wraps(t, l.Err(), ports.ErrReleased)
		}
		if n, _ := pool.Usage(); n != 0 {
			t.Errorf("%d sessions are in use", n)
		}
		_, err := m.Acquire(bg, "a")
		wraps(t, err, ports.ErrClosed)
		_, _, err = m.TryAcquire(bg, "a")
		wraps(t, err, ports.ErrClosed)
		wraps(t, m.Release(bg, "a"), ports.ErrNotHeld)
		if err := m.Close(bg); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseIsBoundedOnADeadNetwork(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		m := pglock.NewManager(pool, pglock.WithoutVerification())
		lock := acquire(t, m, "k")
		go m.Acquire(bg, "other")
		server.Intercept(stuck("lock", "unlock", "check"))
		synctest.Wait()
		start := time.Now()
		if err := m.Close(bg); err == nil {
			t.Error("nothing is said about what could not be confirmed")
		}
		if d := time.Since(start); d > window {
			t.Errorf("close took %v", d)
		}
		synctest.Wait()
		if n, _ := pool.Usage(); n != 0 || server.Locks() != 0 {
			t.Errorf("%d sessions, %d locks", n, server.Locks())
		}
		wraps(t, lock.Err(), ports.ErrReleased)
	})
}

func TestAManagerClosedDuringAnAcquireStrandsNothing(t *testing.T) {
	for delay := range 12 {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			server.Intercept(func(context.Context, memlock.Command) error {
				time.Sleep(2 * time.Millisecond)
				return nil
			})
			pool := server.Pool()
			m := pglock.NewManager(pool, pglock.WithoutVerification())
			done := make(chan error, 1)
			go func() {
				lock, err := m.Acquire(bg, "k")
				if err == nil {
					<-lock.Done()
					err = lock.Err()
				}
				done <- err
			}()
			time.Sleep(time.Duration(delay) * time.Millisecond)
			if err := m.Close(bg); err != nil {
				t.Error(err)
			}
			if err := <-done; !errors.Is(err, ports.ErrClosed) && !errors.Is(err, ports.ErrReleased) {
				t.Error(err)
			}
			if n, _ := pool.Usage(); n != 0 || server.Locks() != 0 {
				t.Errorf("%d sessions, %d locks", n, server.Locks())
			}
		})
	}
}

// A fast job ran twice because it was done before the second replica's tick.
func TestHoldAtLeastOutlastsAFastJob(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		a, b := manager(t, server.Pool()), manager(t, server.Pool())
		runs := 0
		job := func(context.Context) error { runs++; return nil }
		tick := func(m *pglock.Manager) bool {
			ran, err := pglock.TryDo(bg, m, "nightly", job, ports.WithHoldAtLeast(time.Minute))
			if err != nil {
				t.Error(err)
			}
			return ran
		}
		start := time.Now()
		if !tick(a) || time.Since(start) != 0 {
			t.Fatalf("the job did not run, or the release waited %v", time.Since(start))
		}
		if !a.IsHeld("nightly") || a.HeldCount() != 1 {
			t.Error("the hold does not count as held")
		}
		time.Sleep(2 * time.Second) // the other replica's clock is behind
		if tick(b) || tick(a) {
			t.Error("the job ran twice for one tick")
		}
		if err := a.Release(bg, "nightly"); err != nil || !a.IsHeld("nightly") {
			t.Errorf("%v", err)
		}
		time.Sleep(58*time.Second + time.Millisecond)
		if a.IsHeld("nightly") || server.Locks() != 0 {
			t.Error("the hold outlasts its time")
		}
		if !tick(b) || runs != 2 {
			t.Errorf("%d runs", runs)
		}
	})
}

func TestKeysWithOneIDExcludeEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(), pglock.WithKeyFunc(func(key string) int64 { return int64(len(key)) }))
		lock := acquire(t, m, "ab")
		if _, ok, err := m.TryAcquire(bg, "cd"); ok || err != nil {
			t.Errorf("%v %v", ok, err)
		}
		if m.IsHeld("cd") {
			t.Error("cd is not held, ab is")
		}
		wraps(t, m.Release(bg, "cd"), ports.ErrNotHeld)
		lock.Release(bg)
		acquire(t, m, "cd").Release(bg)
	})
}

func TestNamespaceAndHolder(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(), pglock.WithNamespace("billing:"), pglock.WithHolderID("host-1"))
		if m.KeyID("k") != pglock.SHA256Key("billing:k") {
			t.Error("the namespace is not part of the ID")
		}
		lock := acquire(t, m, "k")
		info := lock.Info()
		if info.Key != "k" || info.ID != m.KeyID("k") || info.HolderID != "host-1" || info.PID == 0 || info.Database != "memlock" || !info.AcquiredAt.Equal(time.Now()) {
			t.Errorf("%+v", info)
		}
		lock.Release(bg)
	})
}

func TestCase32EveryInt64IsAnID(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(), pglock.WithKeyFunc(func(key string) int64 {
			id, _ := strconv.ParseInt(key, 10, 64)
			return id
		}))
		for _, id := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
			lock := acquire(t, m, fmt.Sprint(id))
			if len(server.Holders(id)) != 1 || lock.Info().ID != id {
				t.Errorf("%d is not held", id)
			}
			lock.Release(bg)
		}
	})
}

func TestLossesAreLogged(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var out bytes.Buffer
		m := manager(t, server.Pool(), pglock.WithLogger(slog.New(slog.NewTextHandler(&out, nil))), pglock.WithLogger(nil))
		lock := acquire(t, m, "k")
		server.Kill(lock.Info().PID)
		<-lock.Done()
		lock.Release(bg)
		if s := out.String(); !strings.Contains(s, `level=ERROR msg="lock lost" key=k`) || !strings.Contains(s, "database=memlock") {
			t.Errorf("logged: %s", s)
		}
	})
}

func TestMisuseAtConstructionPanicsWithASentence(t *testing.T) {
	for what, misuse := range map[string]func(){
		"a nil pool":                func() { pglock.NewManager(nil) },
		"a nil key function":        func() { pglock.WithKeyFunc(nil) },
		"a nil function of pairs":   func() { pglock.WithTwoIntegerKeys(nil) },
		"pairs on a pool without":   func() { pglock.NewManager(onlyNumbers{}, pglock.WithTwoIntegerKeys(ones)) },
		"a nil redaction":           func() { pglock.WithKeyRedaction(nil) },
		"a short liveness window":   func() { pglock.WithLivenessWindow(time.Second) },
		"a negative window":         func() { pglock.WithLivenessWindow(-time.Second) },
		"no sessions":               func() { pglock.WithMaxSessions(0) },
		"a negative timeout":        func() { ports.WithTimeout(-1) },
		"a polling interval of 0":   func() { ports.WithPolling(0) },
		"a negative least duration": func() { ports.WithHoldAtLeast(-1) },
	} {
		func() {
			defer func() {
				if s, ok := recover().(string); !ok || len(strings.Fields(s)) < 4 {
					t.Errorf("%s: panicked with %v", what, s)
				}
			}()
			misuse()
			t.Errorf("%s is accepted", what)
		}()
	}
}

func TestErrorsQuoteAndCutKeys(t *testing.T) {
	err := &ports.LockError{Op: "acquire", Key: "\x00" + strings.Repeat("k", 1<<20), Err: ports.ErrNotAcquired}
	if s := err.Error(); len(s) > 300 || !strings.HasPrefix(s, `acquire "\x00kkk`) {
		t.Errorf("%.400s", s)
	}
}

// The callback panics, ends its goroutine, or fails: the lock goes back.
func TestCase42TheLockGoesBackHoweverTheCallbackEnds(t *testing.T) {
	failed := errors.New("job failed")
	for _, c := range []struct {
		name     string
		callback func(context.Context) error
		err      error
		panics   any
	}{
		{"returns", func(context.Context) error { return nil }, nil, nil},
		{"fails", func(context.Context) error { return failed }, failed, nil},
		{"panics", func(context.Context) error { panic("boom") }, nil, "boom"},
		{"exits", func(context.Context) error { runtime.Goexit(); return nil }, nil, nil},
	} {
		for way, run := range map[string]func(ports.DistributedLock) error{
			"Do": func(m ports.DistributedLock) error { return pglock.Do(bg, m, "k", c.callback) },
			"TryDo": func(m ports.DistributedLock) error {
				ran, err := pglock.TryDo(bg, m, "k", c.callback)
				if !ran {
					return errors.New("did not run")
				}
				return err
			},
		} {
			t.Run(way+" "+c.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, server *memlock.Server) {
					pool := server.Pool()
					m := manager(t, pool)
					var err error
					var panicked any
					done := make(chan struct{})
					go func() {
						defer close(done)
						defer func() { panicked = recover() }()
						err = run(m)
					}()
					<-done
					if err != c.err || panicked != c.panics {
						t.Errorf("error %v, panic %v", err, panicked)
					}
					if n, _ := pool.Usage(); n != 0 || server.Locks() != 0 {
						t.Errorf("%d sessions, %d locks", n, server.Locks())
					}
				})
			})
		}
	}
}

func TestDoTellsTheCallbackAndTheCallerOfALoss(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		err := pglock.Do(bg, m, "k", func(ctx context.Context) error {
			lock, ok := pglock.FromContext(ctx)
			if !ok || lock.Info().Key != "k" {
				t.Errorf("the context carries %v", lock)
			}
			server.Kill(lock.Info().PID)
			<-ctx.Done()
			wraps(t, context.Cause(ctx), ports.ErrLost)
			return nil
		})
		wraps(t, err, ports.ErrLost)
	})
}

func TestTryDoSkipsWhatAnotherRuns(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool()), manager(t, server.Pool())
		lock := acquire(t, holder, "k")
		never := func(context.Context) error { t.Error("it ran"); return nil }
		if ran, err := pglock.TryDo(bg, m, "k", never); ran || err != nil {
			t.Errorf("%v %v", ran, err)
		}
		wraps(t, pglock.Do(bg, m, "k", never, ports.WithTimeout(time.Second)), ports.ErrNotAcquired)
		lock.Release(bg)
	})
}

func TestContextEndsWithTheHold(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		lock := acquire(t, m, "k")
		ctx, cancel := pglock.Context(bg, lock)
		defer cancel()
		if _, ok := pglock.FromContext(bg); ok || ctx.Err() != nil {
			t.Error("a context without a lock carries one, or one with a lock has ended")
		}
		lock.Release(bg)
		<-ctx.Done()
		wraps(t, context.Cause(ctx), ports.ErrReleased)
		late, cancelLate := pglock.Context(bg, lock)
		defer cancelLate()
		wraps(t, context.Cause(late), ports.ErrReleased)

		lock = acquire(t, m, "k")
		ctx, cancel = pglock.Context(bg, lock)
		cancel()
		<-ctx.Done()
		if lock.Err() != nil {
			t.Error("cancelling the context released the lock")
		}
		lock.Release(bg)
	})
}

// lend borrows the session of lock for d, and returns how the hold has fared.
func lend(t *testing.T, lock ports.Lock, d time.Duration) error {
	t.Helper()
	if err := lock.(ports.SessionLender).LendSession(bg, func(ports.Session) bool { time.Sleep(d); return true }); err != nil {
		t.Error(err)
	}
	return lock.Err()
}

// failing has every question about another session fail.
func failing(_ context.Context, c memlock.Command) error {
	if c.Op == "holds" {
		return errors.New("the server has no time")
	}
	return nil
}

func TestABorrowerIsToldOfALoss(t *testing.T) {
	for name, broken := range map[string]struct {
		breaks func(server *memlock.Server, pid int)
		within time.Duration
	}{
		"the session has ended":   {func(server *memlock.Server, pid int) { server.Kill(pid) }, window / 5},
		"the lock is gone":        {func(server *memlock.Server, pid int) { server.DropLocks(pid) }, window / 5},
		"the network is cut":      {func(server *memlock.Server, _ int) { server.Intercept(stuck("holds")) }, 3 * window / 5},
		"no question is answered": {func(server *memlock.Server, _ int) { server.Intercept(failing) }, 3 * window / 5},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				m := manager(t, server.Pool())
				lock := acquire(t, m, "k")
				broke := make(chan time.Time, 1)
				time.AfterFunc(4*window+window/7, func() {
					broke <- time.Now()
					broken.breaks(server, lock.Info().PID)
				})
				go lend(t, lock, 20*window)
				<-lock.Done()
				if took := time.Since(<-broke); took > broken.within {
					t.Errorf("told after %v, later than %v", took, broken.within)
				}
				wraps(t, lock.Err(), ports.ErrLost)
				server.Intercept(nil)
				time.Sleep(20 * window)
			})
		})
	}
}

func TestALongLoanIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(memlock.WithLimit(2)))
		lock := acquire(t, m, "k")
		if err := lend(t, lock, 10*window); err != nil {
			t.Error(err)
		}
		if asked := server.Commands("holds"); asked < 48 || asked > 50 {
			t.Errorf("asked %d times in 50 beats", asked)
		}
		// Nor is it one if the network loses an answer now and then,
		lost := 0
		server.Intercept(func(ctx context.Context, c memlock.Command) error {
			if c.Op == "holds" && !c.Done {
				if lost++; lost%2 == 0 {
					<-ctx.Done()
				}
			}
			return nil
		})
		if err := lend(t, lock, 10*window); err != nil {
			t.Error(err)
		}
		server.Intercept(nil)
		// or if the pool has no session to ask on.
		another := memlock.NewServer()
		full := manager(t, another.Pool(memlock.WithLimit(1)), pglock.WithMaxSessions(1))
		alone := acquire(t, full, "alone")
		if err := lend(t, alone, 10*window); err != nil || another.Commands("holds") != 0 {
			t.Errorf("%v, asked %d times", err, another.Commands("holds"))
		}
		for _, l := range []ports.Lock{lock, alone} {
			if err := l.Release(bg); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestALentSessionIsUsedByNobodyElse(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		lock := acquire(t, m, "k").(interface {
			ports.Lock
			ports.SessionLender
		})
		checks := server.Commands("check")
		err := lock.LendSession(bg, func(s ports.Session) bool {
			time.Sleep(3 * window)
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			wraps(t, lock.LendSession(ctx, func(ports.Session) bool { return true }), context.DeadlineExceeded)
			return true
		})
		if err != nil || lock.Err() != nil || server.Commands("check") != checks {
			t.Errorf("%v, %v, %d checks", err, lock.Err(), server.Commands("check")-checks)
		}
		time.Sleep(window)
		if server.Commands("check") == checks {
			t.Error("the session is not checked any more")
		}

		// A release meanwhile waits for its bound, and ends the session then.
		err = lock.LendSession(bg, func(s ports.Session) bool {
			start := time.Now()
			if err := lock.Release(bg); err == nil || time.Since(start) != window/3 {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			synctest.Wait()
			if server.Locks() != 0 {
				t.Error("the session lives on")
			}
			return true
		})
		if err != nil {
			t.Error(err)
		}
		wraps(t, lock.LendSession(bg, func(ports.Session) bool { return true }), ports.ErrReleased)

		lock = acquire(t, m, "k").(interface {
			ports.Lock
			ports.SessionLender
		})
		// Work that ends badly puts the session to the proof.
		for _, bad := range []func(){func() {}, runtime.Goexit, func() { panic("boom") }} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				lock.LendSession(bg, func(ports.Session) bool { bad(); return false })
			}()
			<-done
			if lock.Err() != nil {
				t.Fatal(lock.Err())
			}
		}
		lock.LendSession(bg, func(ports.Session) bool {
			server.DropLocks(lock.Info().PID)
			return false
		})
		wraps(t, lock.Err(), ports.ErrLost)
	})
}
