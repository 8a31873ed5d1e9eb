package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// oneSession makes a manager with all locks on one session.
func oneSession(t *testing.T, pool *memlock.Pool, opts ...pglock.Option) *pglock.Manager {
	t.Helper()
	return manager(t, pool, append(opts, pglock.WithSharedSessions(1))...)
}

// roundTrip has every batch take this long.
func roundTrip(d time.Duration) func(context.Context, memlock.Command) error {
	return func(ctx context.Context, c memlock.Command) error {
		if c.Op == "batch" && !c.Done && !pause(ctx, d) {
			return ctx.Err()
		}
		return nil
	}
}

// acquireMany takes keys at once, each on a goroutine of its own.
func acquireMany(t *testing.T, m *pglock.Manager, n int, opts ...ports.AcquireOption) []ports.Lock {
	t.Helper()
	locks := make([]ports.Lock, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			lock, err := m.Acquire(bg, fmt.Sprint("key", i), opts...)
			if err != nil {
				t.Error(err)
				return
			}
			locks[i] = lock
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return locks
}

func TestSharedSessionsSendWhatHasArrivedInOneStatement(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		server.Intercept(roundTrip(time.Millisecond))
		m := oneSession(t, server.Pool())
		acquire(t, m, "warm")
		before := server.Commands("batch")
		acquireMany(t, m, 900)
		// The first to come goes alone, and those who came meanwhile together.
		if n := server.Commands("batch") - before; n > 2 {
			t.Errorf("%d statements for 900 locks", n)
		}
		before = server.Commands("batch")
		if n, err := m.ReleaseAll(bg); n != 901 || err != nil {
			t.Errorf("released %d: %v", n, err)
		}
		if n := server.Commands("batch") - before; n > 2 {
			t.Errorf("%d statements for 901 unlocks", n)
		}
		if n := server.Commands("lock") + server.Commands("unlock"); n != 0 {
			t.Errorf("%d locks or unlocks went alone", n)
		}
	})
}

func TestAThousandHoldsShareOneSessionItsCheckAndItsGoroutines(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		m := oneSession(t, pool)
		acquire(t, m, "warm")
		synctest.Wait()
		goroutines := runtime.NumGoroutine()
		locks := acquireMany(t, m, 1000)
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > goroutines+5 { // the runtime has some of its own
			t.Errorf("%d goroutines, and %d with a thousand more locks", goroutines, n)
		}
		if s := m.Stats(); s.Sessions != 1 || s.MaxSessions != 1 || s.Held != 1001 || server.Sessions() != 1 || server.Locks() != 1001 {
			t.Errorf("%+v, %d sessions, %d locks", s, server.Sessions(), server.Locks())
		}
		before := server.Commands("check")
		time.Sleep(4 * window)
		if n := server.Commands("check") - before; n < 19 || n > 21 {
			t.Errorf("%d checks in 4 windows", n)
		}
		for _, lock := range locks {
			if err := lock.Release(bg); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestKeysAreSpreadOverTheSharedSessions(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(), pglock.WithSharedSessions(3))
		pids := make(map[int]int)
		for _, lock := range acquireMany(t, m, 300) {
			pids[lock.Info().PID]++
		}
		if len(pids) != 3 || m.Stats().MaxSessions != 3 {
			t.Errorf("locks by session: %v", pids)
		}

		// A pool that allows fewer makes do with those.
		m = manager(t, server.Pool(memlock.WithLimit(3)), pglock.WithSharedSessions(8))
		clear(pids)
		for i := range 30 {
			pids[acquire(t, m, fmt.Sprint("other", i)).Info().PID]++
		}
		if len(pids) != 2 || m.Stats().MaxSessions != 2 {
			t.Errorf("locks by session: %v", pids)
		}
	})
}

func TestASharedSessionThatCarriesNothingGoesBack(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		m := oneSession(t, pool)
		for range 3 {
			acquire(t, m, "k").Release(bg)
			time.Sleep(500 * time.Millisecond)
			if n, _ := pool.Usage(); n != 1 {
				t.Errorf("%d sessions are in use by a manager that is busy", n)
			}
		}
		time.Sleep(2 * time.Second)
		if n, _ := pool.Usage(); n != 0 || m.Stats().Sessions != 0 {
			t.Errorf("%d sessions are in use for nothing", n)
		}
		acquire(t, m, "k").Release(bg)
	})
}

