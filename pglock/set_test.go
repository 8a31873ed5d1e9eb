package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// ordered gives the first letter of a key as its ID, so that a test knows the
// order of the locks, and which keys share one.
func ordered() pglock.Option {
	return pglock.WithKeyFunc(func(key string) int64 { return int64(key[0]) })
}

func keysOf(set *pglock.LockSet) (keys []string) {
	for _, info := range set.Infos() {
		keys = append(keys, info.Key)
	}
	return keys
}

func TestASetTakesEachIDOnceInTheirOrderOnOneSession(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		pool := server.Pool()
		m := manager(t, pool, ordered(), pglock.WithHolderID("me"))
		var asked []int64
		server.Intercept(func(_ context.Context, c memlock.Command) error {
			if c.Op == "lock" && !c.Done {
				asked = append(asked, c.ID)
			}
			return nil
		})
		keys := []string{"d", "b2", "a", "b1", "d", "c"}
		set, err := m.AcquireAll(bg, keys)
		if err != nil {
			t.Fatal(err)
		}
		if got := keysOf(set); !slices.Equal(got, []string{"a", "b2", "c", "d"}) || !slices.Equal(asked, []int64{'a', 'b', 'c', 'd'}) {
			t.Errorf("the set has %v, asked for %v", got, asked)
		}
		if keys[0] != "d" || keys[2] != "a" {
			t.Errorf("the caller's keys are now %v", keys)
		}
		for i, info := range set.Infos() {
			h := server.Holders(info.ID)
			if len(h) != 1 || h[0].PID != info.PID || info.PID != set.Info().PID || info.HolderID != "me" || !m.IsHeld(info.Key) {
				t.Errorf("lock %d: %+v, held by %v", i, info, h)
			}
		}
		if n, _ := pool.Usage(); n != 1 || m.HeldCount() != 4 || len(m.Held()) != 4 || set.Info().Key != "a" {
			t.Errorf("%d sessions, %d holds, %v, first %q", n, m.HeldCount(), m.Held(), set.Info().Key)
		}
		if err := set.Release(bg); err != nil {
			t.Error(err)
		}
		<-set.Done()
		wraps(t, set.Err(), ports.ErrReleased)
		if server.Locks() != 0 || m.HeldCount() != 0 {
			t.Errorf("%d locks, %d holds", server.Locks(), m.HeldCount())
		}
	})
}

func TestASetOfNoKeysIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		set, err := manager(t, server.Pool()).AcquireAll(bg, nil)
		var typed *ports.LockError
		if set != nil || !errors.As(err, &typed) || errors.Is(err, ports.ErrNotAcquired) {
			t.Errorf("%v %v", set, err)
		}
	})
}

func TestASetIsAllOrNone(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, pool := manager(t, server.Pool(), ordered()), server.Pool()
		m := manager(t, pool, ordered())
		for _, taken := range []string{"a", "b", "c"} {
			lock := acquire(t, holder, taken)
			for _, opts := range [][]ports.AcquireOption{
				{ports.WithTimeout(0)},
				{ports.WithTimeout(3 * time.Second)},
				{ports.WithTimeout(3 * time.Second), ports.WithPolling(time.Second)},
			} {
				start := time.Now()
				_, err := m.AcquireAll(bg, []string{"c", "a", "b"}, opts...)
				wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
				if d, most := time.Since(start), max(ports.NewAcquireOptions(opts...).Timeout, 0)+slack; d > most {
					t.Errorf("without %s it took %v, its bound is %v", taken, d, most)
				}
				var typed *ports.LockError
				if !errors.As(err, &typed) || typed.Key != taken || typed.Op != "acquire" {
					t.Errorf("without %s: %v", taken, err)
				}
				time.Sleep(slack) // for the statement of a wait that was left
				if n, _ := pool.Usage(); n != 0 || server.Locks() != 1 || m.HeldCount() != 0 {
					t.Errorf("without %s: %d sessions, %d locks, %d holds", taken, n, server.Locks(), m.HeldCount())
				}
			}
			lock.Release(bg)
		}
		if n := m.Stats().Destroyed; n != 0 {
			t.Errorf("%d connections were burnt", n)
		}
	})
}

