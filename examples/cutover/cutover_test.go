package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// fake is a Tenants in memory. Tests are single-threaded where they touch it.
type fake struct {
	tenants map[string]*fakeTenant
	// begun has the changes that were asked for, in order, and changes those
	// that were made: "pause", "state migrated", ….
	begun, changes []string
	// before is called before the change of that name, and fails it.
	before map[string]func(ctx context.Context) error
}

type fakeTenant struct {
	state    State
	route    Store
	lag      int
	pausedBy string
}

func (f *fake) State(_ context.Context, tenant string) (State, error) {
	return f.tenants[tenant].state, nil
}

func (f *fake) Lag(ctx context.Context, tenant string) (int, error) {
	if hook := f.before["lag"]; hook != nil {
		if err := hook(ctx); err != nil {
			return 0, err
		}
	}
	return f.tenants[tenant].lag, nil
}

func (f *fake) Pause(ctx context.Context, tenant, attempt string) error {
	return f.change(ctx, tenant, "pause", func(t *fakeTenant) bool {
		if t.state != DualWrite && t.state != CutoverPaused {
			return false
		}
		t.pausedBy = attempt
		return true
	})
}

func (f *fake) SetState(ctx context.Context, tenant, attempt string, state State) error {
	return f.change(ctx, tenant, "state "+string(state), func(t *fakeTenant) bool {
		if t.pausedBy != attempt {
			return false
		}
		t.state = state
		return true
	})
}

func (f *fake) SetRoute(ctx context.Context, tenant, attempt string, store Store) error {
	return f.change(ctx, tenant, "route "+string(store), func(t *fakeTenant) bool {
		if t.pausedBy != attempt {
			return false
		}
		t.route = store
		return true
	})
}

func (f *fake) Resume(ctx context.Context, tenant, attempt string) error {
	return f.change(ctx, tenant, "resume", func(t *fakeTenant) bool {
		if t.pausedBy != attempt {
			return false
		}
		t.pausedBy = ""
		return true
	})
}

func (f *fake) change(ctx context.Context, tenant, name string, apply func(*fakeTenant) bool) error {
	f.begun = append(f.begun, name)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if hook := f.before[name]; hook != nil {
		if err := hook(ctx); err != nil {
			return err
		}
	}
	if !apply(f.tenants[tenant]) {
		return ErrOvertaken
	}
	f.changes = append(f.changes, name)
	return nil
}

// world is a lock server with tenants that are ready for a cutover.
type world struct {
	*fake
	server *memlock.Server
}

func newWorld() *world {
	return &world{
		server: memlock.NewServer(),
		fake: &fake{
			tenants: map[string]*fakeTenant{
				"a": {state: DualWrite, route: Source, lag: 3},
				"b": {state: DualWrite, route: Source, lag: 3},
			},
			before: make(map[string]func(context.Context) error),
		},
	}
}

// instance is one more process with its own lock manager.
func (w *world) instance(t *testing.T) (*Cutover, *pglock.Manager) {
	locks := memlock.New(w.server)
	t.Cleanup(func() { check(t, locks.Close(context.Background())) })
	return &Cutover{Locks: locks, Tenants: w.fake, MaxLag: 10}, locks
}

// holders are the server processes that hold the lock of tenant.
func (w *world) holders(tenant string) (pids []int) {
	for _, h := range w.server.Holders(pglock.SHA256Key("cutover:" + tenant)) {
		pids = append(pids, h.PID)
	}
	return pids
}

// kill ends the session that holds the lock of tenant, and waits until the
// holder has been told.
func (w *world) kill(t *testing.T, tenant string) {
	t.Helper()
	if pids := w.holders(tenant); len(pids) != 1 || !w.server.Kill(pids[0]) {
		t.Errorf("the lock of %q has the holders %v, want one to kill", tenant, pids)
	}
	synctest.Wait()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// wantTenant checks where a tenant's events go, and that they do.
func (w *world) wantTenant(t *testing.T, tenant string, state State, route Store) {
	t.Helper()
	got := w.tenants[tenant]
	if got.state != state || got.route != route || got.pausedBy != "" {
		t.Errorf("tenant %q is in state %s, with route %s, paused by %q; want %s, %s, not paused",
			tenant, got.state, got.route, got.pausedBy, state, route)
	}
	if pids := w.holders(tenant); len(pids) != 0 {
		t.Errorf("the lock of %q is still held by %v", tenant, pids)
	}
}

func wantChanges(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("changes: %q\nwant:    %q", got, want)
	}
}