func TestWaitsOnSharedSessionsArePolledTogether(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, pool := oneSession(t, server.Pool()), server.Pool()
		m := oneSession(t, pool)
		locks := acquireMany(t, holder, 1000)
		var served sync.WaitGroup
		for i := range 1000 {
			served.Go(func() {
				lock, err := m.Acquire(bg, fmt.Sprint("key", i))
				if err != nil {
					t.Error(err)
					return
				}
				if err := lock.Release(bg); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(10 * time.Second)
		before := server.Commands("batch")
		time.Sleep(100 * time.Second)
		if n := server.Commands("batch") - before; n > 480 || n < 200 {
			t.Errorf("%d statements in 100 s, for 1000 waiters on 1000 keys", n)
		}
		if n, _ := pool.Usage(); n != 1 {
			t.Errorf("%d sessions are pinned", n)
		}
		for _, lock := range locks {
			if err := lock.Release(bg); err != nil {
				t.Error(err)
			}
		}
		served.Wait()
	})
}

func TestAPollingIntervalIsKeptOnSharedSessionsUntilSomebodyIsInAHurry(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool()), oneSession(t, server.Pool())
		lock := acquire(t, holder, "k")
		var served sync.WaitGroup
		wait := func(opts ...ports.AcquireOption) {
			served.Go(func() {
				if lock, err := m.Acquire(bg, "k", opts...); err != nil {
					t.Error(err)
				} else {
					lock.Release(bg)
				}
			})
		}
		wait(ports.WithPolling(time.Minute))
		time.Sleep(time.Second)
		before := server.Commands("batch")
		time.Sleep(20 * time.Minute)
		if n := server.Commands("batch") - before; n < 12 || n > 41 {
			t.Errorf("%d statements in 20 minutes", n)
		}
		wait()
		time.Sleep(10 * time.Millisecond)
		lock.Release(bg)
		start := time.Now()
		served.Wait()
		if d := time.Since(start); d > time.Second {
			t.Errorf("served after %v", d)
		}
	})
}

const holdTime = 5 * time.Millisecond

// contend has n goroutines of m take a key again and again until the end, and
// counts how often.
func contend(t *testing.T, wg *sync.WaitGroup, m *pglock.Manager, n int, end time.Time, opts ...ports.AcquireOption) *int {
	count := new(int) // guarded by the lock
	for range n {
		wg.Go(func() {
			for time.Now().Before(end) {
				lock, err := m.Acquire(bg, "k", opts...)
				if err != nil {
					t.Error(err)
					return
				}
				*count++
				time.Sleep(holdTime)
				if err := lock.Release(bg); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return count
}

func TestTwoProcessesOnSharedSessionsShareAKeyFairly(t *testing.T) {
	for name, c := range map[string]struct {
		goroutines int
		roundTrip  time.Duration
		opts       []ports.AcquireOption
	}{
		"plain":   {32, 100 * time.Microsecond, nil},
		"fencing": {32, 100 * time.Microsecond, []ports.AcquireOption{ports.WithFencing()}},
		// All goroutines of a process may be between two holds at once.
		"far away": {8, 20 * holdTime, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				server.Intercept(roundTrip(c.roundTrip))
				a, b := oneSession(t, server.Pool()), oneSession(t, server.Pool())
				end := time.Now().Add(time.Minute)
				var wg sync.WaitGroup
				inA, inB := contend(t, &wg, a, c.goroutines, end, c.opts...), contend(t, &wg, b, c.goroutines, end, c.opts...)
				wg.Wait()
				if sum := *inA + *inB; *inA < sum/3 || *inB < sum/3 || sum < int(time.Minute/(holdTime+c.roundTrip))*3/5 {
					t.Errorf("one had the lock %d times and the other %d", *inA, *inB)
				}
			})
		})
	}
}

func TestWhoComesLateToABusyKeyIsLetIn(t *testing.T) {
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				server.Intercept(roundTrip(100 * time.Microsecond))
				busy := oneSession(t, server.Pool())
				late := manager(t, server.Pool())
				most := slice // at the server, the next in the queue gets it
				if shared {
					late = oneSession(t, server.Pool())
					most = 9 * slice
				}
				var wg sync.WaitGroup
				start := time.Now()
				count := contend(t, &wg, busy, 8, start.Add(3*time.Minute))
				for range 10 {
					time.Sleep(13 * time.Second)
					came := time.Now()
					lock := acquire(t, late, "k")
					if waited := time.Since(came); waited > most+100*time.Millisecond {
						t.Errorf("served after %v", waited)
					}
					if err := lock.Release(bg); err != nil {
						t.Error(err)
					}
				}
				wg.Wait()
				if alone := int(time.Since(start) / holdTime); *count < alone*3/4 {
					t.Errorf("%d holds of %v in %v", *count, holdTime, time.Since(start))
				}
			})
		})
	}
}

