package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
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

// diary writes down what an observer is told.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// take returns what was written since the last time.
func (d *diary) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := d.lines
	d.lines = nil
	return lines
}

func (d *diary) want(t *testing.T, lines ...string) {
	t.Helper()
	synctest.Wait()
	if got := d.take(); !slices.Equal(got, lines) {
		t.Errorf("the observer was told\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(lines, "\n  "))
	}
}

// observer tells the diary.
func (d *diary) observer() pglock.Observer {
	return pglock.Observer{
		Acquire: func(ctx context.Context, a pglock.AcquireStart) (context.Context, func(pglock.AcquireEnd)) {
			d.add("%s %s", a.Op, a.Key)
			return ctx, func(e pglock.AcquireEnd) {
				d.add("%s %s: acquired %v, contended %v, waited %v, error %v", a.Op, a.Key, e.Acquired, e.Contended, e.Waited, e.Err != nil)
			}
		},
		Release: func(_ context.Context, r pglock.ReleaseStart) func(error) {
			var keys []string
			for _, info := range r.Locks {
				keys = append(keys, info.Key)
			}
			d.add("release %s", strings.Join(keys, "+"))
			return func(err error) { d.add("release %s: lost %v", strings.Join(keys, "+"), errors.Is(err, ports.ErrLost)) }
		},
		HoldEnded: func(e pglock.HoldEnd) {
			d.add("hold of %s ended after %v: lost %v", e.Lock.Key, e.Duration, errors.Is(e.Cause, ports.ErrLost))
		},
		Lost:          func(lock ports.LockInfo, err error) { d.add("lost %s: %v", lock.Key, errors.Is(err, ports.ErrLost)) },
		SessionOpened: func() { d.add("session opened") },
		SessionClosed: func(e pglock.SessionEnd) { d.add("session closed: destroyed %v", e.Destroyed) },
	}
}

func TestAnObserverIsToldOfALifeOfALock(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		m := manager(t, server.Pool(), pglock.WithObserver(d.observer()))
		lock := acquire(t, m, "k")
		d.want(t, "acquire k", "session opened", "acquire k: acquired true, contended false, waited 0s, error false")

		_, acquired, err := m.TryAcquire(bg, "k")
		if acquired || err != nil {
			t.Fatal(acquired, err)
		}
		d.want(t, "try k", "try k: acquired false, contended true, waited 0s, error false")

		_, err = m.Acquire(bg, "k", ports.WithTimeout(3*time.Second))
		wraps(t, err, ports.ErrNotAcquired)
		d.want(t, "acquire k", "acquire k: acquired false, contended true, waited 3s, error true")

		ctx, cancel := context.WithCancel(bg)
		cancel()
		_, err = m.Acquire(ctx, "k")
		wraps(t, err, context.Canceled)
		d.want(t, "acquire k", "acquire k: acquired false, contended false, waited 0s, error true")

		if err := lock.Release(bg); err != nil {
			t.Fatal(err)
		}
		d.want(t, "hold of k ended after 3s: lost false", "release k", "session closed: destroyed false", "release k: lost false")
		if err := lock.Release(bg); err != nil {
			t.Fatal(err)
		}
		d.want(t) // the second release is none
	})
}

func TestAnObserverIsToldThatAGrantedLockWasContended(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		rival := acquire(t, manager(t, server.Pool()), "k")
		time.AfterFunc(7*time.Second, func() { _ = rival.Release(bg) })
		m := manager(t, server.Pool(), pglock.WithObserver(d.observer()))
		acquire(t, m, "k")
		d.want(t, "acquire k", "session opened", "acquire k: acquired true, contended true, waited 7s, error false")
	})
}

func TestAnObserverIsToldOfEachLossOnce(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		m := manager(t, server.Pool(), pglock.WithObserver(d.observer()))
		lock := acquire(t, m, "k")
		d.take()
		time.Sleep(time.Second)
		server.Kill(lock.Info().PID)
		d.want(t, "hold of k ended after 1s: lost true", "lost k: true", "session closed: destroyed true")
		wraps(t, lock.Release(bg), ports.ErrLost)
		d.want(t, "release k", "release k: lost true")

		lock = acquire(t, m, "k")
		d.take()
		server.DropLocks(lock.Info().PID) // only the release finds out
		wraps(t, lock.Release(bg), ports.ErrLost)
		d.want(t, "hold of k ended after 0s: lost false", "release k", "lost k: true", "session closed: destroyed true", "release k: lost true")
	})
}

