package pglock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

func TestASessionStaysWarmWhileLocksFollowEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool(memlock.WithLimit(4))
		m := manager(t, pool)
		inUse := func() int { n, _ := pool.Usage(); return n }
		pairs := func(n int) {
			for range n {
				lock := acquire(t, m, "k")
				time.Sleep(time.Millisecond)
				if err := lock.Release(bg); err != nil {
					t.Error(err)
				}
			}
		}
		pairs(3)
		if n := inUse(); n != 0 {
			t.Errorf("after a few locks, %d sessions are pinned", n)
		}
		pairs(20)
		if n := inUse(); n != 1 || m.Stats().Sessions != 0 || server.Locks() != 0 {
			t.Errorf("%d sessions are pinned, %+v", n, m.Stats())
		}
		time.Sleep(100 * time.Millisecond)
		if n := inUse(); n != 0 {
			t.Errorf("%d sessions stay pinned", n)
		}

		// What happens to a warm session meanwhile harms nobody.
		pairs(20)
		server.Kill(1)
		pairs(20)
		// In a full pool none is kept.
		var others []ports.Session
		for range 3 - inUse() {
			s, err := pool.Open(bg)
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, s)
		}
		time.Sleep(100 * time.Millisecond)
		s, err := pool.Open(bg)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, s)
		pairs(20)
		if n := inUse(); n != len(others) {
			t.Errorf("%d sessions are in use beside %d", n, len(others))
		}
		for _, s := range others {
			s.Destroy()
		}
		pairs(20) // Close finds one that is warm
	})
}

// warmed makes a manager that keeps its sessions warm, and warms one up.
func warmed(t *testing.T, pool *memlock.Pool, opts ...pglock.Option) *pglock.Manager {
	t.Helper()
	m := manager(t, pool, opts...)
	pglock.KeepWarm(m, 0, time.Minute)
	if err := acquire(t, m, "warm").Release(bg); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAHoldOnAWarmSessionIsLookedAfterWhenItLasts(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := warmed(t, server.Pool())
		lock := acquire(t, m, "k")
		time.Sleep(3 * window)
		if lock.Err() != nil || server.Commands("check") < 14 {
			t.Errorf("%v, %d checks", lock.Err(), server.Commands("check"))
		}
		server.Kill(lock.Info().PID)
		start := time.Now()
		if <-lock.Done(); time.Since(start) != 0 {
			t.Errorf("told after %v", time.Since(start))
		}
		wraps(t, lock.Release(bg), ports.ErrLost)

		// One that is lent has a keeper from then on.
		lock = acquire(t, warmed(t, server.Pool()), "k")
		if err := lend(t, lock, 3*window); err != nil {
			t.Error(err)
		}
		server.Kill(lock.Info().PID)
		<-lock.Done()
		wraps(t, lock.Err(), ports.ErrLost)
	})
}

// What is lost before a hold has a keeper is noticed by its release, or soon.
func TestALossInTheFirstMomentIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := warmed(t, server.Pool())
		lock := acquire(t, m, "k")
		server.Kill(lock.Info().PID)
		wraps(t, lock.Release(bg), ports.ErrLost)
		wraps(t, lock.Release(bg), ports.ErrLost)

		m = warmed(t, server.Pool())
		lock = acquire(t, m, "k")
		server.Kill(lock.Info().PID)
		start := time.Now()
		if <-lock.Done(); time.Since(start) > 10*time.Millisecond {
			t.Errorf("told after %v", time.Since(start))
		}
		wraps(t, lock.Err(), ports.ErrLost)
	})
}