// slack is what a call may take longer than its time: the slice at the server
// that it cannot break off, for a set whose session is in use there.
const slack = 500 * time.Millisecond

func TestASetThatIsCancelledInTheMiddleGivesBackWhatItTook(t *testing.T) {
	for _, opts := range [][]ports.AcquireOption{nil, {ports.WithPolling(time.Second)}, {ports.WithShared()}, {ports.WithHoldAtLeast(time.Hour)}} {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			holder, pool := manager(t, server.Pool(), ordered()), server.Pool()
			m := manager(t, pool, ordered())
			lock := acquire(t, holder, "b")
			ctx, cancel := context.WithCancelCause(bg)
			why := errors.New("the user has gone")
			time.AfterFunc(2200*time.Millisecond, func() {
				if len(server.Holders('a')) != 1 || m.Stats().Waiting != 1 {
					t.Errorf("not in the middle: %v, %+v", server.Holders('a'), m.Stats())
				}
				cancel(why)
			})
			start := time.Now()
			_, err := m.AcquireAll(ctx, []string{"a", "b"}, opts...)
			wraps(t, err, ports.ErrNotAcquired, context.Canceled, why)
			if d := time.Since(start); d > 2200*time.Millisecond+slack {
				t.Errorf("it took %v", d)
			}
			if n, _ := pool.Usage(); n != 0 || server.Locks() != 1 || m.Stats().Destroyed != 0 {
				t.Errorf("%d sessions, %d locks, %+v", n, server.Locks(), m.Stats())
			}
			lock.Release(bg)
			synctest.Wait()
			if server.Locks() != 0 {
				t.Error("what was left of the wait has taken the lock")
			}
		})
	}
}

// A timeout is for the whole set: what the first keys have used of it, the last
// ones do not have.
func TestTheTimeoutOfASetIsForTheWholeWait(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool(), ordered()), manager(t, server.Pool(), ordered())
		for _, key := range []string{"a", "b", "c"} {
			lock := acquire(t, holder, key)
			defer lock.Release(bg)
			time.AfterFunc(time.Duration(key[0]-'a'+1)*2*time.Second, func() { lock.Release(bg) })
		}
		start := time.Now()
		_, err := m.AcquireAll(bg, []string{"a", "b", "c"}, ports.WithTimeout(5*time.Second))
		wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
		if d := time.Since(start); d < 5*time.Second || d > 5*time.Second+slack {
			t.Errorf("it took %v", d)
		}
	})
}

func TestTheTimeoutOfASetIsForTheWholeWaitOnASlowNetworkToo(t *testing.T) {
	for _, latency := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 240 * time.Millisecond, time.Second} {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			server.Intercept(func(context.Context, memlock.Command) error {
				time.Sleep(latency)
				return nil
			})
			m := manager(t, server.Pool(), ordered())
			var keys []string
			for key := 'A'; key < 'A'+50; key++ {
				keys = append(keys, string(key))
			}
			for _, timeout := range []time.Duration{time.Millisecond, 205 * time.Millisecond, time.Second, 5 * time.Second} {
				start := time.Now()
				set, err := m.AcquireAll(bg, keys, ports.WithTimeout(timeout))
				// The last statement may be on its way, and those of the
				// unlocking follow.
				back := time.Duration(2*len(keys)+2) * latency
				if d := time.Since(start); d > timeout+250*time.Millisecond+min(back, window/3) {
					t.Errorf("with a latency of %v and a timeout of %v it took %v: %v", latency, timeout, d, err)
				}
				if err == nil {
					if d := time.Since(start); d > timeout+250*time.Millisecond {
						t.Errorf("with a latency of %v and a timeout of %v it was had after %v", latency, timeout, d)
					}
					set.Release(bg)
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
			time.Sleep(time.Minute)
			if server.Locks() != 0 {
				t.Errorf("%d locks are left", server.Locks())
			}
		})
	}
}