func TestAnObserverIsToldOfEveryKeyOfASet(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		ids := func(key string) int64 { return int64(key[0]) }
		m := manager(t, server.Pool(), pglock.WithObserver(d.observer()), pglock.WithKeyFunc(ids))
		set, err := m.AcquireAll(bg, []string{"b", "a"})
		if err != nil {
			t.Fatal(err)
		}
		d.want(t,
			"acquire a", "session opened", "acquire a: acquired true, contended false, waited 0s, error false",
			"acquire b", "acquire b: acquired true, contended false, waited 0s, error false")
		if err := set.Release(bg); err != nil {
			t.Fatal(err)
		}
		d.want(t, "hold of a ended after 0s: lost false", "hold of b ended after 0s: lost false",
			"release a+b", "session closed: destroyed false", "release a+b: lost false")
	})
}

func TestAnObserverIsToldOfAReleaseThatWasPutOffWhenItComes(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		m := manager(t, server.Pool(), pglock.WithObserver(d.observer()))
		lock := acquire(t, m, "k", ports.WithHoldAtLeast(time.Minute))
		d.take()
		if err := lock.Release(bg); err != nil {
			t.Fatal(err)
		}
		d.want(t)
		time.Sleep(time.Minute)
		d.want(t, "hold of k ended after 1m0s: lost false", "release k", "session closed: destroyed false", "release k: lost false")
	})
}

func TestAnObserverIsToldOfTheSessionsOfAProof(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		m := manager(t, server.Pool(), pglock.WithObserver(d.observer()))
		if err := m.Verify(bg); err != nil {
			t.Fatal(err)
		}
		d.want(t, "session opened", "session opened", "session closed: destroyed false", "session closed: destroyed false")
	})
}

// contexts is a pool that keeps the context of the last lock command.
type contexts struct {
	*memlock.Pool
	last atomic.Value // of context.Context
}

type contextsSession struct {
	ports.Session
	pool *contexts
}

func (c *contexts) Open(ctx context.Context) (ports.Session, error) {
	s, err := c.Pool.Open(ctx)
	return contextsSession{s, c}, err
}

func (s contextsSession) Lock(ctx context.Context, r ports.LockRequest) (ports.Grant, error) {
	s.pool.last.Store(&ctx)
	return s.Session.Lock(ctx, r)
}

func TestObserversNestAndTheirContextReachesTheServersCommands(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		type key struct{ name string }
		var d diary
		named := func(name string) pglock.Observer {
			return pglock.Observer{
				Acquire: func(ctx context.Context, _ pglock.AcquireStart) (context.Context, func(pglock.AcquireEnd)) {
					d.add("start %s", name)
					return context.WithValue(ctx, key{name}, true), func(pglock.AcquireEnd) { d.add("end %s", name) }
				},
				Release: func(context.Context, pglock.ReleaseStart) func(error) {
					d.add("start %s", name)
					return func(error) { d.add("end %s", name) }
				},
			}
		}
		pool := &contexts{Pool: server.Pool()}
		ignorant := pglock.Observer{ // returns nothing that could be called
			Acquire: func(context.Context, pglock.AcquireStart) (context.Context, func(pglock.AcquireEnd)) { return nil, nil },
			Release: func(context.Context, pglock.ReleaseStart) func(error) { return nil },
		}
		m := pglock.NewManager(pool, pglock.WithoutVerification(), pglock.WithObserver(named("outer")),
			pglock.WithObserver(pglock.Observer{}), pglock.WithObserver(ignorant), pglock.WithObserver(named("inner")))
		lock := acquire(t, m, "k")
		d.want(t, "start outer", "start inner", "end inner", "end outer")
		if err := m.Close(bg); err != nil {
			t.Fatal(err)
		}
		d.want(t, "start outer", "start inner", "end inner", "end outer")
		for _, name := range []string{"outer", "inner"} {
			if ctx := *pool.last.Load().(*context.Context); ctx.Value(key{name}) == nil {
				t.Errorf("the context of the %s observer did not reach the session", name)
			}
		}
		wraps(t, lock.Err(), ports.ErrReleased)
	})
}

