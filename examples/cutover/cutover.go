package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

const (
	// DefaultLockTimeout is how long Execute waits for another cutover of the
	// same tenant. It may be longer than the pause, because nothing is paused
	// during that wait.
	DefaultLockTimeout = 500 * time.Millisecond

	// DefaultPauseBudget is how long the tenant's writes may stay paused.
	DefaultPauseBudget = 100 * time.Millisecond

	// rollbackPatience bounds a rollback, which outlives the budget and the
	// caller's context.
	rollbackPatience = 5 * time.Second
)

// State is how far the migration of a tenant has come.
type State string

const (
	BulkCopy      State = "bulk_copy"      // the target is being filled
	DualWrite     State = "dual_write"     // both stores get every event; ready for the cutover
	CutoverPaused State = "cutover_paused" // a cutover is at work, or has died at it
	Migrated      State = "migrated"       // the target is the only store
)

// Store is where a tenant's events go.
type Store string

const (
	Source Store = "source"
	Target Store = "target"
)

// ErrOvertaken says that another attempt has taken the tenant over, or that the
// attempt has ended already.
var ErrOvertaken = errors.New("the tenant is in the hands of another attempt")

// Tenants is what a cutover works on.
//
// Each change names the attempt that makes it, and every one but Pause must
// return ErrOvertaken and change nothing unless that attempt is the last one
// that paused the tenant. The lock alone cannot give that: an actor may go on
// for a moment after it has lost its lock, and must not undo then what its
// successor does. All changes are idempotent.
type Tenants interface {
	State(ctx context.Context, tenant string) (State, error)
	// Lag is how many events the target is behind.
	Lag(ctx context.Context, tenant string) (int, error)
	// Pause stops the tenant's writes. It takes over from an earlier attempt,
	// and returns ErrOvertaken unless the state is DualWrite or CutoverPaused.
	Pause(ctx context.Context, tenant, attempt string) error
	SetState(ctx context.Context, tenant, attempt string, state State) error
	SetRoute(ctx context.Context, tenant, attempt string, store Store) error
	// Resume lets writes in again and ends the attempt.
	Resume(ctx context.Context, tenant, attempt string) error
}

// Cutover moves tenants from the source store to the target. Locks and Tenants
// are required. It is safe for concurrent use, in any number of processes.
type Cutover struct {
	Locks   ports.DistributedLock
	Tenants Tenants
	// MaxLag is the greatest lag, in events, at which routing may be switched.
	MaxLag int
	// PauseBudget is DefaultPauseBudget if it is zero.
	PauseBudget time.Duration
	// LockTimeout is DefaultLockTimeout if it is zero.
	LockTimeout time.Duration
}

// Result is how a cutover went.
type Result struct {
	Success bool
	// Reason says why it did not succeed.
	Reason string
	// RolledBack says that the steps that were taken have been undone.
	RolledBack bool
	// Duration is how long writes were paused.
	Duration time.Duration
}

const heldElsewhere = "cutover lock is already held by another process"

var errBudgetSpent = errors.New("the pause budget is spent")

// lockKey names the lock of one tenant's cutover.
func lockKey(tenant string) string { return pglock.MigrationKey(tenant, "cutover") }

// Execute cuts tenant over to the target store, alone: other processes that try
// it meanwhile wait for a moment, and then report that. What goes wrong in an
// orderly way, contention first of all, is in the Result. An error means that
// the lock could not be asked for or given back, or that the rollback failed
// and somebody has to look.
func (c *Cutover) Execute(ctx context.Context, tenant string) (result Result, err error) {
	var failed error
	err = pglock.Do(ctx, c.Locks, lockKey(tenant), func(ctx context.Context) error {
		result, failed = c.underLock(ctx, tenant)
		return nil
	}, ports.WithTimeout(cmp.Or(c.LockTimeout, DefaultLockTimeout)))
	switch {
	case errors.Is(err, ports.ErrNotAcquired):
		return Result{Reason: heldElsewhere}, nil
	case errors.Is(err, ports.ErrLost):
		// Not news: either a step has seen it and the result says so, or all
		// steps were done before anybody else could take the tenant over.
		err = nil
	}
	return result, errors.Join(failed, err)
}

