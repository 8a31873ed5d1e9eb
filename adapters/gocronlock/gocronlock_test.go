package gocronlock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/holdfast-go/holdfast/adapters/gocronlock"
	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// replica starts a scheduler with one job that runs every second.
func replica(t *testing.T, job func(), opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(opts...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(gocron.DurationJob(time.Second), gocron.NewTask(job), gocron.WithName("report")); err != nil {
		t.Fatal(err)
	}
	s.Start()
	return s
}

func manager(t *testing.T, server *memlock.Server) *pglock.Manager {
	m := memlock.New(server)
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestEachRunTakesPlaceOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		var mu sync.Mutex
		runs := make(map[int64]int) // by the second
		began := time.Now()
		var schedulers []gocron.Scheduler
		for range 3 {
			// The clock of each is some milliseconds behind the one's before.
			time.Sleep(20 * time.Millisecond)
			schedulers = append(schedulers, replica(t, func() {
				mu.Lock()
				defer mu.Unlock()
				runs[int64(time.Since(began)/time.Second)]++
			}, gocron.WithDistributedLocker(gocronlock.NewLocker(manager(t, server), ports.WithHoldAtLeast(500*time.Millisecond)))))
		}
		time.Sleep(10*time.Second + 500*time.Millisecond - time.Since(began))
		for _, s := range schedulers {
			if err := s.Shutdown(); err != nil {
				t.Error(err)
			}
		}
		if len(runs) != 10 {
			t.Errorf("runs in %d seconds of 10: %v", len(runs), runs)
		}
		for second, n := range runs {
			if n != 1 {
				t.Errorf("%d runs in second %d", n, second)
			}
		}
		if n := server.Locks(); n != 0 {
			time.Sleep(time.Second)
			if n = server.Locks(); n != 0 {
				t.Errorf("%d locks are left", n)
			}
		}
	})
}

func TestALockThatAnotherHasIsNotAcquired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		here, there := gocronlock.NewLocker(manager(t, server)), gocronlock.NewLocker(manager(t, server))
		lock, err := here.Lock(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := there.Lock(t.Context(), "report"); !errors.Is(err, ports.ErrNotAcquired) || !errors.As(err, new(*ports.LockError)) {
			t.Errorf("the second lock: %v", err)
		}
		done, cancel := context.WithCancel(t.Context())
		cancel() // as gocron's context is when the scheduler has been stopped
		if err := lock.Unlock(done); err != nil {
			t.Error(err)
		}
		if n := server.Locks(); n != 0 {
			t.Errorf("%d locks are left", n)
		}
		closed := memlock.New(server)
		closed.Close(t.Context())
		if _, err := gocronlock.NewLocker(closed).Lock(t.Context(), "report"); !errors.Is(err, ports.ErrClosed) {
			t.Errorf("a closed manager: %v", err)
		}
	})
}

func TestTheLeaderRunsAllJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		ctx, stop := context.WithCancel(t.Context())
		var electors [2]*gocronlock.Elector
		var runs [2]atomic.Int32
		var ended sync.WaitGroup
		for i := range electors {
			electors[i] = gocronlock.NewElector(manager(t, server), "scheduler", pglock.WithBackoff(time.Second, time.Second))
			if err := electors[i].IsLeader(ctx); !errors.Is(err, gocronlock.ErrNotLeader) {
				t.Errorf("before it runs: %v", err)
			}
			ended.Go(func() {
				if err := electors[i].Run(ctx); err != nil {
					t.Errorf("elector %d: %v", i, err)
				}
			})
			synctest.Wait() // the first one leads
			s := replica(t, func() { runs[i].Add(1) }, gocron.WithDistributedElector(electors[i]))
			defer s.Shutdown()
		}
		time.Sleep(5500 * time.Millisecond)
		if a, b := runs[0].Load(), runs[1].Load(); a != 5 || b != 0 || electors[0].IsLeader(ctx) != nil {
			t.Errorf("%d runs of the leader, %d of the other; %v", a, b, electors[0].IsLeader(ctx))
		}
		server.Kill(server.Holders(pglock.SHA256Key("scheduler"))[0].PID)
		synctest.Wait()
		if !errors.Is(electors[0].IsLeader(ctx), gocronlock.ErrNotLeader) || electors[1].IsLeader(ctx) != nil {
			t.Errorf("after the loss: %v, %v", electors[0].IsLeader(ctx), electors[1].IsLeader(ctx))
		}
		time.Sleep(5 * time.Second)
		if a, b := runs[0].Load(), runs[1].Load(); a != 5 || b != 5 {
			t.Errorf("%d runs of the old leader, %d of the new one", a, b)
		}
		stop()
		ended.Wait()
		synctest.Wait() // a grant that came when nobody waited any more is given back
		if n := server.Locks(); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

func TestNilLocksPanic(t *testing.T) {
	for what, misuse := range map[string]func(){
		"NewLocker":  func() { gocronlock.NewLocker(nil) },
		"NewElector": func() { gocronlock.NewElector(nil, "k") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s accepts nil", what)
				}
			}()
			misuse()
		}()
	}
}
