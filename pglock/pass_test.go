package pglock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// waitInLine has n calls wait for the key, and sends their locks in the order in
// which they are granted.
func waitInLine(t *testing.T, m *pglock.Manager, n int, opts ...ports.AcquireOption) <-chan ports.Lock {
	t.Helper()
	granted := make(chan ports.Lock, n)
	for range n {
		go func() {
			lock, err := m.Acquire(bg, "k", opts...)
			if err != nil {
				t.Error(err)
			}
			granted <- lock
		}()
		synctest.Wait()
	}
	return granted
}

func TestALockIsPassedOnWithoutAskingTheServer(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		lock := acquire(t, m, "k")
		next := waitInLine(t, m, 5)
		locks, unlocks := server.Commands("lock"), server.Commands("unlock")
		for range 5 {
			ctx, cancel := pglock.Context(bg, lock)
			if err := lock.Release(bg); err != nil {
				t.Error(err)
			}
			if ctx.Err() == nil {
				t.Error("the work under a lock goes on when its successor has it")
			}
			cancel()
			pid := lock.Info().PID
			wraps(t, lock.Err(), ports.ErrReleased)
			if lock = <-next; lock.Info().PID != pid || lock.Err() != nil {
				t.Errorf("%+v, %v", lock.Info(), lock.Err())
			}
			if holders := server.Holders(lock.Info().ID); len(holders) != 1 || holders[0].PID != pid || m.HeldCount() != 1 {
				t.Errorf("%+v, %d held", holders, m.HeldCount())
			}
		}
		if server.Commands("lock") != locks || server.Commands("unlock") != unlocks {
			t.Error("the server was asked")
		}
		if err := lock.Release(bg); err != nil || server.Locks() != 0 {
			t.Errorf("%v, %d locks", err, server.Locks())
		}
		if stats := m.Stats(); stats.Acquired != 6 || stats.Lost != 0 || stats.Destroyed != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

// A lock that was waited for may have been lost when its holder hears of it: the
// wait began long before. So its release asks the server once before it passes
// the lock on.
func TestALockThatWasWaitedForIsPassedOnWithTheServersWord(t *testing.T) {
	for _, hot := range []bool{false, true} {
		for _, dead := range []bool{false, true} {
			t.Run(fmt.Sprintf("hot %v, dead %v", hot, dead), func(t *testing.T) {
				bubble(t, func(t *testing.T, server *memlock.Server) {
					m, rivals := manager(t, server.Pool(memlock.WithoutWatch())), manager(t, server.Pool())
					for range 20 {
						if hot {
							acquire(t, m, "other").Release(bg)
						}
					}
					rival := acquire(t, rivals, "k")
					next := waitInLine(t, m, 3)
					time.Sleep(300 * time.Millisecond)
					rival.Release(bg)
					lock := <-next
					pid := lock.Info().PID
					if dead {
						server.Kill(pid)
					}
					checks, unlocks := server.Commands("check"), server.Commands("unlock")
					err := lock.Release(bg)
					lock = <-next
					if dead {
						if wraps(t, err, ports.ErrLost); lock.Info().PID == pid {
							t.Error("the lock was passed on with a dead session")
						}
					} else if err != nil || lock.Info().PID != pid {
						t.Errorf("%v, and the next one is on session %d, not %d", err, lock.Info().PID, pid)
					}
					if err := lock.Release(bg); err != nil {
						t.Error(err)
					}
					if lock = <-next; !dead && (server.Commands("check")-checks != 1 || server.Commands("unlock") != unlocks) {
						t.Errorf("%d checks and %d unlocks", server.Commands("check")-checks, server.Commands("unlock")-unlocks)
					}
					if err := lock.Release(bg); err != nil || server.Locks() != 0 {
						t.Errorf("%v, %d locks", err, server.Locks())
					}
				})
			})
		}
	}
}

// A lock that was passed on is as much a lock as any other.
func TestALockThatWasPassedOnIsLookedAfter(t *testing.T) {
	for name, blind := range map[string]bool{"watched": false, "not watched": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				var opts []memlock.PoolOption
				if blind {
					opts = append(opts, memlock.WithoutWatch())
				}
				m := manager(t, server.Pool(opts...))
				first := acquire(t, m, "k")
				next := waitInLine(t, m, 1)
				first.Release(bg)
				lock := <-next
				time.Sleep(5 * window)
				if lock.Err() != nil || server.Commands("check") < 20 {
					t.Errorf("%v after %d checks", lock.Err(), server.Commands("check"))
				}
				if err := lock.(ports.SessionLender).LendSession(bg, func(ports.Session) bool { return true }); err != nil {
					t.Error(err)
				}
				if err := first.(ports.SessionLender).LendSession(bg, func(ports.Session) bool { return true }); err == nil {
					t.Error("a hold that is over lends the session of its successor")
				}
				server.Kill(lock.Info().PID)
				start := time.Now()
				<-lock.Done()
				if time.Since(start) > window/5 {
					t.Errorf("told after %v", time.Since(start))
				}
				wraps(t, lock.Err(), ports.ErrLost)
				wraps(t, lock.Release(bg), ports.ErrLost)
				if err := first.Release(bg); err != nil {
					t.Errorf("the second release of the first hold: %v", err)
				}
			})
		})
	}
}