// Whatever happens, every grant has its end and every session its close, the
// counts are those of Stats, and no function is called under the manager's lock.
func TestWhatAnObserverIsToldAddsUp(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var m *pglock.Manager
		var granted, ended, lost, contended, opened, closed, destroyed atomic.Int64
		ask := func() { _, _ = m.Stats(), m.Held() } // blocks for ever under the lock
		m = pglock.NewManager(server.Pool(memlock.WithLimit(4)), pglock.WithObserver(pglock.Observer{
			Acquire: func(ctx context.Context, a pglock.AcquireStart) (context.Context, func(pglock.AcquireEnd)) {
				ask()
				return ctx, func(e pglock.AcquireEnd) {
					ask()
					if e.Acquired != (e.Lock.Key == a.Key) || e.Acquired && e.Lock.ID != a.ID {
						t.Errorf("start %+v and end %+v do not go together", a, e)
					}
					if e.Acquired {
						granted.Add(1)
					} else if e.Contended {
						contended.Add(1)
					}
				}
			},
			Release:       func(context.Context, pglock.ReleaseStart) func(error) { ask(); return func(error) { ask() } },
			HoldEnded:     func(pglock.HoldEnd) { ask(); ended.Add(1) },
			Lost:          func(ports.LockInfo, error) { ask(); lost.Add(1) },
			SessionOpened: func() { ask(); opened.Add(1) },
			SessionClosed: func(e pglock.SessionEnd) {
				ask()
				closed.Add(1)
				if e.Destroyed {
					destroyed.Add(1)
				}
			},
		}))
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				for range 30 {
					key := string('a' + rune(rand.N(3)))
					lock, err := m.Acquire(bg, key, ports.WithTimeout(rand.N(4*time.Second)))
					if err != nil {
						continue
					}
					time.Sleep(rand.N(2 * time.Second))
					switch rand.N(4) {
					case 0:
						server.Kill(lock.Info().PID)
					case 1:
						server.DropLocks(lock.Info().PID)
					}
					_ = lock.Release(bg)
				}
			})
		}
		wg.Wait()
		_ = m.Close(bg)
		stats := m.Stats()
		told := []int64{granted.Load(), granted.Load(), lost.Load(), contended.Load(), closed.Load(), destroyed.Load()}
		want := []int64{ended.Load(), int64(stats.Acquired), int64(stats.Lost), int64(stats.Contended), opened.Load(), int64(stats.Destroyed)}
		if !reflect.DeepEqual(told, want) {
			t.Errorf("told %v, want %v (grants twice, losses, refusals, sessions closed, destroyed)", told, want)
		}
		for i, n := range told {
			if n == 0 {
				t.Errorf("the test has seen none of kind %d", i)
			}
		}
	})
}

func TestALogAtLevelDebugTellsTheLifeOfALock(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var out bytes.Buffer
		var level slog.LevelVar
		handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: &level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case "time", "level", "id", "pid":
				return slog.Attr{}
			}
			return a
		}})
		m := manager(t, server.Pool(), pglock.WithLogger(slog.New(handler)), pglock.WithKeyRedaction(strings.ToUpper))
		use := func() {
			lock := acquire(t, m, "k")
			_, err := m.Acquire(bg, "k", ports.WithTimeout(3*time.Second))
			wraps(t, err, ports.ErrNotAcquired)
			if err := lock.Release(bg); err != nil {
				t.Fatal(err)
			}
		}
		use()
		if out.Len() != 0 {
			t.Errorf("at level info the log shows %q", out.String())
		}
		level.Set(slog.LevelDebug)
		use()
		want := `msg="lock acquired" key=K mode=exclusive waited=0s contended=false
msg="lock not acquired" key=K mode=exclusive waited=3s contended=true error="lock not acquired: someone else holds it: context deadline exceeded"
msg="lock ended" key=K held=3s cause="lock released"
`
		if out.String() != want {
			t.Errorf("the log shows\n%swant\n%s", out.String(), want)
		}
	})
}

func TestLogsShowRedactedKeys(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var out bytes.Buffer
		m := manager(t, server.Pool(), pglock.WithLogger(slog.New(slog.NewTextHandler(&out, nil))),
			pglock.WithKeyRedaction(func(key string) string { return key[:2] + "***" }))
		lock := acquire(t, m, "customer-secret")
		server.Kill(lock.Info().PID)
		<-lock.Done()
		synctest.Wait()
		if s := out.String(); strings.Contains(s, "secret") || !strings.Contains(s, "key=cu***") {
			t.Errorf("the log shows %q", s)
		}
	})
}
