package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// Every replica of a service has this code; one of them runs the scheduler at a
// time, until it is shut down.
func ExampleLead() {
	ctx, shutdown := context.WithCancel(context.Background())
	locks := memlock.New(memlock.NewServer()) // in production pgxlock.New(db)
	defer locks.Close(context.Background())

	err := pglock.Lead(ctx, locks, "scheduler", func(ctx context.Context) error {
		fmt.Println("leading")
		shutdown() // in production a signal
		<-ctx.Done()
		fmt.Println("stopped")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// leading
	// stopped
	// <nil>
}

// An Elector is Lead with a handle, for the rest of the service to ask.
func ExampleElector() {
	ctx, shutdown := context.WithCancel(context.Background())
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(context.Background())

	elector := pglock.NewElector(locks, "scheduler")
	err := elector.Run(ctx, func(ctx context.Context) error {
		fmt.Println("leader:", elector.IsLeader())
		shutdown()
		return ctx.Err()
	})
	fmt.Println("leader:", elector.IsLeader(), err)
	// Output:
	// leader: true
	// leader: false <nil>
}

func ExampleNewElector() {
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(context.Background())

	elector := pglock.NewElector(locks, "scheduler", pglock.WithBackoff(time.Second, time.Minute))
	fmt.Println(elector.IsLeader()) // before Run
	// Output:
	// false
}

// Work that is done once and for all ends the run.
func ExampleElector_Run() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	elector := pglock.NewElector(locks, "import the archive")
	fmt.Println(elector.Run(ctx, func(context.Context) error {
		fmt.Println("imported")
		return nil
	}))
	// Output:
	// imported
	// <nil>
}

// Only the leader accepts writes.
func ExampleElector_IsLeader() {
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(context.Background())
	elector := pglock.NewElector(locks, "writer")

	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !elector.IsLeader() {
			http.Error(w, "not the leader", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "written")
	})
	_ = handler
}

// A gauge follows the leadership.
func ExampleElector_Changes() {
	ctx, shutdown := context.WithCancel(context.Background())
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(context.Background())

	elector := pglock.NewElector(locks, "scheduler")
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		for leads := range elector.Changes() {
			fmt.Println("leads:", leads)
			if leads {
				shutdown()
			}
		}
	}()
	err := elector.Run(ctx, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	<-seen
	fmt.Println(err)
	// Output:
	// leads: true
	// leads: false
	// <nil>
}

// An operator asks a replica to let another one lead.
func ExampleElector_Resign() {
	ctx, shutdown := context.WithCancel(context.Background())
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(context.Background())

	elector := pglock.NewElector(locks, "scheduler")
	leading, stopped := make(chan struct{}, 1), make(chan error)
	go func() {
		stopped <- elector.Run(ctx, func(ctx context.Context) error {
			leading <- struct{}{}
			<-ctx.Done()
			fmt.Println("resigned:", errors.Is(context.Cause(ctx), pglock.ErrResigned))
			return ctx.Err()
		})
	}()
	<-leading
	fmt.Println(elector.Resign(ctx), elector.IsLeader())
	shutdown()
	fmt.Println(<-stopped)
	// Output:
	// resigned: true
	// <nil> false
	// <nil>
}

// Work that ends because it was asked to cleans up; work whose lock is lost must
// not: someone else can lead already.
func ExampleErrResigned() {
	ctx, shutdown := context.WithCancel(context.Background())
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(context.Background())

	elector := pglock.NewElector(locks, "scheduler")
	leading, stopped := make(chan struct{}, 1), make(chan error)
	go func() {
		stopped <- elector.Run(ctx, func(ctx context.Context) error {
			leading <- struct{}{}
			<-ctx.Done()
			switch cause := context.Cause(ctx); {
			case errors.Is(cause, pglock.ErrResigned):
				fmt.Println("still the leader: hand over what is half done")
			case errors.Is(cause, ports.ErrLost):
				fmt.Println("overtaken: drop it")
			}
			return ctx.Err()
		})
	}()
	<-leading
	fmt.Println(elector.Resign(ctx))
	shutdown()
	fmt.Println(<-stopped)
	// Output:
	// still the leader: hand over what is half done
	// <nil>
	// <nil>
}

// A readiness probe of a replica, whether it leads or waits to.
func ExampleElector_Check() {
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(context.Background())
	elector := pglock.NewElector(locks, "scheduler")

	http.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := elector.Check(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	fmt.Println(elector.Check(context.Background()))
	// Output:
	// pglock: the elector for "scheduler" does not run
}

func ExampleLeadOption() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	options := []pglock.LeadOption{
		pglock.WithBackoff(time.Second, time.Minute),
		pglock.WithErrorHandler(func(err error) { fmt.Println("no longer leading:", err) }),
	}
	fmt.Println(pglock.Lead(ctx, locks, "scheduler", func(context.Context) error { return nil }, options...))
	// Output:
	// <nil>
}

// A job that may be retried at once, and then every five seconds.
func ExampleWithBackoff() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	attempt := 0
	err := pglock.Lead(ctx, locks, "scheduler", func(context.Context) error {
		if attempt++; attempt < 3 {
			return errors.New("not yet")
		}
		return nil
	}, pglock.WithBackoff(time.Millisecond, 5*time.Second))
	fmt.Println(err, "after", attempt, "attempts")
	// Output:
	// <nil> after 3 attempts
}

// Candidates that pin no connection while another leads, and a token with which
// the leader fences its writes.
func ExampleWithCampaign() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	err := pglock.Lead(ctx, locks, "scheduler", func(ctx context.Context) error {
		lock, _ := pglock.FromContext(ctx)
		fmt.Println("token:", lock.Info().Token > 0)
		return nil
	}, pglock.WithCampaign(ports.WithPolling(5*time.Second), ports.WithFencing()))
	fmt.Println(err)
	// Output:
	// token: true
	// <nil>
}

func ExampleWithErrorHandler() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	first := true
	err := pglock.Lead(ctx, locks, "scheduler", func(ctx context.Context) error {
		if !first {
			return nil
		}
		first = false
		lock, _ := pglock.FromContext(ctx)
		server.Kill(lock.Info().PID)
		<-ctx.Done()
		return context.Cause(ctx)
	}, pglock.WithBackoff(time.Millisecond, time.Second), pglock.WithErrorHandler(func(err error) {
		fmt.Println("lost:", errors.Is(err, ports.ErrLost))
	}))
	fmt.Println(err)
	// Output:
	// lost: true
	// <nil>
}