// The timeout has passed, within the grace of the first key; the next one must
// not be given more time because its statement hangs.
func TestASetWhoseTimeIsUpDoesNotWaitForASilentServer(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		server.Intercept(func(ctx context.Context, c memlock.Command) error {
			if c.Op == "lock" && c.ID == 'a' && !c.Done {
				time.Sleep(1100 * time.Millisecond)
			}
			if c.Op == "lock" && c.ID == 'b' {
				<-ctx.Done()
				return errors.New("read: connection timed out")
			}
			return nil
		})
		m := manager(t, server.Pool(), ordered())
		start := time.Now()
		_, err := m.AcquireAll(bg, []string{"a", "b"}, ports.WithTimeout(time.Second))
		if d := time.Since(start); d > 1250*time.Millisecond {
			t.Errorf("with a timeout of 1 s it took %v: %v", d, err)
		}
		wraps(t, err, context.DeadlineExceeded)
	})
}

func TestASetIsLostAsAWhole(t *testing.T) {
	for _, end := range []func(*memlock.Server, int){
		func(s *memlock.Server, pid int) { s.Kill(pid) },
		func(s *memlock.Server, pid int) { s.DropLocks(pid) },
	} {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			m := manager(t, server.Pool())
			set, err := m.AcquireAll(bg, []string{"a", "b", "c"})
			if err != nil {
				t.Fatal(err)
			}
			end(server, set.Info().PID)
			timer := time.NewTimer(window)
			defer timer.Stop()
			select {
			case <-set.Done():
			case <-timer.C:
				t.Fatal("not told")
			}
			wraps(t, set.Err(), ports.ErrLost)
			wraps(t, m.Release(bg, "b"), ports.ErrLost)
			wraps(t, m.Release(bg, "c"), ports.ErrNotHeld) // which was told
			wraps(t, set.Release(bg), ports.ErrLost)
			if s := m.Stats(); s.Held != 0 || s.Lost != 1 || s.Sessions != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestASetWhoseSessionEndsInTheMiddleFails(t *testing.T) {
	for _, polling := range []bool{false, true} {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			holder, pool := manager(t, server.Pool(), ordered()), server.Pool()
			m := manager(t, pool, ordered())
			lock := acquire(t, holder, "b")
			time.AfterFunc(2200*time.Millisecond, func() { server.Kill(server.Holders('a')[0].PID) })
			opts := []ports.AcquireOption{ports.WithTimeout(time.Hour)}
			if polling {
				opts = append(opts, ports.WithPolling(time.Second))
			}
			start := time.Now()
			_, err := m.AcquireAll(bg, []string{"a", "b"}, opts...)
			if err == nil || errors.Is(err, ports.ErrNotAcquired) || !errors.Is(err, ports.ErrSessionEnded) && !errors.Is(err, ports.ErrLost) {
				t.Errorf("%v", err)
			}
			if d := time.Since(start); d > 2200*time.Millisecond+1500*time.Millisecond {
				t.Errorf("it took %v", d)
			}
			if n, _ := pool.Usage(); n != 0 || m.HeldCount() != 0 || m.IsHeld("a") {
				t.Errorf("%d sessions, %d holds", n, m.HeldCount())
			}
			lock.Release(bg)
			set, err := m.AcquireAll(bg, []string{"a", "b"}, ports.WithTimeout(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			set.Release(bg)
		})
	}
}

// A lock that is dropped while its set waits for another one must not count as
// held when the set is complete.
func TestASetThatLostALockWhileItWaitedIsNotedWithinTheWindow(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool(), ordered()), manager(t, server.Pool(), ordered())
		lock := acquire(t, holder, "b")
		dropped := time.Now().Add(2200 * time.Millisecond)
		time.AfterFunc(time.Until(dropped), func() { server.DropLocks(server.Holders('a')[0].PID) })
		time.AfterFunc(4*window, func() { lock.Release(bg) })
		set, err := m.AcquireAll(bg, []string{"a", "b"}, ports.WithTimeout(time.Hour))
		if d := time.Since(dropped); d > window {
			t.Errorf("a lock was gone for %v before its set came to an end: %v", d, err)
		}
		if err == nil {
			set.Release(bg)
		}
	})
}

