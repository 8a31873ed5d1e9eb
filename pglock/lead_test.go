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

// until returns work that leads until it is told to stop, and then takes a while.
func until(d *diary, name string, toStop time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		d.add("%s leads", name)
		<-ctx.Done()
		time.Sleep(toStop)
		d.add("%s has stopped", name)
		return ctx.Err()
	}
}

// elect runs an elector until the returned function is called, which returns what
// Run has returned.
func elect(e *pglock.Elector, fn func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(bg)
	result := make(chan error, 1)
	go func() { result <- e.Run(ctx, fn) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-result
	}
}

func TestLeadershipIsHandedOverAtTheEndOfTheContext(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		here, there := manager(t, server.Pool()), manager(t, server.Pool())
		a, b := pglock.NewElector(here, "leader"), pglock.NewElector(there, "leader")
		stopA := elect(a, until(&d, "a", time.Minute))
		stopB := elect(b, until(&d, "b", 0))
		d.want(t, "a leads")
		if !a.IsLeader() || b.IsLeader() {
			t.Errorf("a leads: %v, b leads: %v", a.IsLeader(), b.IsLeader())
		}
		for _, e := range []*pglock.Elector{a, b} {
			if err := e.Check(bg); err != nil {
				t.Errorf("leading and waiting in line are healthy, but: %v", err)
			}
		}
		if err := stopA(); err != nil { // takes a minute, in which nobody else leads
			t.Error(err)
		}
		d.want(t, "a has stopped", "b leads") // without a pause
		if a.IsLeader() || !b.IsLeader() || a.Check(bg) == nil {
			t.Errorf("a leads: %v, b leads: %v, a's check: %v", a.IsLeader(), b.IsLeader(), a.Check(bg))
		}
		if err := stopB(); err != nil {
			t.Error(err)
		}
		d.want(t, "b has stopped")
		if n := server.Locks(); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

func TestALostLeadershipGoesToTheNextAndIsSoughtAgain(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		report := pglock.WithErrorHandler(func(err error) { d.add("lost: %v", errors.Is(err, ports.ErrLost)) })
		here, there := manager(t, server.Pool()), manager(t, server.Pool())
		a, b := pglock.NewElector(here, "leader", report), pglock.NewElector(there, "leader")
		stopA := elect(a, until(&d, "a", 5*time.Second))
		stopB := elect(b, until(&d, "b", 0))
		server.Kill(here.Held()[0].PID)
		synctest.Wait()
		if a.IsLeader() || !b.IsLeader() {
			t.Errorf("after the loss, a leads: %v, b leads: %v", a.IsLeader(), b.IsLeader())
		}
		if err := a.Check(bg); !errors.Is(err, ports.ErrLost) || !strings.Contains(err.Error(), "has not stopped") {
			t.Errorf("the work of a goes on without the lock, but its check says %v", err)
		}
		time.Sleep(time.Minute) // a waits in line again
		d.want(t, "a leads", "b leads", "a has stopped", "lost: true")
		if err := a.Check(bg); err != nil {
			t.Error(err)
		}
		if err := stopB(); err != nil {
			t.Error(err)
		}
		d.want(t, "b has stopped", "a leads")
		if err := stopA(); err != nil {
			t.Error(err)
		}
	})
}

func TestChangesHasTheNewestState(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		m := manager(t, server.Pool())
		e := pglock.NewElector(m, "leader")
		var told []bool
		var wg sync.WaitGroup
		wg.Go(func() {
			for leads := range e.Changes() {
				told = append(told, leads)
			}
		})
		stop := elect(e, until(&d, "e", 5*time.Second))
		server.Kill(m.Held()[0].PID)
		synctest.Wait()
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if want := []bool{true, false, true, false}; !equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}

		slow := pglock.NewElector(m, "leader")
		stop = elect(slow, until(&d, "slow", 0))
		if err := stop(); err != nil {
			t.Error(err)
		}
		if leads, open := <-slow.Changes(); leads || !open {
			t.Errorf("a receiver that comes late gets %v, %v, want the newest state", leads, open)
		}
		if _, open := <-slow.Changes(); open {
			t.Error("the channel is not closed")
		}
	})
}