// slice is how long a manager may pass a lock on in memory.
const slice = 500 * time.Millisecond

func TestALockIsPassedOnInMemoryOnSharedSessions(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := oneSession(t, server.Pool())
		lock := acquire(t, m, "k")
		before := server.Commands("batch")
		var order []int
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				lock, err := m.Acquire(bg, "k")
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, i)
				if info := lock.Info(); info.PID == 0 || info.Database == "" || info.AcquiredAt.IsZero() {
					t.Errorf("%+v", info)
				}
				lock.Release(bg)
			})
			synctest.Wait()
		}
		lock.Release(bg)
		wg.Wait()
		if n := server.Commands("batch") - before; n != 1 || !slices.IsSorted(order) || len(order) != 100 {
			t.Errorf("%d statements, in the order %v", n, order)
		}
	})
}

func TestAFencedLockIsPassedOnWithATokenOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		server.Intercept(roundTrip(time.Millisecond))
		m := oneSession(t, server.Pool())
		lock := acquire(t, m, "k")
		id := m.KeyID("k")
		last := ports.Token(0)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				lock, err := m.Acquire(bg, "k", ports.WithFencing())
				if err != nil {
					t.Error(err)
					return
				}
				if token := lock.Info().Token; token <= last {
					t.Errorf("token %d after %d", token, last)
				} else {
					last = token
				}
				if n := len(server.Holders(id)); n != 1 {
					t.Errorf("%d holders", n)
				}
				lock.Release(bg)
			})
		}
		synctest.Wait()
		lock.Release(bg)
		wg.Wait()
		if n := len(server.Holders(id)); n != 0 {
			t.Errorf("%d holders are left", n)
		}
	})
}

func TestSharedHoldsOfAManagerAreOneLockAtTheServer(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m, other := oneSession(t, server.Pool()), oneSession(t, server.Pool())
		id := m.KeyID("k")
		var locks []ports.Lock
		for i := range 10 {
			opts := []ports.AcquireOption{ports.WithShared()}
			if i%2 == 1 {
				opts = append(opts, ports.WithFencing())
			}
			lock := acquire(t, m, "k", opts...)
			if fenced := lock.Info().Token > 0; fenced != (i%2 == 1) {
				t.Errorf("%+v", lock.Info())
			}
			locks = append(locks, lock)
		}
		locks = append(locks, acquire(t, other, "k", ports.WithShared()))
		if n := len(server.Holders(id)); n != 2 {
			t.Errorf("%d holders at the server", n)
		}
		writer := acquireLater(m, "k")
		time.Sleep(time.Second)
		// Who comes after an exclusive waiter does not overtake it.
		if _, ok, err := m.TryAcquire(bg, "k", ports.WithShared()); ok || err != nil {
			t.Errorf("%v %v", ok, err)
		}
		for _, lock := range locks {
			if len(writer) > 0 {
				t.Error("the writer is in beside a reader")
			}
			if err := lock.Release(bg); err != nil {
				t.Error(err)
			}
		}
		if r := <-writer; r.err != nil || len(server.Holders(id)) != 1 {
			t.Errorf("%v, %v", r.err, server.Holders(id))
		} else {
			r.lock.Release(bg)
		}
	})
}

