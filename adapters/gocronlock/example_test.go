package gocronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/holdfast-go/holdfast/adapters/gocronlock"
	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

var (
	ctx   = context.Background()
	locks = memlock.New(memlock.NewServer()) // a service has pgxlock.New(db)
)

// Each run of the job takes place on one of the replicas. The lock is held for
// longer than their clocks differ.
func ExampleNewLocker() {
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(
		gocronlock.NewLocker(locks, ports.WithHoldAtLeast(5*time.Second))))
	if err != nil {
		log.Fatal(err)
	}
	job, err := s.NewJob(gocron.DurationJob(time.Hour), gocron.NewTask(func() { fmt.Println("reporting") }), gocron.WithName("report"))
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	if err := job.RunNow(); err != nil {
		log.Fatal(err)
	}
	if err := s.Shutdown(); err != nil {
		log.Fatal(err)
	}
}

// One replica runs all jobs.
func ExampleNewElector() {
	ctx, stop := context.WithCancel(ctx)
	elector := gocronlock.NewElector(locks, "scheduler")
	led := make(chan error)
	go func() { led <- elector.Run(ctx) }()

	s, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	// ... until the service is to stop: first the jobs, then the leadership.
	if err := s.Shutdown(); err != nil {
		log.Fatal(err)
	}
	stop()
	fmt.Println(<-led)
	// Output:
	// <nil>
}

func ExampleElector() {
	elector := gocronlock.NewElector(locks, "elections", pglock.WithBackoff(time.Second, 10*time.Second))
	fmt.Println(errors.Is(elector.IsLeader(ctx), gocronlock.ErrNotLeader))
	// Output:
	// true
}

// Run ends with its context, and gives the lock back.
func ExampleElector_Run() {
	ctx, stop := context.WithCancel(ctx)
	elector := gocronlock.NewElector(locks, "runs")
	led := make(chan error)
	go func() { led <- elector.Run(ctx) }()
	fmt.Println("leads:", <-elector.Changes())
	stop()
	fmt.Println(<-led, locks.IsHeld("runs"))
	// Output:
	// leads: true
	// <nil> false
}

func ExampleElector_IsLeader() {
	elector := gocronlock.NewElector(locks, "leaders")
	fmt.Println(elector.IsLeader(ctx))
	// Output:
	// gocronlock: this replica does not lead
}
