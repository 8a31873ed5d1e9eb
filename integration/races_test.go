package integration

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// races is how many times each race is run on each driver.
const races = 5000

func TestGrantsRaceCancellations(t *testing.T) {
	each(t, drivers[:2], func(t *testing.T, w world) {
		raceGrants(t, w, races, func(int) ([]ports.AcquireOption, time.Duration) {
			// Mostly about as long as an unlock takes here, and sometimes as
			// long as it takes on a busy machine.
			return nil, rand.N(400*time.Microsecond) << rand.N(5)
		})
	})
}

func TestGrantsRaceTimeouts(t *testing.T) {
	each(t, drivers[:2], func(t *testing.T, w world) {
		raceGrants(t, w, races, func(int) ([]ports.AcquireOption, time.Duration) {
			return []ports.AcquireOption{ports.WithTimeout(time.Millisecond + rand.N(400*time.Microsecond))}, 0
		})
	})
}

// raceGrants has a rival unlock a key about when a call that waits for it is
// cancelled or times out, n times. The call must either own the lock, as seen
// from outside, or return an error that says how it ended; and nothing is held
// by anybody in the end. how gives the options of each call, and, if they do
// not bound it, how long after the unlock it is cancelled.
func raceGrants(t *testing.T, w world, n int, how func(i int) (opts []ports.AcquireOption, cancelAfter time.Duration)) {
	m := w.manager(t, w.db(t, 8))
	rival := w.raw(t)
	id := pglock.SHA256Key("k")
	must(t, acquire(t, m, "warm").Release(bg)) // so that the first calls live long enough
	granted, ended := 0, 0
	for i := range n {
		if _, err := rival.Exec(bg, `SELECT pg_advisory_lock($1)`, id); err != nil {
			t.Fatal(err)
		}
		opts, cancelAfter := how(i)
		ctx, cancel := context.WithCancel(bg)
		got := make(chan result, 1)
		go func() {
			lock, err := m.Acquire(ctx, "k", opts...)
			got <- result{lock, err}
		}()
		// The unlock is under way for some tens of microseconds, and so is
		// the wait.
		time.Sleep(rand.N(1500 * time.Microsecond))
		unlocked := make(chan error, 1)
		go func() {
			_, err := rival.Exec(bg, `SELECT pg_advisory_unlock($1)`, id)
			unlocked <- err
		}()
		if opts == nil {
			time.Sleep(cancelAfter)
			cancel()
		}
		r := receive(t, "the end of the call", got)
		must(t, <-unlocked)
		switch {
		case r.err == nil:
			granted++
			if pids := w.holders(t, id, ports.Exclusive); len(pids) != 1 || pids[0] != r.lock.Info().PID {
				t.Fatalf("round %d: acquired by process %d, but held by %v", i, r.lock.Info().PID, pids)
			}
			must(t, r.lock.Release(bg))
		case errors.Is(r.err, context.Canceled), errors.Is(r.err, context.DeadlineExceeded):
			ended++
			if m.IsHeld("k") {
				t.Fatalf("round %d: an error and a hold", i)
			}
		default:
			t.Fatalf("round %d: %v", i, r.err)
		}
		cancel()
	}
	t.Logf("%d calls were granted the lock, %d ended without it", granted, ended)
	if granted == 0 || ended == 0 {
		t.Error("there was no race")
	}
	eventually(t, "nothing is held", func() bool { return w.locks(t) == 0 && m.Stats().Sessions == 0 })
	if n := m.Stats().Destroyed; n != 0 {
		t.Errorf("%d connections were burnt", n)
	}
}