// What a release keeps at the server, for another hold or for the next one, it has
// not asked about; so it asks, unless the server has answered a moment ago.
func TestAReleaseThatUnlocksNothingHasTheServersWord(t *testing.T) {
	kept := map[string]func(t *testing.T, m *pglock.Manager) (released, other ports.Lock){
		"beside another hold": func(t *testing.T, m *pglock.Manager) (ports.Lock, ports.Lock) {
			return acquire(t, m, "k", ports.WithShared()), acquire(t, m, "k", ports.WithShared())
		},
		"before the next one": func(t *testing.T, m *pglock.Manager) (ports.Lock, ports.Lock) {
			lock := acquire(t, m, "k")
			acquireLater(m, "k")
			synctest.Wait()
			return lock, nil
		},
		"of a set": func(t *testing.T, m *pglock.Manager) (ports.Lock, ports.Lock) {
			set, err := m.AcquireAll(bg, []string{"k", "k2"}, ports.WithShared())
			if err != nil {
				t.Fatal(err)
			}
			acquire(t, m, "k2", ports.WithShared())
			return set, acquire(t, m, "k", ports.WithShared())
		},
	}
	for name, take := range kept {
		for _, old := range []bool{false, true} {
			for _, dead := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, old %v, dead %v", name, old, dead), func(t *testing.T) {
					bubble(t, func(t *testing.T, server *memlock.Server) {
						m := oneSession(t, server.Pool(memlock.WithoutWatch()))
						lock, other := take(t, m)
						if old {
							time.Sleep(100 * time.Millisecond)
						}
						before := server.Commands("batch")
						if dead {
							server.Kill(lock.Info().PID)
						}
						err := lock.Release(bg)
						asked := server.Commands("batch") - before
						switch {
						case old && dead:
							wraps(t, err, ports.ErrLost)
							if other != nil {
								wraps(t, other.Err(), ports.ErrLost)
							}
						case err != nil:
							t.Error(err)
						case old != (asked == 1):
							t.Errorf("the server was asked %d times", asked)
						case !dead && len(server.Holders(m.KeyID("k"))) != 1:
							t.Error("the lock is not kept")
						}
						if dead {
							time.Sleep(window/5 + 1) // until all know
						}
					})
				})
			}
		}
	}
}

type acquired struct {
	lock ports.Lock
	err  error
}

func acquireLater(m *pglock.Manager, key string, opts ...ports.AcquireOption) <-chan acquired {
	c := make(chan acquired, 1)
	go func() {
		lock, err := m.Acquire(bg, key, opts...)
		c <- acquired{lock, err}
	}()
	return c
}

func TestTheLossOfASharedSessionIsToldToAllOnIt(t *testing.T) {
	for _, blind := range []bool{false, true} {
		t.Run(fmt.Sprint("blind ", blind), func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				var opts []memlock.PoolOption
				if blind {
					opts = append(opts, memlock.WithoutWatch())
				}
				var log bytes.Buffer
				m := manager(t, server.Pool(opts...), pglock.WithSharedSessions(2), pglock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				locks := acquireMany(t, m, 200)
				set, err := m.AcquireAll(bg, []string{"a", "b", "c", "d", "e", "f", "g", "h"}) // on both
				if err != nil {
					t.Fatal(err)
				}
				waiter := acquireLater(m, "key0") // behind a hold of its own manager
				synctest.Wait()
				killed := locks[0].Info().PID
				server.Kill(killed)
				time.Sleep(window/5 + 1)
				lost := 1
				for _, lock := range append(locks, set) {
					pid, err := lock.Info().PID, lock.Err()
					if onIt := pid == killed || lock == ports.Lock(set); onIt != errors.Is(err, ports.ErrLost) {
						t.Fatalf("session %d: %v", pid, err)
					} else if onIt {
						wraps(t, lock.Release(bg), ports.ErrLost)
						lost++
					}
				}
				if lost < 50 || lost > 150 {
					t.Fatalf("%d of 201 were lost", lost)
				}
				if r := <-waiter; r.err != nil || r.lock.Info().PID == killed {
					t.Errorf("%+v", r)
				}
				if n := strings.Count(log.String(), `msg="locks lost"`); n != 1 || !strings.Contains(log.String(), fmt.Sprint("pid=", killed)) {
					t.Errorf("the log says %s", log.String())
				}
				if _, err := m.ReleaseAll(bg); err != nil {
					t.Error(err)
				}
				if n := server.Locks(); n != 0 {
					t.Errorf("%d locks are left", n)
				}
			})
		})
	}
}

func TestALockThatWasTakenAwayFromASharedSessionIsALossForAllOnIt(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := oneSession(t, server.Pool())
		kept, released := acquire(t, m, "kept"), acquire(t, m, "released")
		server.DropLocks(kept.Info().PID)
		wraps(t, released.Release(bg), ports.ErrLost)
		wraps(t, kept.Err(), ports.ErrLost)
		kept = acquire(t, m, "kept")
		server.DropLocks(kept.Info().PID)
		time.Sleep(3*window/5 + 1) // a full check
		wraps(t, kept.Err(), ports.ErrLost)
	})
}