func TestASetInTheMiddleEndsWithItsManager(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, pool := manager(t, server.Pool(), ordered()), server.Pool()
		m := pglock.NewManager(pool, ordered(), pglock.WithoutVerification())
		lock := acquire(t, holder, "b")
		done := make(chan error, 1)
		go func() {
			_, err := m.AcquireAll(bg, []string{"a", "b"})
			done <- err
		}()
		time.Sleep(2200 * time.Millisecond)
		start := time.Now()
		if err := m.Close(bg); err != nil {
			t.Error(err)
		}
		wraps(t, <-done, ports.ErrClosed)
		if d := time.Since(start); d > slack {
			t.Errorf("it took %v", d)
		}
		if n, _ := pool.Usage(); n != 0 || server.Locks() != 1 {
			t.Errorf("%d sessions, %d locks", n, server.Locks())
		}
		lock.Release(bg)
		_, err := m.AcquireAll(bg, []string{"a", "b"})
		wraps(t, err, ports.ErrClosed)
	})
}

func TestASetMayBeReleasedByAnyOfItsKeys(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		keys := []string{"a", "b", "c"}
		for _, key := range keys {
			set, err := m.AcquireAll(bg, keys)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Release(bg, key); err != nil {
				t.Error(err)
			}
			wraps(t, set.Err(), ports.ErrReleased)
			if server.Locks() != 0 || m.HeldCount() != 0 {
				t.Errorf("%d locks, %d holds", server.Locks(), m.HeldCount())
			}
			wraps(t, m.Release(bg, key), ports.ErrNotHeld)
		}
		if _, err := m.AcquireAll(bg, keys); err != nil {
			t.Fatal(err)
		}
		if n, err := m.ReleaseAll(bg); n != 1 || err != nil || m.HeldCount() != 0 {
			t.Errorf("%d %v", n, err)
		}
	})
}

func TestASetIsNotReentrant(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(), ordered())
		lock := acquire(t, m, "b")
		_, err := m.AcquireAll(bg, []string{"a", "b"}, ports.WithTimeout(time.Second))
		wraps(t, err, ports.ErrNotAcquired)
		lock.Release(bg)
		set, err := m.AcquireAll(bg, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := m.TryAcquire(bg, "b"); ok || err != nil {
			t.Errorf("%v %v", ok, err)
		}
		set.Release(bg)
	})
}

func TestASetIsHeldForItsLeastTimeFromItsLastLock(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool(), ordered()), manager(t, server.Pool(), ordered())
		lock := acquire(t, holder, "b")
		time.AfterFunc(20*time.Second, func() { lock.Release(bg) })
		set, err := m.AcquireAll(bg, []string{"a", "b"}, ports.WithHoldAtLeast(30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		granted := time.Now()
		if err := set.Release(bg); err != nil {
			t.Error(err)
		}
		<-set.Done()
		if d := time.Since(granted); d < 30*time.Second {
			t.Errorf("held for %v of at least 30 s", d)
		}
	})
}

func TestTheTokensOfASetGrow(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(), ordered())
		var last ports.Token
		for range 3 {
			set, err := m.AcquireAll(bg, []string{"b", "a", "c"}, ports.WithFencing())
			if err != nil {
				t.Fatal(err)
			}
			if set.Info().Token != set.Infos()[0].Token {
				t.Errorf("%+v and %+v", set.Info(), set.Infos())
			}
			for _, info := range set.Infos() {
				if info.Token <= last {
					t.Errorf("%+v after token %d", info, last)
				}
				last = info.Token
			}
			set.Release(bg)
		}
		set, err := m.AcquireAll(bg, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range set.Infos() {
			if info.Token != 0 {
				t.Errorf("a token that nobody asked for: %+v", info)
			}
		}
		set.Release(bg)
	})
}

