package portstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// Manager is the harness of TestManager: managers on one server, and a view of
// that server from outside.
type Manager struct {
	// New makes one more manager on the server, as one more process would. The
	// harness closes it when the test ends.
	New func() ports.LockManager
	// Holders returns how many hold key in this mode now, seen from outside.
	Holders func(key string, mode ports.Mode) int
	// Merged says that the shared holds of one manager are one holder at the
	// server.
	Merged bool
	// Lose ends the server session of a lock from outside. Nil if the
	// implementation has nothing of the kind; then the laws of loss are not
	// proved.
	Lose func(lock ports.Lock)
}

// TestManager proves the laws of ports.LockManager. It calls harness once a
// law; around, if not nil, wraps each law, for example into a bubble of
// testing/synctest.
func TestManager(t *testing.T, around func(*testing.T, func(*testing.T)), harness func(*testing.T) Manager) {
	prove(t, managerLaws, around, harness)
}

var managerLaws = []law[Manager]{
	{"one holder", "While one manager holds a key, no other gets it.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		lock := acquire(t, a, "k")
		h.holders(t, "k", ports.Exclusive, 1)
		refused(t, b, "k")
		release(t, lock)
		h.holders(t, "k", ports.Exclusive, 0)
		release(t, tryAcquire(t, b, "k"))
	}},
	{"not re-entrant", "A manager that holds a key does not get it a second time.", func(t *testing.T, h Manager) {
		m := h.New()
		lock := acquire(t, m, "k")
		refused(t, m, "k")
		_, err := m.Acquire(bg, "k", ports.WithTimeout(soon))
		wraps(t, err, ports.ErrNotAcquired)
		release(t, lock)
		h.holders(t, "k", ports.Exclusive, 0)
	}},
	{"keys are independent", "A held key is in nobody's way but its own.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		first, second, third := acquire(t, a, "k1"), acquire(t, a, "k2"), acquire(t, b, "k3")
		release(t, second)
		refused(t, b, "k1")
		release(t, tryAcquire(t, b, "k2"))
		release(t, first)
		release(t, third)
	}},
	{"a waiter is served", "A waiting Acquire gets the key when its holder releases it.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		for _, waiting := range []ports.LockManager{a, b} {
			for _, opts := range [][]ports.AcquireOption{nil, {ports.WithPolling(5 * time.Millisecond)}, {ports.WithShared()}} {
				lock := acquire(t, a, "k")
				got := acquireLater(waiting, "k", opts...)
				time.Sleep(soon)
				if len(got) > 0 {
					t.Fatal("the waiter did not wait")
				}
				release(t, lock)
				r := receive(t, "the lock", got)
				must(t, r.err)
				release(t, r.lock)
			}
		}
	}},
	{"a timeout ends a wait", "A wait ends at WithTimeout, zero too, or the context's deadline, with an error that wraps ErrNotAcquired and context.DeadlineExceeded.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		release(t, acquire(t, b, "warm"))
		lock := acquire(t, a, "k")
		for _, m := range []ports.LockManager{a, b} {
			for _, d := range []time.Duration{0, soon} {
				_, err := m.Acquire(bg, "k", ports.WithTimeout(d))
				wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
				var typed *ports.LockError
				if !errors.As(err, &typed) || typed.Key != "k" || typed.Op != "acquire" {
					t.Fatalf("%#v is no *LockError for the call", err)
				}
			}
			ctx, cancel := context.WithTimeout(bg, soon)
			defer cancel()
			_, err := m.Acquire(ctx, "k", ports.WithTimeout(time.Hour))
			wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
		}
		release(t, lock)
		h.freed(t, "k")
		// Not by TryAcquire: the last statement of a wait that has timed out may
		// still get the lock, and give it back.
		release(t, acquire(t, b, "k"))
	}},
	{"a cancellation ends a wait", "A wait ends when its context is cancelled; the error wraps the cause, and nothing is held.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		why := errors.New("shutting down")
		for _, m := range []ports.LockManager{a, b} {
			lock := acquire(t, a, "k")
			ctx, cancel := context.WithCancelCause(bg)
			time.AfterFunc(soon, func() { cancel(why) })
			_, err := m.Acquire(ctx, "k")
			wraps(t, err, context.Canceled, why)
			release(t, lock)
			h.freed(t, "k")
			release(t, acquire(t, a, "k"))
		}
	}},
	{"a done context asks nothing", "With a context that is done, Acquire and TryAcquire return its cause.", func(t *testing.T, h Manager) {
		m := h.New()
		why := errors.New("never mind")
		ctx, cancel := context.WithCancelCause(bg)
		cancel(why)
		_, err := m.Acquire(ctx, "k")
		wraps(t, err, context.Canceled, why)
		_, _, err = m.TryAcquire(ctx, "k")
		wraps(t, err, context.Canceled, why)
		h.freed(t, "k")
	}},
	{"the context bounds the wait only", "A hold outlives the context and the timeout that it was acquired with.", func(t *testing.T, h Manager) {
		m := h.New()
		ctx, cancel := context.WithCancel(bg)
		lock, err := m.Acquire(ctx, "k", ports.WithTimeout(aWhile))
		must(t, err)
		cancel()
		time.Sleep(aWhile + soon)
		if ended(lock) || lock.Err() != nil {
			t.Fatal("the hold has ended")
		}
		h.holders(t, "k", ports.Exclusive, 1)
		release(t, lock)
	}},
	{"release with a dead context", "Release works with a context that is done.", func(t *testing.T, h Manager) {
		m := h.New()
		ctx, cancel := context.WithCancel(bg)
		cancel()
		lock := acquire(t, m, "k")
		must(t, lock.Release(ctx))
		h.holders(t, "k", ports.Exclusive, 0)
		acquire(t, m, "k")
		must(t, m.Release(ctx, "k"))
		h.holders(t, "k", ports.Exclusive, 0)
	}},
	{"release is idempotent", "Release may be called again, from many goroutines and late; it never touches a newer holder.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		lock := acquire(t, a, "k")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := lock.Release(bg); err != nil {
					t.Errorf("release: %v", err)
				}
			})
		}
		wg.Wait()
		h.holders(t, "k", ports.Exclusive, 0)
		newer := acquire(t, a, "k")
		release(t, lock)
		h.holders(t, "k", ports.Exclusive, 1)
		refused(t, b, "k")
		release(t, newer)
	}},
	{"release of what is not held", "Release of a key without a hold here says ErrNotHeld, whoever else holds it.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		wraps(t, b.Release(bg, "k"), ports.ErrNotHeld)
		lock := acquire(t, a, "k")
		wraps(t, b.Release(bg, "k"), ports.ErrNotHeld)
		h.holders(t, "k", ports.Exclusive, 1)
		release(t, lock)
		wraps(t, a.Release(bg, "k"), ports.ErrNotHeld)
	}},
	{"shared holds", "Shared holds stand beside each other, in one manager too, and beside no exclusive one.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		locks := []ports.Lock{
			acquire(t, a, "k", ports.WithShared()), acquire(t, a, "k", ports.WithShared()),
			tryAcquire(t, b, "k", ports.WithShared()),
		}
		holders := len(locks)
		if h.Merged {
			holders = 2
		}
		h.holders(t, "k", ports.Shared, holders)
		refused(t, a, "k")
		refused(t, b, "k")
		for _, l := range locks {
			refused(t, b, "k")
			release(t, l)
		}
		h.holders(t, "k", ports.Shared, 0)
		lock := acquire(t, b, "k")
		refused(t, a, "k", ports.WithShared())
		refused(t, b, "k", ports.WithShared())
		release(t, lock)
	}},
	{"no upgrade", "A shared hold is not turned into an exclusive one: who asks is refused, not deadlocked.", func(t *testing.T, h Manager) {
		m := h.New()
		shared := acquire(t, m, "k", ports.WithShared())
		refused(t, m, "k")
		_, err := m.Acquire(bg, "k", ports.WithTimeout(soon))
		wraps(t, err, ports.ErrNotAcquired)
		h.holders(t, "k", ports.Shared, 1)
		release(t, shared)
		release(t, acquire(t, m, "k"))
	}},
	{"any string is a key", "Empty, with NUL, not UTF-8, a mebibyte long: any string is a key, and no two of them are one.", func(t *testing.T, h Manager) {
		m := h.New()
		keys := []string{"", "\x00", "a\x00b", "a", "\xff\xfe", "'; DROP TABLE x; --", `\`, "日本語", strings.Repeat("k", 1<<20), strings.Repeat("k", 1<<20+1)}
		for _, key := range keys {
			lock := acquire(t, m, key)
			if lock.Info().Key != key {
				t.Fatalf("the key %.20q came back as %.20q", key, lock.Info().Key)
			}
			h.holders(t, key, ports.Exclusive, 1)
			if !m.IsHeld(key) {
				t.Fatalf("%.20q is not held", key)
			}
		}
		n, err := m.ReleaseAll(bg)
		must(t, err)
		if n != len(keys) {
			t.Fatalf("released %d of %d", n, len(keys))
		}
	}},
	{"the registry", "Held, HeldCount and IsHeld tell what is held now; ReleaseAll releases all of it.", func(t *testing.T, h Manager) {
		m, other := h.New(), h.New()
		foreign := acquire(t, other, "foreign")
		var keys []string
		for i := range 3 {
			key := fmt.Sprint("k", i)
			lock := acquire(t, m, key)
			keys = append(keys, key)
			info := lock.Info()
			if info.Key != key || info.Mode != ports.Exclusive || info.AcquiredAt.IsZero() || info.HolderID == "" {
				t.Fatalf("%+v", info)
			}
			time.Sleep(time.Millisecond)
		}
		var got []string
		for _, info := range m.Held() {
			got = append(got, info.Key)
		}
		if !slices.Equal(got, keys) || m.HeldCount() != 3 || !m.IsHeld("k1") || m.IsHeld("foreign") {
			t.Fatalf("held %v, count %d", got, m.HeldCount())
		}
		must(t, m.Release(bg, "k1"))
		if m.IsHeld("k1") || m.HeldCount() != 2 {
			t.Fatal("k1 is still on the books")
		}
		n, err := m.ReleaseAll(bg)
		must(t, err)
		if n != 2 || m.HeldCount() != 0 || len(m.Held()) != 0 {
			t.Fatalf("released %d, %d are left", n, m.HeldCount())
		}
		h.holders(t, "k0", ports.Exclusive, 0)
		h.holders(t, "foreign", ports.Exclusive, 1)
		release(t, foreign)
	}},
	{"the end of a hold", "Done is open and Err nil while a lock is held; a release closes Done, and Err says ErrReleased.", func(t *testing.T, h Manager) {
		m := h.New()
		lock := acquire(t, m, "k")
		if ended(lock) || lock.Err() != nil {
			t.Fatal("ended at once")
		}
		release(t, lock)
		if !ended(lock) || !errors.Is(lock.Err(), ports.ErrReleased) {
			t.Fatalf("ended %v, %v", ended(lock), lock.Err())
		}
	}},
	{"first come, first served", "Of those who wait in one manager, the first gets the key first, and one who leaves is not in the way.", func(t *testing.T, h Manager) {
		holder, m := h.New(), h.New()
		lock := acquire(t, holder, "k")
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		left, leave := context.WithCancel(bg)
		for i := range 6 {
			ctx := bg
			if i == 0 || i == 3 {
				ctx = left
			}
			wg.Go(func() {
				lock, err := m.Acquire(ctx, "k")
				if err != nil {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				lock.Release(bg)
			})
			time.Sleep(2 * soon) // so that they come in this order
		}
		leave()
		time.Sleep(2 * soon)
		release(t, lock)
		wg.Wait()
		if !slices.Equal(order, []int{1, 2, 4, 5}) {
			t.Fatalf("served in the order %v", order)
		}
	}},
	{"never two at once", "However many contend in two managers, at most one is in the critical section.", func(t *testing.T, h Manager) {
		inside, entered := 0, 0 // guarded by the lock under test alone; -race sees the rest
		var wg sync.WaitGroup
		for _, m := range []ports.LockManager{h.New(), h.New()} {
			for range 4 {
				wg.Go(func() {
					for range 10 {
						lock, err := m.Acquire(bg, "k")
						if err != nil {
							t.Errorf("acquire: %v", err)
							return
						}
						if inside++; inside != 1 {
							t.Error("two in the critical section")
						}
						entered++
						inside--
						if err := lock.Release(bg); err != nil {
							t.Errorf("release: %v", err)
						}
					}
				})
			}
		}
		wg.Wait()
		if entered != 80 {
			t.Fatalf("entered %d times", entered)
		}
		h.holders(t, "k", ports.Exclusive, 0)
	}},
	{"grants race cancellations", "A call that is cancelled in the moment of the grant either owns the lock or returns an error and holds nothing.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		for i := range 40 {
			lock := acquire(t, a, "k")
			ctx, cancel := context.WithCancel(bg)
			var wg sync.WaitGroup
			for _, ctx := range []context.Context{bg, ctx} {
				wg.Go(func() {
					lock, err := b.Acquire(ctx, "k")
					if err != nil {
						if ctx == bg || !errors.Is(err, context.Canceled) {
							t.Errorf("acquire: %v", err)
						}
						return
					}
					if n := h.Holders("k", ports.Exclusive); n != 1 {
						t.Errorf("granted, and held by %d", n)
					}
					release(t, lock)
				})
			}
			time.Sleep(5 * time.Millisecond)
			release(t, lock)
			time.Sleep(time.Duration(i) * 20 * time.Microsecond)
			cancel()
			wg.Wait()
			h.freed(t, "k")
		}
	}},
	{"fencing tokens", "With WithFencing each hold's token is greater than that of every hold before it; without, there is none.", func(t *testing.T, h Manager) {
		var last ports.Token
		for range 5 {
			m := h.New()
			for _, opts := range [][]ports.AcquireOption{{ports.WithFencing()}, {ports.WithFencing(), ports.WithShared()}} {
				lock := acquire(t, m, "k", opts...)
				if lock.Info().Token <= last {
					t.Fatalf("token %d after %d", lock.Info().Token, last)
				}
				last = lock.Info().Token
				release(t, lock)
			}
			lock := acquire(t, m, "k")
			if lock.Info().Token != 0 {
				t.Fatalf("token %d, and none was asked for", lock.Info().Token)
			}
			release(t, lock)
		}
	}},
	{"holding for a while", "A hold with WithHoldAtLeast outlasts its releases, counts as held, and is not among what ReleaseAll has released.", func(t *testing.T, h Manager) {
		a, b := h.New(), h.New()
		release(t, acquire(t, b, "warm"))
		lock := acquire(t, a, "k", ports.WithHoldAtLeast(aWhile))
		brief := acquire(t, a, "brief")
		release(t, lock)
		must(t, a.Release(bg, "k"))
		n, err := a.ReleaseAll(bg)
		must(t, err)
		if n != 1 || !ended(brief) || ended(lock) || !a.IsHeld("k") || a.HeldCount() != 1 {
			t.Fatalf("released %d, %d are held", n, a.HeldCount())
		}
		refused(t, b, "k")
		receive(t, "the end of the hold", lock.Done())
		if held := time.Since(lock.Info().AcquiredAt); held < aWhile {
			t.Fatalf("held for %v", held)
		}
		release(t, acquire(t, b, "k"))
	}},
	{"a loss is told", "When the session of a hold ends, Done closes, Err and Release wrap ErrLost, and the key can be had again.", func(t *testing.T, h Manager) {
		if h.Lose == nil {
			return
		}
		a, b := h.New(), h.New()
		lock := acquire(t, a, "k")
		h.Lose(lock)
		receive(t, "the end of the hold", lock.Done())
		wraps(t, lock.Err(), ports.ErrLost)
		if a.IsHeld("k") || a.HeldCount() != 0 {
			t.Fatal("a lost lock counts as held")
		}
		rival := acquire(t, b, "k")
		wraps(t, lock.Release(bg), ports.ErrLost)
		wraps(t, lock.Release(bg), ports.ErrLost)
		h.holders(t, "k", ports.Exclusive, 1)
		release(t, rival)
		release(t, acquire(t, a, "k"))
		wraps(t, lock.Err(), ports.ErrLost)
	}},
	{"a loss is told by key", "Release by key says ErrLost for a hold that was lost, once, and then ErrNotHeld.", func(t *testing.T, h Manager) {
		if h.Lose == nil {
			return
		}
		m := h.New()
		lock := acquire(t, m, "k")
		h.Lose(lock)
		receive(t, "the end of the hold", lock.Done())
		wraps(t, m.Release(bg, "k"), ports.ErrLost)
		wraps(t, m.Release(bg, "k"), ports.ErrNotHeld)
	}},
}

type result struct {
	lock ports.Lock
	err  error
}

// acquire takes a key and expects to get it.
func acquire(t *testing.T, m ports.LockManager, key string, opts ...ports.AcquireOption) ports.Lock {
	t.Helper()
	lock, err := m.Acquire(bg, key, append([]ports.AcquireOption{ports.WithTimeout(patience)}, opts...)...)
	must(t, err)
	return lock
}

// acquireLater takes a key on a goroutine of its own.
func acquireLater(m ports.LockManager, key string, opts ...ports.AcquireOption) <-chan result {
	c := make(chan result, 1)
	go func() {
		lock, err := m.Acquire(bg, key, opts...)
		c <- result{lock, err}
	}()
	return c
}

// tryAcquire tries for a key and expects to get it.
func tryAcquire(t *testing.T, m ports.LockManager, key string, opts ...ports.AcquireOption) ports.Lock {
	t.Helper()
	lock, acquired, err := m.TryAcquire(bg, key, opts...)
	must(t, err)
	if !acquired {
		t.Fatal("refused, although the key is free")
	}
	return lock
}

// refused tries for a key and expects not to get it.
func refused(t *testing.T, m ports.LockManager, key string, opts ...ports.AcquireOption) {
	t.Helper()
	_, acquired, err := m.TryAcquire(bg, key, opts...)
	must(t, err)
	if acquired {
		t.Fatal("two hold the key at once")
	}
}

// release gives a lock back and expects that the server had it.
func release(t *testing.T, lock ports.Lock) {
	t.Helper()
	if err := lock.Release(bg); err != nil {
		t.Errorf("release: %v", err)
	}
}

// holders asserts how many hold a key.
func (h Manager) holders(t *testing.T, key string, mode ports.Mode, want int) {
	t.Helper()
	if got := h.Holders(key, mode); got != want {
		t.Fatalf("%.20q is held %v by %d, want %d", key, mode, got, want)
	}
}

// freed waits until nobody holds a key: a call that was given up may be granted
// the lock for as long as it takes to give it back.
func (h Manager) freed(t *testing.T, key string) {
	t.Helper()
	eventually(t, "the key is free", func() bool { return h.Holders(key, ports.Exclusive) == 0 })
}