// underLock is the cutover itself. Its context ends when the lock is lost.
func (c *Cutover) underLock(ctx context.Context, tenant string) (Result, error) {
	// CutoverPaused is a good state to start from: whoever has left it is dead,
	// or else we would not have the lock.
	if reason, err := c.wrongState(ctx, tenant); err != nil || reason != "" {
		return Result{Reason: reason}, err
	}

	attempt := rand.Text()
	steps := []struct {
		name string
		do   func(ctx context.Context) error
	}{
		{"pause writes", func(ctx context.Context) error {
			return c.Tenants.Pause(ctx, tenant, attempt)
		}},
		{"check the lag", func(ctx context.Context) error {
			reason, err := c.lagging(ctx, tenant)
			if reason != "" {
				err = errors.New(reason)
			}
			return err
		}},
		{"mark the tenant as paused", func(ctx context.Context) error {
			return c.Tenants.SetState(ctx, tenant, attempt, CutoverPaused)
		}},
		{"switch routing", func(ctx context.Context) error {
			return c.Tenants.SetRoute(ctx, tenant, attempt, Target)
		}},
		{"mark the tenant as migrated", func(ctx context.Context) error {
			return c.Tenants.SetState(ctx, tenant, attempt, Migrated)
		}},
		// The last step, because nothing can be undone after it: writes go to
		// the target from here on.
		{"resume writes", func(ctx context.Context) error {
			return c.Tenants.Resume(ctx, tenant, attempt)
		}},
	}

	paused := time.Now()
	budgeted, cancel := context.WithTimeoutCause(ctx, cmp.Or(c.PauseBudget, DefaultPauseBudget), errBudgetSpent)
	defer cancel()
	for i, step := range steps {
		// With the budget spent or the lock lost, no further step is begun.
		err := context.Cause(budgeted)
		if err == nil {
			err = step.do(budgeted)
		}
		if err == nil {
			continue
		}
		if cause := context.Cause(budgeted); cause != nil {
			err = cause // tells more than the error of a cancelled step
		}
		result := Result{Reason: step.name + ": " + err.Error()}
		undone := c.rollBack(ctx, tenant, attempt)
		if i == 0 && errors.Is(undone, ErrOvertaken) {
			return result, nil // writes were not paused, so there was nothing to undo
		}
		result.RolledBack = undone == nil
		result.Duration = time.Since(paused)
		return result, undone
	}
	return Result{Success: true, Duration: time.Since(paused)}, nil
}

// rollBack undoes all steps, also those that an attempt before this one has
// left behind, in the reverse order. At the first that fails it stops: writes
// stay paused then, rather than going where nobody has checked.
func (c *Cutover) rollBack(ctx context.Context, tenant, attempt string) error {
	// The context has often ended, and that is why we are here.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
	defer cancel()
	err := c.Tenants.SetRoute(ctx, tenant, attempt, Source)
	if err == nil {
		err = c.Tenants.SetState(ctx, tenant, attempt, DualWrite)
	}
	if err == nil {
		err = c.Tenants.Resume(ctx, tenant, attempt)
	}
	if err != nil {
		return fmt.Errorf("roll back the cutover of %q: %w", tenant, err)
	}
	return nil
}

// Ready tells whether a cutover of tenant would have a chance now, and if not,
// why. It waits for nobody. The answer is a hint that may be out of date when
// it arrives: Execute looks again.
func (c *Cutover) Ready(ctx context.Context, tenant string) (ready bool, reason string) {
	// A shared lock sees a cutover at work as well as an exclusive one, and
	// does not see other probes.
	lock, free, err := c.Locks.TryAcquire(ctx, lockKey(tenant), ports.WithShared())
	if err != nil {
		return false, err.Error()
	}
	if !free {
		return false, heldElsewhere
	}
	// It was only to look: give it back at once.
	if err := lock.Release(ctx); err != nil {
		return false, err.Error()
	}
	for _, check := range []func(context.Context, string) (string, error){c.wrongState, c.lagging} {
		reason, err := check(ctx, tenant)
		if err != nil {
			return false, err.Error()
		}
		if reason != "" {
			return false, reason
		}
	}
	return true, "ready"
}

// wrongState says why the state of tenant does not allow a cutover; "" if it
// does.
func (c *Cutover) wrongState(ctx context.Context, tenant string) (reason string, err error) {
	state, err := c.Tenants.State(ctx, tenant)
	if err == nil && state != DualWrite && state != CutoverPaused {
		reason = fmt.Sprintf("wrong routing state: %s, want %s", state, DualWrite)
	}
	return reason, err
}

// lagging says why the lag of tenant does not allow a cutover; "" if it does.
func (c *Cutover) lagging(ctx context.Context, tenant string) (reason string, err error) {
	lag, err := c.Tenants.Lag(ctx, tenant)
	if err == nil && lag > c.MaxLag {
		reason = fmt.Sprintf("lag too large: the target is %d events behind, at most %d are allowed", lag, c.MaxLag)
	}
	return reason, err
}