// A statement that was sent for a waiter with a token may be granted to one that
// has asked for none.
func TestATokenIsGivenOnlyToThoseWhoAskForIt(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		holder, m := manager(t, server.Pool()), manager(t, server.Pool())
		lock := acquire(t, holder, "k")
		ctx, cancel := context.WithCancel(bg)
		go m.Acquire(ctx, "k", ports.WithFencing())
		time.Sleep(1100 * time.Millisecond) // in the middle of a slice
		got := make(chan ports.Lock, 1)
		go func() { got <- acquire(t, m, "k") }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		lock.Release(bg)
		plain := <-got
		if token := plain.Info().Token; token != 0 {
			t.Errorf("token %d", token)
		}
		plain.Release(bg)

		// And the other way round: whoever asks for one gets one.
		lock = acquire(t, holder, "k")
		ctx, cancel = context.WithCancel(bg)
		go m.Acquire(ctx, "k")
		time.Sleep(1100 * time.Millisecond)
		go func() { got <- acquire(t, m, "k", ports.WithFencing()) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		lock.Release(bg)
		fenced := <-got
		if fenced.Info().Token == 0 {
			t.Error("no token")
		}
		fenced.Release(bg)
	})
}

func TestSharedSetsLieBesideEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m, other := manager(t, server.Pool()), manager(t, server.Pool())
		var sets []*pglock.LockSet
		for _, m := range []*pglock.Manager{m, m, other} {
			set, err := m.AcquireAll(bg, []string{"a", "b"}, ports.WithShared(), ports.WithTimeout(0))
			if err != nil {
				t.Fatal(err)
			}
			sets = append(sets, set)
		}
		if _, err := other.AcquireAll(bg, []string{"b", "c"}, ports.WithTimeout(0)); !errors.Is(err, ports.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
		for _, set := range sets {
			set.Release(bg)
		}
	})
}

func TestASetLendsItsSession(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		set, err := manager(t, server.Pool()).AcquireAll(bg, []string{"a", "b"})
		if err != nil {
			t.Fatal(err)
		}
		err = set.LendSession(bg, func(s ports.Session) bool {
			pid, err := s.Check(bg, true)
			if err != nil || pid != set.Info().PID {
				t.Errorf("%d %v", pid, err)
			}
			return false
		})
		if err != nil || set.Err() != nil {
			t.Errorf("%v %v", err, set.Err())
		}
		set.Release(bg)
	})
}

func TestASetNeedsOneSessionAndWaitsForItLikeAnybody(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool(memlock.WithLimit(2)), ordered())
		set, err := m.AcquireAll(bg, []string{"a", "b", "c"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.AcquireAll(bg, []string{"d", "e"}, ports.WithTimeout(time.Second))
		wraps(t, err, ports.ErrPoolExhausted, context.DeadlineExceeded)
		time.AfterFunc(time.Second, func() { set.Release(bg) })
		next, err := m.AcquireAll(bg, []string{"d", "a"}, ports.WithTimeout(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		next.Release(bg)
	})
}

// A call that has no session yet is no reason for a set behind it to fail, nor
// to wait: the set has one.
func TestASetDoesNotDependOnASessionThatAnotherCallNeeds(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		broken := errors.New("dial tcp: connection refused")
		connecting, fail := make(chan struct{}), make(chan struct{})
		pool := &pickyPool{Pool: server.Pool()}
		pool.open = func(context.Context) error {
			if pool.opened.Load() > 1 {
				return nil
			}
			close(connecting)
			<-fail
			return broken
		}
		m := pglock.NewManager(pool, ordered(), pglock.WithoutVerification())
		defer m.Close(bg)
		alone := make(chan error, 1)
		go func() { _, err := m.Acquire(bg, "b"); alone <- err }()
		<-connecting
		time.AfterFunc(time.Second, func() { close(fail) })
		set, err := m.AcquireAll(bg, []string{"a", "b"}, ports.WithTimeout(window))
		if err != nil {
			t.Fatal(err)
		}
		set.Release(bg)
		<-alone
	})
}