func TestHoldersOnASharedSessionAreToldBeforeTheServerGivesItUp(t *testing.T) {
	for _, ops := range [][]string{{"check"}, {"batch", "check"}} {
		t.Run(strings.Join(ops, " and "), func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				m := oneSession(t, server.Pool())
				locks := acquireMany(t, m, 100)
				time.Sleep(window / 7)
				server.Intercept(stuck(ops...))
				cut := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() {
					time.Sleep(window / 3)
					start := time.Now()
					if err := locks[0].Release(bg); err == nil {
						t.Error("a release was confirmed by nobody")
					}
					if d := time.Since(start); d > window/3 {
						t.Errorf("the release took %v", d)
					}
				})
				for _, lock := range locks {
					<-lock.Done()
				}
				if d := time.Since(cut); d > 4*window/5 {
					t.Errorf("told after %v", d)
				}
				for _, lock := range locks[1:] {
					wraps(t, lock.Err(), ports.ErrLost)
				}
				wg.Wait()
				server.Intercept(nil)
				acquire(t, m, "key0").Release(bg)
			})
		})
	}
}

func TestAnErrorOnABatchEndsTheSharedSession(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := oneSession(t, server.Pool())
		held := acquire(t, m, "held")
		broken := errors.New("the answer was garbled")
		server.Intercept(func(_ context.Context, c memlock.Command) error {
			if c.Op == "batch" && c.Done {
				return broken
			}
			return nil
		})
		_, err := m.Acquire(bg, "k")
		wraps(t, err, broken)
		wraps(t, held.Err(), ports.ErrLost, broken)
		server.Intercept(nil)
		synctest.Wait()
		if n := server.Locks(); n != 0 {
			t.Errorf("%d locks are left by a session in doubt", n)
		}
		if s := m.Stats(); s.Destroyed != 1 || s.Lost != 1 || s.Held != 0 {
			t.Errorf("%+v", s)
		}
		acquire(t, m, "k").Release(bg)
	})
}

func TestDeadConnectionsOfThePoolAreNoErrorOnSharedSessions(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		var sessions []ports.Session
		for range 20 {
			s, err := pool.Open(bg)
			if err != nil {
				t.Fatal(err)
			}
			sessions = append(sessions, s)
		}
		for _, s := range sessions {
			s.Recycle(bg)
		}
		m := oneSession(t, pool)
		for pid := range 21 {
			server.Kill(pid)
		}
		start := time.Now()
		acquire(t, m, "k").Release(bg)
		if d := time.Since(start); d > 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// A call that is given up at any point of a batch leaves nothing behind.
func TestCancellationsRaceBatches(t *testing.T) {
	const trip = time.Millisecond
	for _, opts := range [][]ports.AcquireOption{nil, {ports.WithFencing()}, {ports.WithShared(), ports.WithFencing()}} {
		for step := range 12 {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				server.Intercept(roundTrip(trip))
				m, rival := oneSession(t, server.Pool()), manager(t, server.Pool())
				acquire(t, m, "warm")
				before := acquire(t, m, "passed on", opts...)
				ctx, cancel := context.WithCancel(bg)
				var wg sync.WaitGroup
				try := func(key string, act func() error) {
					wg.Go(func() {
						if err := act(); err != nil && !errors.Is(err, context.Canceled) {
							t.Errorf("%s: %v", key, err)
						}
					})
				}
				for _, key := range []string{"one", "two", "passed on"} {
					try(key, func() error {
						lock, err := m.Acquire(ctx, key, opts...)
						if err == nil {
							err = lock.Release(bg)
						}
						return err
					})
				}
				try("set", func() error {
					set, err := m.AcquireAll(ctx, []string{"one", "three", "two"}, opts...)
					if err == nil {
						err = set.Release(bg)
					}
					return err
				})
				synctest.Wait()
				try("passed on", func() error { return before.Release(bg) })
				time.Sleep(time.Duration(step) * trip / 2)
				cancel()
				wg.Wait()
				time.Sleep(4 * trip) // what was granted too late is given back with the next batch
				if n := server.Locks(); n != 1 || m.HeldCount() != 1 {
					t.Errorf("step %d, %d options: %d locks at the server, %d holds", step, len(opts), n, m.HeldCount())
				}
				for _, key := range []string{"one", "two", "three", "passed on"} {
					if _, ok, err := rival.TryAcquire(bg, key); !ok || err != nil {
						t.Errorf("step %d: %q: %v %v", step, key, ok, err)
					}
				}
			})
		}
	}
}