// A call that asks by itself ends when it has to, on a network that is dead.
func TestACallThatAsksByItselfHangsNever(t *testing.T) {
	const grace = 250 * time.Millisecond
	for name, call := range map[string]struct {
		within time.Duration
		do     func(m *pglock.Manager) error
	}{
		"a cancelled acquire": {time.Second + grace, func(m *pglock.Manager) error {
			ctx, cancel := context.WithCancel(bg)
			defer time.AfterFunc(time.Second, cancel).Stop()
			_, err := m.Acquire(ctx, "k")
			return err
		}},
		"a deadline": {time.Second + grace, func(m *pglock.Manager) error {
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			_, err := m.Acquire(ctx, "k")
			return err
		}},
		"a timeout": {time.Second + grace, func(m *pglock.Manager) error {
			_, err := m.Acquire(bg, "k", ports.WithTimeout(time.Second))
			return err
		}},
		"a try": {window/3 + grace, func(m *pglock.Manager) error {
			_, _, err := m.TryAcquire(bg, "k")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				m := warmed(t, server.Pool())
				server.Intercept(stuck("lock"))
				start := time.Now()
				err := call.do(m)
				if took := time.Since(start); err == nil || took > call.within {
					t.Errorf("%v after %v, later than %v", err, took, call.within)
				}
				server.Intercept(nil)
				time.Sleep(window)
				if server.Locks() != 0 {
					t.Errorf("%d locks are left", server.Locks())
				}
			})
		})
	}
	t.Run("a release", func(t *testing.T) {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			for _, ctx := range []func() (context.Context, context.CancelFunc, time.Duration){
				func() (context.Context, context.CancelFunc, time.Duration) {
					ctx, cancel := context.WithTimeout(bg, time.Second)
					return ctx, cancel, time.Second
				},
				func() (context.Context, context.CancelFunc, time.Duration) {
					ctx, cancel := context.WithCancel(bg)
					cancel()
					return ctx, cancel, window / 3
				},
			} {
				server.Intercept(nil)
				lock := acquire(t, warmed(t, server.Pool()), "k")
				server.Intercept(stuck("unlock"))
				ctx, cancel, most := ctx()
				start := time.Now()
				err := lock.Release(ctx)
				if took := time.Since(start); err == nil || took > most {
					t.Errorf("%v after %v, later than %v", err, took, most)
				}
				cancel()
				time.Sleep(window / 3)
				if server.Locks() != 0 {
					t.Errorf("%d locks are left", server.Locks())
				}
			}
			server.Intercept(nil)
		})
	})
}

// An answer that comes late, but in time, is as good as any, and whoever has
// come to wait behind it gets the lock in turn.
func TestOthersWaitBehindACallThatAsksByItself(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := warmed(t, server.Pool())
		rival := acquire(t, manager(t, server.Pool()), "k")
		server.Intercept(roundTrip(10 * time.Millisecond))
		next := waitInLine(t, m, 3)
		time.Sleep(time.Second)
		if err := rival.Release(bg); err != nil {
			t.Error(err)
		}
		for range 3 {
			if err := (<-next).Release(bg); err != nil {
				t.Error(err)
			}
		}
		// One that is cancelled while its grant is under way owns the lock or
		// not, and leaves none.
		for after := range 20 {
			ctx, cancel := context.WithCancel(bg)
			time.AfterFunc(time.Duration(after)*time.Millisecond, cancel)
			lock, err := m.Acquire(ctx, "k")
			cancel()
			if (lock == nil) == (err == nil) {
				t.Errorf("%v, %v", lock, err)
			}
			if err == nil {
				err = lock.Release(bg)
			} else {
				wraps(t, err, context.Canceled)
				err = nil
			}
			if synctest.Wait(); err != nil || server.Locks() != 0 {
				t.Errorf("%v, %d locks are left", err, server.Locks())
			}
		}
		if m.Stats().Destroyed != 0 {
			t.Error("a connection was burnt")
		}
	})
}

func TestCloseReleasesWhatHasNoKeeperYet(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := warmed(t, server.Pool())
		lock := acquire(t, m, "k")
		if err := m.Close(bg); err != nil {
			t.Error(err)
		}
		wraps(t, lock.Err(), ports.ErrReleased)
		if server.Locks() != 0 {
			t.Errorf("%d locks are left", server.Locks())
		}
	})
}