// Whoever is busy with a key in one process does not keep the others from it:
// they wait for one turn of it at most.
func TestPassingOnDoesNotStarveOtherProcesses(t *testing.T) {
	for name, held := range map[string]time.Duration{"moments": 0, "milliseconds": 7 * time.Millisecond, "seconds": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				const rounds = 3
				busy, other := manager(t, server.Pool()), manager(t, server.Pool())
				ctx, stop := context.WithCancel(bg)
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						for ctx.Err() == nil {
							err := pglock.Do(ctx, busy, "k", func(context.Context) error { time.Sleep(held); return nil })
							if err != nil && ctx.Err() == nil {
								t.Error(err)
							}
						}
					})
				}
				time.Sleep(held)
				for range rounds {
					start, before := time.Now(), busy.Stats().Acquired
					lock := acquire(t, other, "k")
					if took, most := time.Since(start), 50*time.Millisecond+2*held; took > most {
						t.Errorf("waited %v, longer than %v", took, most)
					}
					if others := busy.Stats().Acquired - before; others > 1001 {
						t.Errorf("%d others went before", others)
					}
					lock.Release(bg)
				}
				stop()
				wg.Wait()
			})
		})
	}
}

func TestWhatOnlyTheServerCanGiveIsNotPassedOn(t *testing.T) {
	for name, opts := range map[string][]ports.AcquireOption{
		"a token":       {ports.WithFencing()},
		"a shared lock": {ports.WithShared()},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				m := manager(t, server.Pool())
				lock := acquire(t, m, "k", ports.WithFencing())
				next := waitInLine(t, m, 3, opts...)
				for range 3 {
					unlocks := server.Commands("unlock")
					token := lock.Info().Token
					if err := lock.Release(bg); err != nil {
						t.Error(err)
					}
					if lock = <-next; server.Commands("unlock") == unlocks {
						t.Error("it was passed on")
					}
					if name == "a token" && lock.Info().Token <= token {
						t.Errorf("token %d after %d", lock.Info().Token, token)
					}
				}
				lock.Release(bg)
			})
		})
	}
}

// A session on which somebody else has worked, or that is lent, is not for the
// next one.
func TestALentSessionIsNotPassedOn(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		lock := acquire(t, m, "k")
		next := waitInLine(t, m, 2)
		lend(t, lock, time.Millisecond)
		unlocks := server.Commands("unlock")
		if err := lock.Release(bg); err != nil {
			t.Error(err)
		}
		lock = <-next
		if server.Commands("unlock") == unlocks {
			t.Error("it was passed on")
		}
		go lend(t, lock, window)
		synctest.Wait()
		if err := lock.Release(bg); err == nil {
			t.Error("the release of a lent session came back at once")
		}
		second := <-next
		if second.Info().PID == lock.Info().PID {
			t.Error("two use one session")
		}
		second.Release(bg)
		time.Sleep(window)
	})
}