func equal(a, b []bool) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestFailuresInARowAreMetWithGrowingPauses(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		broken := errors.New("broken")
		var starts []time.Time
		var reported int
		e := pglock.NewElector(manager(t, server.Pool()), "leader", pglock.WithBackoff(time.Second, 10*time.Second),
			pglock.WithErrorHandler(func(err error) {
				if !errors.Is(err, broken) {
					t.Errorf("the handler got %v", err)
				}
				reported++
			}))
		err := e.Run(bg, func(context.Context) error {
			starts = append(starts, time.Now())
			if len(starts) == 7 {
				return nil // done
			}
			if len(starts) == 6 {
				time.Sleep(time.Hour) // a row of failures ends with a long leadership
			}
			return broken
		})
		if err != nil || reported != 6 {
			t.Errorf("Run returned %v after %d failures, want nil after 6", err, reported)
		}
		for i, longest := range []time.Duration{1, 2, 4, 8, 10, 3600 + 1} {
			longest *= time.Second
			shortest := longest / 2
			if i == 5 {
				shortest = time.Hour + time.Second/2
			}
			if d := starts[i+1].Sub(starts[i]); d < shortest || d > longest {
				t.Errorf("pause %d took %v, want between %v and %v", i, d, shortest, longest)
			}
		}
	})
}

func TestALeaderThatFailsLetsAnotherLead(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		a := pglock.NewElector(manager(t, server.Pool()), "leader")
		fail := make(chan error)
		stopA := elect(a, func(ctx context.Context) error { return <-fail })
		stopB := elect(pglock.NewElector(manager(t, server.Pool()), "leader"), until(&d, "b", 0))
		fail <- errors.New("broken")
		d.want(t, "b leads")
		if err := a.Check(bg); err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("in the pause after a failure, the check says %v", err)
		}
		time.Sleep(time.Hour)
		if err := a.Check(bg); err != nil {
			t.Errorf("waiting in line again, the check says %v", err)
		}
		for _, stop := range []func() error{stopA, stopB} {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestResignHandsOverAndCampaignsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		var cause error
		report := pglock.WithErrorHandler(func(err error) { d.add("error %v", err) })
		a := pglock.NewElector(manager(t, server.Pool()), "leader", report)
		b := pglock.NewElector(manager(t, server.Pool()), "leader")
		if err := a.Resign(bg); !errors.Is(err, ports.ErrNotHeld) {
			t.Errorf("a resignation before the election: %v", err)
		}
		stopA := elect(a, func(ctx context.Context) error {
			err := until(&d, "a", 3*time.Second)(ctx)
			cause = context.Cause(ctx)
			return err
		})
		stopB := elect(b, until(&d, "b", 0))

		impatient, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if err := a.Resign(impatient); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an impatient resignation: %v", err)
		}
		if err := a.Resign(bg); err != nil {
			t.Error(err)
		}
		if a.IsLeader() || !errors.Is(cause, pglock.ErrResigned) {
			t.Errorf("a leads: %v; the cause of its work's end was %v", a.IsLeader(), cause)
		}
		time.Sleep(time.Minute)
		d.want(t, "a leads", "a has stopped", "b leads")
		if err := b.Resign(bg); err != nil {
			t.Error(err)
		}
		d.want(t, "b has stopped", "a leads")
		for _, stop := range []func() error{stopA, stopB} {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAnElectorWhoseLocksFailSaysSoAndRecovers(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		e := pglock.NewElector(manager(t, server.Pool()), "leader")
		if e.Check(bg) == nil {
			t.Error("an elector that does not run is healthy")
		}
		refused := errors.New("connection refused")
		server.Intercept(func(context.Context, memlock.Command) error { return refused })
		stop := elect(e, until(&d, "e", 0))
		time.Sleep(10 * time.Minute) // whatever it does in this moment, it is no leader
		if err := e.Check(bg); !errors.Is(err, refused) {
			t.Errorf("the check says %v", err)
		}
		server.Intercept(nil)
		time.Sleep(pglock.DefaultMaxBackoff)
		d.want(t, "e leads")
		if err := e.Check(bg); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestACampaignMayTimeOut(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		var d diary
		rival := acquire(t, manager(t, server.Pool()), "leader")
		m := manager(t, server.Pool())
		e := pglock.NewElector(m, "leader", pglock.WithCampaign(ports.WithTimeout(0), ports.WithFencing()),
			pglock.WithErrorHandler(func(err error) { t.Errorf("contention is no error: %v", err) }))
		var token ports.Token
		stop := elect(e, func(ctx context.Context) error {
			lock, _ := pglock.FromContext(ctx)
			token = lock.Info().Token
			return until(&d, "e", 0)(ctx)
		})
		time.Sleep(time.Minute)
		if n := m.Stats().Contended; n < 30 || n > 240 {
			t.Errorf("%d tries in a minute", n)
		}
		if err := rival.Release(bg); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		d.want(t, "e leads")
		if err := stop(); err != nil || token == 0 {
			t.Error(err, token)
		}
	})
}