func TestSetsOnSharedSessionsDoNotDeadlock(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		server.Intercept(roundTrip(100 * time.Microsecond))
		keys := []string{"a", "b", "c", "d", "e"}
		var wg sync.WaitGroup
		inside := make(map[string]int) // each guarded by its lock
		var mu sync.Mutex
		for i := range 3 {
			m := manager(t, server.Pool(), pglock.WithSharedSessions(1+i))
			for j := range 4 {
				ordered := slices.Clone(keys)
				slices.Reverse(ordered[j:])
				ordered = ordered[:2+j]
				wg.Go(func() {
					for range 20 {
						set, err := m.AcquireAll(bg, ordered, ports.WithTimeout(time.Hour))
						if err != nil {
							t.Error(err)
							return
						}
						count := func(by int) {
							mu.Lock()
							defer mu.Unlock()
							for _, key := range ordered {
								if inside[key] += by; inside[key] > 1 {
									t.Errorf("two hold %q", key)
								}
							}
						}
						count(1)
						time.Sleep(time.Millisecond)
						count(-1)
						if err := set.Release(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
	})
}

func TestASetThatCannotBeHadHoldsNothingOnSharedSessions(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m, rival := manager(t, server.Pool(), pglock.WithSharedSessions(2)), manager(t, server.Pool())
		keys := []string{"a", "b", "c", "d"}
		slices.SortFunc(keys, func(a, b string) int { return int(m.KeyID(a)>>32 - m.KeyID(b)>>32) })
		last := acquire(t, rival, keys[3])
		_, err := m.AcquireAll(bg, keys, ports.WithTimeout(time.Second))
		wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
		if n := server.Locks(); n != 1 || m.HeldCount() != 0 {
			t.Errorf("%d locks, %d holds", n, m.HeldCount())
		}

		// A part that is lost meanwhile ends the wait for the others.
		result := make(chan error, 1)
		go func() {
			_, err := m.AcquireAll(bg, keys)
			result <- err
		}()
		time.Sleep(time.Second)
		infos := m.Held()
		if len(infos) != 3 {
			t.Fatalf("%+v", infos)
		}
		server.Kill(infos[0].PID)
		wraps(t, <-result, ports.ErrLost)
		time.Sleep(time.Second)
		if n := server.Locks(); n != 1 || m.HeldCount() != 0 {
			t.Errorf("%d locks, %d holds", n, m.HeldCount())
		}
		last.Release(bg)
	})
}

func TestAManagerTakesHalfOfTheLockTable(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		server.LimitLocks(200)
		m := manager(t, server.Pool(), pglock.WithSharedSessions(2))
		var mu sync.Mutex
		var locks []ports.Lock
		refused := 0
		var wg sync.WaitGroup
		for i := range 150 {
			wg.Go(func() {
				lock, err := m.Acquire(bg, fmt.Sprint("key", i))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					locks = append(locks, lock)
				} else if refused++; !errors.Is(err, ports.ErrTooManyLocks) || !strings.Contains(err.Error(), "max_locks_per_transaction") {
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		if len(locks) != 100 || refused != 50 || server.Locks() != 100 {
			t.Errorf("%d locks, %d refused, %d at the server", len(locks), refused, server.Locks())
		}
		_, _, err := m.TryAcquire(bg, "one more")
		wraps(t, err, ports.ErrTooManyLocks)
		// Where somebody has it, room is not what is missing.
		if _, ok, err := m.TryAcquire(bg, locks[0].Info().Key); ok || err != nil {
			t.Errorf("%v %v", ok, err)
		}
		locks[0].Release(bg)
		acquire(t, m, "one more")
	})
}

func TestALockOnASharedSessionLendsNone(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := oneSession(t, server.Pool())
		set, err := m.AcquireAll(bg, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		for _, lock := range []ports.SessionLender{acquire(t, m, "k").(ports.SessionLender), set} {
			err := lock.LendSession(bg, func(ports.Session) bool { t.Error("lent"); return true })
			wraps(t, err, ports.ErrUnsupported)
		}
	})
}

// plainPool is a pool whose sessions cannot take batches.
type plainPool struct{ ports.SessionPool }

func (p plainPool) Open(ctx context.Context) (ports.Session, error) {
	s, err := p.SessionPool.Open(ctx)
	return struct{ ports.Session }{s}, err
}

func TestSessionsWithoutBatchesCannotBeShared(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := pglock.NewManager(plainPool{server.Pool()}, pglock.WithSharedSessions(1))
		_, err := m.Acquire(bg, "k")
		wraps(t, err, ports.ErrUnsupported)
		if err := m.Close(bg); err != nil {
			t.Error(err)
		}
	})
}

