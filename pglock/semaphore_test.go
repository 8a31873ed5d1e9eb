package pglock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// slotsHeld counts the holders of a semaphore from outside.
func slotsHeld(server *memlock.Server, key string, n int) (held int) {
	for slot := range n {
		held += len(server.Holders(pglock.SHA256Key(pglock.SlotKey(key, slot))))
	}
	return held
}

func TestASemaphoreHasAtMostNHoldersAndServesEverybody(t *testing.T) {
	for name, opts := range map[string][]ports.AcquireOption{"in line": nil, "polling": {ports.WithPolling(200 * time.Millisecond)}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				const n, workers, rounds = 3, 12, 20
				var holders, most atomic.Int32
				var wg sync.WaitGroup
				for range workers / 4 { // processes
					s := pglock.NewSemaphore(manager(t, server.Pool()), n)
					for range 4 {
						wg.Go(func() {
							for range rounds {
								err := pglock.Do(bg, s, "k", func(context.Context) error {
									now := holders.Add(1)
									defer holders.Add(-1)
									if held := slotsHeld(server, "k", n); now > n || held > n {
										t.Errorf("%d holders, %d slots held, want at most %d", now, held, n)
									}
									if now > most.Load() {
										most.Store(now)
									}
									time.Sleep(rand.N(2 * time.Second))
									return nil
								}, opts...)
								if err != nil {
									t.Error(err)
								}
							}
						})
					}
				}
				start := time.Now()
				wg.Wait()
				if most.Load() != n {
					t.Errorf("there were %d holders at most, want %d", most.Load(), n)
				}
				// 240 holds of a second each on three slots, and a slot that is free
				// is taken within a second.
				if took := time.Since(start); took > 5*time.Minute {
					t.Errorf("all of it took %v", took)
				}
				if left := server.Locks(); left != 0 {
					t.Errorf("%d locks are left", left)
				}
			})
		})
	}
}

func TestATryOfASemaphoreIsRefusedWhenEverySlotIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		here, there := pglock.NewSemaphore(manager(t, server.Pool()), 2), pglock.NewSemaphore(manager(t, server.Pool()), 2)
		var locks []ports.Lock
		for i, s := range []*pglock.Semaphore{here, there, here} {
			lock, acquired, err := s.TryAcquire(bg, "k")
			if err != nil || acquired != (i < 2) || acquired != (lock != nil) {
				t.Fatalf("try %d: %v, %v, %v", i, lock, acquired, err)
			}
			locks = append(locks, lock)
		}
		if !here.IsHeld("k") || here.IsHeld("other") || slotsHeld(server, "k", 2) != 2 {
			t.Error("the registry and the server disagree")
		}
		if _, err := here.Acquire(bg, "k", ports.WithTimeout(0)); !errors.Is(err, ports.ErrNotAcquired) {
			t.Error(err)
		}
		if err := here.Release(bg, "k"); err != nil {
			t.Error(err)
		}
		wraps(t, here.Release(bg, "k"), ports.ErrNotHeld)
		if here.IsHeld("k") || slotsHeld(server, "k", 2) != 1 {
			t.Error("the slot is not given back")
		}
		wraps(t, locks[0].Err(), ports.ErrReleased)
	})
}

