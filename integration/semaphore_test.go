package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// pg_locks never shows more slots than there may be, while nine workers of three
// managers want them.
func TestASemaphoreHasAtMostNHoldersOnTheServer(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		const n, workers, rounds = 2, 9, 4
		slots := func() (held int) {
			for slot := range n {
				held += w.held(t, pglock.SlotKey("k", slot))
			}
			return held
		}
		db := w.db(t, 15)
		var wg sync.WaitGroup
		var ran int
		var mu sync.Mutex
		for range workers / 3 {
			s := pglock.NewSemaphore(w.manager(t, db, pglock.WithMaxSessions(4)), n)
			for range 3 {
				wg.Go(func() {
					for range rounds {
						err := pglock.Do(bg, s, "k", func(context.Context) error {
							mu.Lock()
							ran++
							mu.Unlock()
							if held := slots(); held < 1 || held > n {
								t.Errorf("%d slots are held, want 1 to %d", held, n)
							}
							return nil
						}, ports.WithTimeout(patience))
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		if ran != workers*rounds {
			t.Errorf("%d pieces of work were done, want %d", ran, workers*rounds)
		}
		if held := slots(); held != 0 {
			t.Errorf("%d slots are left", held)
		}
	})
}

func TestASlotWhoseHoldersSessionEndsIsFree(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		holder := pglock.NewSemaphore(w.manager(t, w.db(t, 4)), 2)
		waiter := pglock.NewSemaphore(w.manager(t, w.db(t, 4)), 2)
		lock, err := holder.Acquire(bg, "k")
		must(t, err)
		_, err = holder.Acquire(bg, "k")
		must(t, err)
		if _, acquired, err := waiter.TryAcquire(bg, "k"); acquired || err != nil {
			t.Fatal(acquired, err)
		}
		granted := make(chan error, 1)
		go func() {
			_, err := waiter.Acquire(bg, "k", ports.WithTimeout(patience))
			granted <- err
		}()
		time.Sleep(50 * time.Millisecond)
		kill(t, lock.Info().PID)
		must(t, receive(t, "a slot", granted))
		wraps(t, lock.Release(bg), ports.ErrLost)
		if held := w.locks(t); held != 2 {
			t.Errorf("%d locks are held, want both slots", held)
		}
	})
}