func TestCutoverSwitchesUnderTheLockOfItsTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		w.before["route target"] = func(context.Context) error {
			if a, b := w.holders("a"), w.holders("b"); len(a) != 1 || len(b) != 0 {
				t.Errorf("holders during the switch: %v of a, %v of b; want one of a, none of b", a, b)
			}
			time.Sleep(20 * time.Millisecond)
			return nil
		}
		result, err := c.Execute(t.Context(), "a")
		check(t, err)
		if want := (Result{Success: true, Duration: 20 * time.Millisecond}); result != want {
			t.Errorf("got %+v, want %+v", result, want)
		}
		wantChanges(t, w.changes, "pause", "state cutover_paused", "route target", "state migrated", "resume")
		w.wantTenant(t, "a", Migrated, Target)
	})
}

func TestContentionIsAResultAfterABoundedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		_, elsewhere := w.instance(t)
		_, err := elsewhere.Acquire(t.Context(), pglock.MigrationKey("a", "cutover"))
		check(t, err)

		start := time.Now()
		result, err := c.Execute(t.Context(), "a")
		check(t, err)
		if want := (Result{Reason: "cutover lock is already held by another process"}); result != want {
			t.Errorf("got %+v, want %+v", result, want)
		}
		if waited := time.Since(start); waited < 500*time.Millisecond || waited > 510*time.Millisecond {
			t.Errorf("waited %v, want 500ms", waited)
		}
		wantChanges(t, w.changes)
	})
}

func TestCutoverWaitsForACompetitorThatIsNearlyDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		_, elsewhere := w.instance(t)
		lock, err := elsewhere.Acquire(t.Context(), "cutover:a")
		check(t, err)
		time.AfterFunc(400*time.Millisecond, func() { check(t, lock.Release(context.Background())) })

		result, err := c.Execute(t.Context(), "a")
		check(t, err)
		// The wait for the lock does not count: nothing was paused.
		if want := (Result{Success: true}); result != want {
			t.Errorf("got %+v, want %+v", result, want)
		}
	})
}

func TestTwoTenantsDoNotExcludeEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		other, _ := w.instance(t)
		nested := false
		w.before["route target"] = func(context.Context) error {
			if nested {
				return nil
			}
			nested = true
			result, err := other.Execute(t.Context(), "b")
			check(t, err)
			if !result.Success {
				t.Errorf("tenant b, while a is under way: %+v", result)
			}
			return nil
		}
		result, err := c.Execute(t.Context(), "a")
		check(t, err)
		if !result.Success {
			t.Errorf("tenant a: %+v", result)
		}
		w.wantTenant(t, "a", Migrated, Target)
		w.wantTenant(t, "b", Migrated, Target)
	})
}

func TestAFailedStepIsRolledBackInReverseOrder(t *testing.T) {
	undo := []string{"route source", "state dual_write", "resume"}
	for step, done := range map[string][]string{
		"lag":                  {"pause"},
		"state cutover_paused": {"pause"},
		"route target":         {"pause", "state cutover_paused"},
		"state migrated":       {"pause", "state cutover_paused", "route target"},
	} {
		t.Run(step, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				c, _ := w.instance(t)
				w.before[step] = func(context.Context) error {
					time.Sleep(time.Millisecond)
					return errors.New("disk full")
				}
				result, err := c.Execute(t.Context(), "a")
				check(t, err)
				if result.Success || !result.RolledBack || !strings.HasSuffix(result.Reason, ": disk full") || result.Duration != time.Millisecond {
					t.Errorf("got %+v, want rolled back because of a full disk after 1ms", result)
				}
				wantChanges(t, w.changes, append(done, undo...)...)
				w.wantTenant(t, "a", DualWrite, Source)
			})
		})
	}
}

func TestALagThatIsTooLargeIsRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		w.tenants["a"].lag = 11
		result, err := c.Execute(t.Context(), "a")
		check(t, err)
		want := Result{Reason: "check the lag: lag too large: the target is 11 events behind, at most 10 are allowed", RolledBack: true}
		if result != want {
			t.Errorf("got %+v, want %+v", result, want)
		}
		w.wantTenant(t, "a", DualWrite, Source)
	})
}

func TestASpentPauseBudgetIsRolledBack(t *testing.T) {
	for name, slow := range map[string]func(ctx context.Context) error{
		"by a step that stops when it is told": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
		"by a step that does not listen": func(context.Context) error {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait() // the budget ends in the same moment
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				c, _ := w.instance(t)
				w.before["route target"] = slow
				result, err := c.Execute(t.Context(), "a")
				check(t, err)
				if result.Success || !result.RolledBack || !strings.Contains(result.Reason, "the pause budget is spent") || result.Duration != DefaultPauseBudget {
					t.Errorf("got %+v, want rolled back after %v because of the budget", result, DefaultPauseBudget)
				}
				w.wantTenant(t, "a", DualWrite, Source)
			})
		})
	}
}

func TestLosingTheLockStopsAndRollsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, locks := w.instance(t)
		w.before["route target"] = func(context.Context) error {
			w.kill(t, "a")
			return nil
		}
		result, err := c.Execute(t.Context(), "a")
		check(t, err)
		if result.Success || !result.RolledBack || !strings.Contains(result.Reason, ports.ErrLost.Error()) {
			t.Errorf("got %+v, want rolled back because of a lost lock", result)
		}
		wantChanges(t, w.changes, "pause", "state cutover_paused", "route target", "route source", "state dual_write", "resume")
		wantChanges(t, w.begun, w.changes...) // no further step was tried
		w.wantTenant(t, "a", DualWrite, Source)
		if locks.IsHeld("cutover:a") {
			t.Error("the manager believes that it holds the lock")
		}
	})
}

func TestAnOvertakenActorUndoesNothingOfItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		successor, _ := w.instance(t)
		overtaken := false
		w.before["route target"] = func(context.Context) error {
			if overtaken {
				return nil
			}
			overtaken = true
			w.kill(t, "a")
			result, err := successor.Execute(t.Context(), "a")
			check(t, err)
			if !result.Success {
				t.Errorf("successor: %+v", result)
			}
			return nil
		}
		result, err := c.Execute(t.Context(), "a")
		if !errors.Is(err, ErrOvertaken) || result.Success || result.RolledBack {
			t.Errorf("got %+v and %v, want a failure with ErrOvertaken", result, err)
		}
		w.wantTenant(t, "a", Migrated, Target)
	})
}

func TestAnActorThatIsTooLateToPauseUndoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		w.before["pause"] = func(context.Context) error {
			w.tenants["a"].state, w.tenants["a"].route = Migrated, Target
			return nil
		}
		result, err := c.Execute(t.Context(), "a")
		check(t, err)
		if result.Success || result.RolledBack || !strings.HasPrefix(result.Reason, "pause writes: ") || result.Duration != 0 {
			t.Errorf("got %+v, want that writes could not be paused", result)
		}
		w.wantTenant(t, "a", Migrated, Target)
	})
}

func TestTheNextCutoverCleansUpAfterACrash(t *testing.T) {
	for name, lag := range map[string]int{"and succeeds": 0, "and fails by itself": 500} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				c, _ := w.instance(t)
				*w.tenants["a"] = fakeTenant{state: CutoverPaused, route: Target, lag: lag, pausedBy: "a dead process"}
				result, err := c.Execute(t.Context(), "a")
				check(t, err)
				if result.Success {
					w.wantTenant(t, "a", Migrated, Target)
				} else {
					w.wantTenant(t, "a", DualWrite, Source)
				}
				if wanted := lag == 0; result.Success != wanted {
					t.Errorf("got %+v, want success %v", result, wanted)
				}
			})
		})
	}
}

func TestACancelledCutoverIsRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		w.before["state migrated"] = func(context.Context) error {
			cancel(errors.New("the operator has changed their mind"))
			return nil
		}
		result, err := c.Execute(ctx, "a")
		check(t, err)
		if result.Success || !result.RolledBack || result.Reason != "resume writes: the operator has changed their mind" {
			t.Errorf("got %+v, want rolled back on the operator's behalf", result)
		}
		w.wantTenant(t, "a", DualWrite, Source)
	})
}

func TestAFailedRollbackLeavesWritesPausedAndIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		broken := errors.New("disk full")
		w.before["state migrated"] = func(context.Context) error { return broken }
		w.before["route source"] = func(context.Context) error { return broken }
		result, err := c.Execute(t.Context(), "a")
		if !errors.Is(err, broken) || result.Success || result.RolledBack {
			t.Errorf("got %+v and %v, want a failure that is not rolled back", result, err)
		}
		if got := w.tenants["a"]; got.pausedBy == "" || got.state != CutoverPaused {
			t.Errorf("the tenant is left as %+v, want it paused", got)
		}
		if pids := w.holders("a"); len(pids) != 0 {
			t.Errorf("the lock is still held by %v", pids)
		}
	})
}

func TestTheProbeSaysWhyNot(t *testing.T) {
	for name, test := range map[string]struct {
		state  State
		lag    int
		held   []ports.AcquireOption // nil if the lock is free
		ready  bool
		reason string
	}{
		"ready":           {state: DualWrite, lag: 10, ready: true, reason: "ready"},
		"beside a probe":  {state: DualWrite, held: []ports.AcquireOption{ports.WithShared()}, ready: true, reason: "ready"},
		"a cutover":       {state: DualWrite, held: []ports.AcquireOption{}, reason: "cutover lock is already held by another process"},
		"lag":             {state: DualWrite, lag: 11, reason: "lag too large: the target is 11 events behind, at most 10 are allowed"},
		"still copying":   {state: BulkCopy, reason: "wrong routing state: bulk_copy, want dual_write"},
		"migrated":        {state: Migrated, reason: "wrong routing state: migrated, want dual_write"},
		"crashed cutover": {state: CutoverPaused, ready: true, reason: "ready"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				c, locks := w.instance(t)
				_, elsewhere := w.instance(t)
				w.tenants["a"].state, w.tenants["a"].lag = test.state, test.lag
				if test.held != nil {
					_, err := elsewhere.Acquire(t.Context(), "cutover:a", test.held...)
					check(t, err)
				}
				before, start := w.holders("a"), time.Now()
				ready, reason := c.Ready(t.Context(), "a")
				if ready != test.ready || reason != test.reason {
					t.Errorf("got %v, %q; want %v, %q", ready, reason, test.ready, test.reason)
				}
				if waited := time.Since(start); waited != 0 {
					t.Errorf("the probe took %v", waited)
				}
				if after := w.holders("a"); !slices.Equal(before, after) || locks.HeldCount() != 0 {
					t.Errorf("holders were %v and are %v", before, after)
				}
				wantChanges(t, w.changes)
			})
		})
	}
}

func TestAnAnswerThatIsNotKnownIsNotContention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c, _ := w.instance(t)
		broken := errors.New("permission denied")
		w.server.Intercept(func(context.Context, memlock.Command) error { return broken })
		if result, err := c.Execute(t.Context(), "a"); !errors.Is(err, broken) || result != (Result{}) {
			t.Errorf("got %+v and %v, want only an error", result, err)
		}
		if ready, reason := c.Ready(t.Context(), "a"); ready || !strings.Contains(reason, broken.Error()) {
			t.Errorf("the probe says %v, %q; want the error as its reason", ready, reason)
		}
	})
}