// A set has the only session there may be, and comes second for a key whose
// first waiter has none: neither could go on without the other.
func TestASetDoesNotWaitForTheSessionThatItHas(t *testing.T) {
	for name, fill := range map[string]func(*memlock.Server, *memlock.Pool) pglock.Option{
		"no session may be pinned": func(*memlock.Server, *memlock.Pool) pglock.Option { return pglock.WithMaxSessions(1) },
		"the pool is full":         func(_ *memlock.Server, p *memlock.Pool) pglock.Option { p.Open(bg); return pglock.WithMaxSessions(3) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, server *memlock.Server) {
				pool := server.Pool(memlock.WithLimit(2))
				m := pglock.NewManager(pool, ordered(), pglock.WithoutVerification(), fill(server, pool))
				defer m.Close(bg)
				holder := manager(t, server.Pool(), ordered())
				lock := acquire(t, holder, "b")
				sets := make(chan error, 3)
				take := func(keys ...string) {
					set, err := m.AcquireAll(bg, keys, ports.WithTimeout(time.Minute))
					if err == nil {
						err = set.Release(bg)
					}
					sets <- err
				}
				go take("a", "b", "c")
				time.Sleep(time.Second) // it has a, and waits for b
				go take("c")
				time.Sleep(time.Second) // it waits for a session
				lock.Release(bg)        // the first set goes on to c
				for range 2 {
					if err := <-sets; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// Many sets with keys in common, in any order, with bounded pools: everybody is
// served, whatever the interleaving.
func TestOverlappingSetsNeverDeadlock(t *testing.T) {
	rounds := 1500
	if testing.Short() {
		rounds = 150
	}
	start := time.Now()
	for round := range rounds {
		if time.Since(start) > 4*time.Second { // on a slow machine
			t.Logf("%d rounds", round)
			return
		}
		bubble(t, func(t *testing.T, server *memlock.Server) {
			r := rand.New(rand.NewPCG(uint64(round), 0))
			latency := time.Duration(1 + r.Int64N(int64(20*time.Millisecond)))
			server.Intercept(func(context.Context, memlock.Command) error {
				time.Sleep(1 + rand.N(latency))
				return nil
			})
			managers := []*pglock.Manager{
				manager(t, server.Pool(memlock.WithLimit(2)), ordered()),
				manager(t, server.Pool(memlock.WithLimit(4)), ordered()),
				manager(t, server.Pool(), ordered()),
			}
			var wg sync.WaitGroup
			for i := range 6 {
				keys := []string{"a", "b", "c", "d"}
				r.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
				keys = keys[:2+r.IntN(3)]
				opts := []ports.AcquireOption{ports.WithTimeout(time.Hour)}
				if r.IntN(4) == 0 {
					opts = append(opts, ports.WithPolling(time.Second))
				}
				if r.IntN(4) == 0 {
					opts = append(opts, ports.WithShared())
				}
				pause, hold := time.Duration(r.Int64N(int64(50*time.Millisecond))), time.Duration(r.Int64N(int64(50*time.Millisecond)))
				wg.Go(func() {
					time.Sleep(pause)
					set, err := managers[i%len(managers)].AcquireAll(bg, keys, opts...)
					if err != nil {
						t.Errorf("round %d, %v: %v", round, keys, err)
						return
					}
					time.Sleep(hold)
					if err := set.Release(bg); err != nil {
						t.Errorf("round %d, %v: %v", round, keys, err)
					}
				})
			}
			wg.Wait()
		})
		if t.Failed() {
			return
		}
	}
}

// Two sets in opposite orders, step by step: each interleaving of their
// statements is tried by delaying one of them.
func TestOppositeSetsInEveryInterleaving(t *testing.T) {
	for delays := range 3 * 3 * 3 * 3 {
		bubble(t, func(t *testing.T, server *memlock.Server) {
			server.Intercept(func(_ context.Context, c memlock.Command) error {
				if c.Op == "lock" && !c.Done && c.PID <= 2 && (c.ID == 'a' || c.ID == 'b') {
					step := delays
					for range 2*(c.PID-1) + int(c.ID-'a') {
						step /= 3
					}
					time.Sleep(time.Duration(step%3) * 10 * time.Millisecond)
				}
				return nil
			})
			var wg sync.WaitGroup
			for _, keys := range [][]string{{"a", "b"}, {"b", "a"}} {
				m := manager(t, server.Pool(), ordered())
				wg.Go(func() {
					set, err := m.AcquireAll(bg, keys, ports.WithTimeout(time.Minute))
					if err != nil {
						t.Error(fmt.Errorf("%v with delays %d: %w", keys, delays, err))
						return
					}
					time.Sleep(time.Millisecond)
					set.Release(bg)
				})
			}
			wg.Wait()
		})
	}
}