func TestLeadReturnsWhenThereIsNothingMoreToDo(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := manager(t, server.Pool())
		if err := pglock.Lead(bg, m, "leader", func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		if n := server.Locks(); n != 0 {
			t.Errorf("%d locks are left", n)
		}

		unfinished := errors.New("unfinished")
		ctx, cancel := context.WithCancel(bg)
		err := pglock.Lead(ctx, m, "leader", func(context.Context) error { cancel(); return unfinished })
		if !errors.Is(err, unfinished) {
			t.Errorf("got %v, want what the work returned at the end", err)
		}
		err = pglock.Lead(ctx, m, "leader", func(context.Context) error { t.Error("it leads"); return nil })
		if err != nil {
			t.Errorf("with a context that is over: %v", err)
		}

		e := pglock.NewElector(m, "leader")
		if err := e.Run(ctx, nil); err != nil {
			t.Error(err)
		}
		if err := e.Run(bg, nil); err == nil || !strings.Contains(err.Error(), "another") {
			t.Errorf("a second run says %v", err)
		}

		if err := pglock.Lead(bg, m, "leader", nil, pglock.WithCampaign(ports.WithShared())); !errors.Is(err, ports.ErrUnsupported) {
			t.Errorf("in shared mode: %v", err)
		}
		if err := m.Close(bg); err != nil {
			t.Fatal(err)
		}
		if err := pglock.Lead(bg, m, "leader", nil); !errors.Is(err, ports.ErrClosed) {
			t.Errorf("with a closed manager: %v", err)
		}
	})
}

func TestTheLockIsGivenBackIfALeaderPanics(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		e := pglock.NewElector(manager(t, server.Pool()), "leader")
		func() {
			defer func() {
				if recover() != "oh" {
					t.Error("the panic is gone")
				}
			}()
			_ = e.Run(bg, func(context.Context) error { panic("oh") })
		}()
		if n := server.Locks(); n != 0 || e.IsLeader() {
			t.Errorf("%d locks are left; leads: %v", n, e.IsLeader())
		}
	})
}

// However many take part and however often they give up, the work of two never
// overlaps.
func TestLeadersDoNotOverlap(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		ctx, cancel := context.WithCancel(bg)
		var leading, terms atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			m := manager(t, server.Pool())
			wg.Go(func() {
				err := pglock.Lead(ctx, m, "leader", func(ctx context.Context) error {
					if leading.Add(1) > 1 {
						t.Error("two lead")
					}
					terms.Add(1)
					defer leading.Add(-1)
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(rand.N(time.Minute)):
						return errors.New("tired")
					}
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Hour)
		cancel()
		wg.Wait()
		if n := terms.Load(); n < 10 {
			t.Errorf("%d terms", n)
		}
	})
}

func TestMisuseOfElectorsPanicsWithASentence(t *testing.T) {
	for what, misuse := range map[string]func(){
		"no locks":           func() { pglock.NewElector(nil, "k") },
		"a nil handler":      func() { pglock.WithErrorHandler(nil) },
		"a backoff of 0":     func() { pglock.WithBackoff(0, time.Second) },
		"bounds in disorder": func() { pglock.WithBackoff(2, 1) },
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
