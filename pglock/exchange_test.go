package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

func TestWhereSessionsAreScarceALockIsExchangedForTheNext(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(), pglock.WithMaxSessions(2))
		const goroutines, rounds = 8, 50
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for range rounds {
					lock, err := m.Acquire(bg, fmt.Sprint(g))
					if err != nil {
						t.Error(err)
						return
					}
					if holders := server.Holders(lock.Info().ID); len(holders) != 1 || holders[0].PID != lock.Info().PID {
						t.Errorf("%+v holds, and %v", lock.Info(), holders)
					}
					time.Sleep(time.Millisecond)
					if err := lock.Release(bg); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		exchanged, alone := server.Commands("exchange"), server.Commands("lock")+server.Commands("unlock")
		if exchanged < goroutines*rounds*9/10 || alone > goroutines*rounds/5 {
			t.Errorf("%d exchanges, and %d locks and unlocks", exchanged, alone)
		}
		if server.Locks() != 0 || server.Sessions() > 2 {
			t.Errorf("%d locks are left, on %d sessions", server.Locks(), server.Sessions())
		}
	})
}

// What goes wrong with an exchange is the release's failure, and costs the one
// who was to have the session nothing but time.
func TestAnExchangeThatFailsCostsTheNextOnlyTime(t *testing.T) {
	lost := errors.New("the answer is lost")
	for name, c := range map[string]struct {
		breaks func(server *memlock.Server, pid int)
		err    error // of the release; nil if it succeeds
	}{
		"the session is over": {func(server *memlock.Server, pid int) { server.Kill(pid) }, ports.ErrLost},
		"the lock is gone":    {func(server *memlock.Server, pid int) { server.DropLocks(pid) }, ports.ErrLost},
		"the answer is lost": {func(server *memlock.Server, _ int) {
			server.Intercept(func(_ context.Context, c memlock.Command) error {
				if c.Op == "exchange" && c.Done {
					return lost
				}
				return nil
			})
		}, lost},
		"the next lock is taken": {func(server *memlock.Server, _ int) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				m := manager(t, server.Pool(memlock.WithoutWatch()), pglock.WithMaxSessions(1))
				lock := acquire(t, m, "first")
				var rival ports.Lock
				if c.err == nil {
					rival = acquire(t, manager(t, server.Pool()), "second")
				}
				next := make(chan ports.Lock, 1)
				go func() { next <- acquire(t, m, "second") }()
				synctest.Wait()
				c.breaks(server, lock.Info().PID)
				if err := lock.Release(bg); !errors.Is(err, c.err) {
					t.Errorf("the release: %v", err)
				}
				if rival != nil {
					time.Sleep(time.Second)
					if err := rival.Release(bg); err != nil {
						t.Error(err)
					}
				}
				server.Intercept(nil)
				second := <-next
				if holders := server.Holders(second.Info().ID); len(holders) != 1 || holders[0].PID != second.Info().PID || server.Locks() != 1 {
					t.Errorf("%+v holds, and %v, of %d locks", second.Info(), holders, server.Locks())
				}
				if err := second.Release(bg); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