func TestAWaitForASlotEndsWhenItsTimeIsUp(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		s := pglock.NewSemaphore(manager(t, server.Pool()), 2)
		for range 2 {
			if _, err := s.Acquire(bg, "k"); err != nil {
				t.Fatal(err)
			}
		}
		cause := errors.New("shutting down")
		for name, call := range map[string]func() ([]error, error){
			"timeout": func() ([]error, error) {
				_, err := s.Acquire(bg, "k", ports.WithTimeout(5*time.Second))
				return []error{ports.ErrNotAcquired, context.DeadlineExceeded}, err
			},
			"timeout while polling": func() ([]error, error) {
				_, err := s.Acquire(bg, "k", ports.WithTimeout(5*time.Second), ports.WithPolling(time.Second))
				return []error{ports.ErrNotAcquired, context.DeadlineExceeded}, err
			},
			"deadline": func() ([]error, error) {
				ctx, cancel := context.WithTimeout(bg, 5*time.Second)
				defer cancel()
				_, err := s.Acquire(ctx, "k")
				return []error{ports.ErrNotAcquired, context.DeadlineExceeded}, err
			},
			"cancel": func() ([]error, error) {
				ctx, cancel := context.WithCancelCause(bg)
				time.AfterFunc(5*time.Second, func() { cancel(cause) })
				_, err := s.Acquire(ctx, "k")
				return []error{ports.ErrNotAcquired, context.Canceled, cause}, err
			},
		} {
			start := time.Now()
			want, err := call()
			wraps(t, err, want...)
			var lockErr *ports.LockError
			if !errors.As(err, &lockErr) || lockErr.Key != "k" || lockErr.Op != "acquire" || strings.Contains(err.Error(), "#") {
				t.Errorf("%s: the error %v is not about the key", name, err)
			}
			if took := time.Since(start); took != 5*time.Second {
				t.Errorf("%s: took %v", name, took)
			}
		}
	})
}

func TestASlotThatIsFreedOrLostIsFoundWithinASecond(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		holders := pglock.NewSemaphore(m, 4)
		var locks []ports.Lock
		for range 4 {
			lock, err := holders.Acquire(bg, "k")
			if err != nil {
				t.Fatal(err)
			}
			locks = append(locks, lock)
		}
		waiter := pglock.NewSemaphore(manager(t, server.Pool()), 4)
		for i, end := range []func(ports.Lock){
			func(l ports.Lock) { _ = l.Release(bg) },
			func(l ports.Lock) { server.Kill(l.Info().PID) },
		} {
			granted := make(chan error)
			go func() {
				_, err := waiter.Acquire(bg, "k")
				granted <- err
			}()
			time.Sleep(time.Minute)
			synctest.Wait()
			start := time.Now()
			end(locks[i])
			if err := <-granted; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("a free slot was found after %v", took)
			}
		}
	})
}

func TestFailuresBelowASemaphoreAreTold(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		s := pglock.NewSemaphore(m, 3)
		_, err := s.Acquire(bg, "k", ports.WithShared())
		wraps(t, err, ports.ErrUnsupported)

		refused := errors.New("connection refused")
		server.Intercept(func(context.Context, memlock.Command) error { return refused })
		_, err = s.Acquire(bg, "k")
		wraps(t, err, refused)
		_, _, err = s.TryAcquire(bg, "k")
		wraps(t, err, refused)
		server.Intercept(nil)

		// A pool without room is waited for, as by any Acquire.
		small := pglock.NewSemaphore(manager(t, server.Pool(), pglock.WithMaxSessions(1)), 3)
		first, err := small.Acquire(bg, "another")
		if err != nil {
			t.Fatal(err)
		}
		_, err = small.Acquire(bg, "k", ports.WithTimeout(10*time.Second))
		wraps(t, err, ports.ErrPoolExhausted)
		time.AfterFunc(10*time.Second, func() { _ = first.Release(bg) })
		if _, err := small.Acquire(bg, "k", ports.WithTimeout(time.Minute)); err != nil {
			t.Error(err)
		}

		if err := m.Close(bg); err != nil {
			t.Fatal(err)
		}
		_, err = s.Acquire(bg, "k")
		wraps(t, err, ports.ErrClosed)
	})
}

func TestMisuseOfSemaphoresPanicsWithASentence(t *testing.T) {
	for what, misuse := range map[string]func(){
		"no locks": func() { pglock.NewSemaphore(nil, 1) },
		"no slots": func() { pglock.NewSemaphore(memlock.New(memlock.NewServer()), 0) },
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