// dyingPool is a pool whose sessions are ended as soon as they are there.
type dyingPool struct {
	*memlock.Pool
	server *memlock.Server
}

func (p dyingPool) Open(ctx context.Context) (ports.Session, error) {
	s, err := p.Pool.Open(ctx)
	if err == nil {
		pid, _ := s.Check(ctx, false)
		p.server.Kill(pid)
	}
	return s, err
}

func TestAServerThatEndsEverySharedSessionIsAnError(t *testing.T) {
	for name, opts := range map[string][]memlock.PoolOption{"watching": nil, "blind": {memlock.WithoutWatch()}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				m := pglock.NewManager(dyingPool{server.Pool(opts...), server}, pglock.WithSharedSessions(1), pglock.WithoutVerification())
				_, err := m.Acquire(bg, "k")
				wraps(t, err, ports.ErrSessionEnded)
				if n := m.Stats().Destroyed; n < 50 || n > 150 {
					t.Errorf("%d sessions were tried", n)
				}
				if err := m.Close(bg); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestSharedSessionsWaitForRoomInThePool(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool(memlock.WithLimit(2))
		m := oneSession(t, pool)
		var busy []ports.Session
		for range 2 {
			s, err := pool.Open(bg)
			if err != nil {
				t.Fatal(err)
			}
			busy = append(busy, s)
		}
		_, err := m.Acquire(bg, "k", ports.WithTimeout(time.Second))
		wraps(t, err, ports.ErrPoolExhausted, context.DeadlineExceeded)
		_, _, err = m.TryAcquire(bg, "k")
		wraps(t, err, ports.ErrPoolExhausted)
		waiter := acquireLater(m, "k")
		time.Sleep(3 * window)
		for _, s := range busy {
			s.Recycle(bg)
		}
		if r := <-waiter; r.err != nil {
			t.Error(r.err)
		}

		alone := oneSession(t, server.Pool(memlock.WithLimit(1)))
		_, err = alone.Acquire(bg, "k")
		wraps(t, err, ports.ErrPoolExhausted)
		trusting := oneSession(t, server.Pool(memlock.WithLimit(1)), pglock.WithMaxSessions(1))
		acquire(t, trusting, "other").Release(bg)
	})
}

func TestCloseEndsWhatIsOnSharedSessions(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		server.Intercept(roundTrip(time.Millisecond))
		m, rival := manager(t, server.Pool(), pglock.WithSharedSessions(2)), manager(t, server.Pool())
		acquire(t, rival, "taken")
		locks := acquireMany(t, m, 100, ports.WithHoldAtLeast(time.Hour))
		waiters := []<-chan acquired{acquireLater(m, "taken"), acquireLater(m, "key0"), acquireLater(m, "key1", ports.WithFencing())}
		time.Sleep(time.Second)
		under := acquireLater(m, "new")
		synctest.Wait()
		if err := m.Close(bg); err != nil {
			t.Error(err)
		}
		for _, lock := range locks {
			wraps(t, lock.Err(), ports.ErrReleased)
		}
		for _, w := range append(waiters, under) {
			wraps(t, (<-w).err, ports.ErrClosed)
		}
		if n := server.Locks(); n != 1 || m.Stats().Sessions != 0 {
			t.Errorf("%d locks, %+v", n, m.Stats())
		}
	})
}

func TestSharedSessionsRefuseToBeNone(t *testing.T) {
	for _, n := range []int{0, -1} {
		func() {
			defer func() {
				if r := fmt.Sprint(recover()); !strings.Contains(r, "not positive") {
					t.Errorf("%d: %v", n, r)
				}
			}()
			pglock.WithSharedSessions(n)
		}()
	}
}
