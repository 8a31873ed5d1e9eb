// Package gocronlock lets a gocron scheduler (github.com/go-co-op/gocron/v2) that
// runs in several processes run each job in one of them.
//
// There are two ways. With [NewLocker] the replicas compete for each run of each
// job, and share the work:
//
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(
//		gocronlock.NewLocker(locks, ports.WithHoldAtLeast(5*time.Second))))
//
// With [NewElector] one replica runs all jobs, until it stops or is lost:
//
//	elector := gocronlock.NewElector(locks, "scheduler")
//	go elector.Run(ctx)
//	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
//
// gocron asks before a run, and does not tell a job that its lock was lost
// meanwhile. A job that must know takes its lock itself, with pglock.TryDo.
package gocronlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-co-op/gocron/v2"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// NewLocker makes a gocron.Locker: a run takes place where the lock of the job's
// name could be had, and nobody waits for one. Give every job a name that is its
// own on all replicas (gocron.WithName): the default is the name of its function.
//
// Two replicas start one run at times that differ, by their clocks and by
// scheduling. With ports.WithHoldAtLeast among the options, for longer than that
// and shorter than the job's interval, a quick run does not take place twice. It
// panics if locks is nil.
func NewLocker(locks ports.DistributedLock, opts ...ports.AcquireOption) gocron.Locker {
	if locks == nil {
		panic("gocronlock.NewLocker: nil locks; give it a manager")
	}
	return locker{locks, opts}
}

type locker struct {
	locks ports.DistributedLock
	opts  []ports.AcquireOption
}

// Lock implements gocron.Locker. Its error wraps ports.ErrNotAcquired if another
// replica has the lock.
func (l locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	held, acquired, err := l.locks.TryAcquire(ctx, key, l.opts...)
	if err == nil && !acquired {
		err = &ports.LockError{Op: "try", Key: key, Err: ports.ErrNotAcquired}
	}
	if err != nil {
		return nil, err
	}
	return lock{held}, nil
}

type lock struct{ held ports.Lock }

// Unlock implements gocron.Lock.
func (l lock) Unlock(ctx context.Context) error { return l.held.Release(ctx) }

// ErrNotLeader is what Elector.IsLeader returns where another replica leads, or
// none.
var ErrNotLeader = errors.New("this replica does not lead")

// Elector is a gocron.Elector that holds a lock for as long as it leads. It has
// the methods of the pglock.Elector in it, but for its own Run and IsLeader.
type Elector struct{ *pglock.Elector }

var _ gocron.Elector = (*Elector)(nil)

// NewElector makes a candidate for the lock under key. It does nothing until Run,
// and runs once. It panics if locks is nil.
func NewElector(locks ports.DistributedLock, key string, opts ...pglock.LeadOption) *Elector {
	return &Elector{pglock.NewElector(locks, key, opts...)}
}

// Run campaigns and leads until ctx ends, and gives the lock back then; see
// pglock.Lead for what it returns. Stop the scheduler before ctx ends: the next
// leader may start a job at once.
func (e *Elector) Run(ctx context.Context) error {
	return e.Elector.Run(ctx, func(leading context.Context) error {
		<-leading.Done()
		return context.Cause(leading)
	})
}

// IsLeader implements gocron.Elector. It asks nobody: it tells a loss when that
// has been noticed.
func (e *Elector) IsLeader(context.Context) error {
	if !e.Elector.IsLeader() {
		return fmt.Errorf("gocronlock: %w", ErrNotLeader)
	}
	return nil
}
