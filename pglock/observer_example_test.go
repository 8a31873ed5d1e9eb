package pglock_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// An observer of one's own: what is out of the ordinary is written down.
func ExampleObserver() {
	ctx := context.Background()
	slow := pglock.Observer{
		Acquire: func(ctx context.Context, a pglock.AcquireStart) (context.Context, func(pglock.AcquireEnd)) {
			return ctx, func(e pglock.AcquireEnd) {
				if e.Waited >= time.Minute {
					fmt.Println(a.Key, "took", e.Waited)
				}
			}
		},
		HoldEnded: func(e pglock.HoldEnd) {
			if e.Duration < time.Minute {
				fmt.Println("a short hold of", e.Lock.Key)
			}
		},
	}
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(slow))
	defer locks.Close(ctx)

	if err := pglock.Do(ctx, locks, "invoices", func(context.Context) error { return nil }); err != nil {
		fmt.Println(err)
	}
	// Output:
	// a short hold of invoices
}

// Several observers are told, one option each.
func ExampleWithObserver() {
	ctx := context.Background()
	opened, closed := 0, 0
	locks := memlock.New(memlock.NewServer(),
		pglock.WithObserver(pglock.Observer{SessionOpened: func() { opened++ }}),
		pglock.WithObserver(pglock.Observer{SessionClosed: func(pglock.SessionEnd) { closed++ }}))

	if _, err := locks.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
	}
	if err := locks.Close(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println(opened, closed)
	// Output:
	// 1 1
}

// What is asked for is known before the wait.
func ExampleAcquireStart() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(pglock.Observer{
		Acquire: func(ctx context.Context, a pglock.AcquireStart) (context.Context, func(pglock.AcquireEnd)) {
			fmt.Printf("%s %s, %s, for at most %v\n", a.Op, a.Key, a.Options.Mode, a.Options.Timeout)
			return ctx, nil
		},
	}))
	defer locks.Close(ctx)

	if _, err := locks.Acquire(ctx, "catalogue", ports.WithShared(), ports.WithTimeout(time.Second)); err != nil {
		fmt.Println(err)
	}
	// Output:
	// acquire catalogue, shared, for at most 1s
}

// Contention is told apart from failure.
func ExampleAcquireEnd() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(pglock.Observer{
		Acquire: func(ctx context.Context, a pglock.AcquireStart) (context.Context, func(pglock.AcquireEnd)) {
			return ctx, func(e pglock.AcquireEnd) {
				fmt.Println("acquired:", e.Acquired, "contended:", e.Contended, "error:", e.Err)
			}
		},
	}))
	defer locks.Close(ctx)

	for range 2 {
		if _, _, err := locks.TryAcquire(ctx, "invoices"); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// acquired: true contended: false error: <nil>
	// acquired: false contended: true error: <nil>
}

// A set is released as one.
func ExampleReleaseStart() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(pglock.Observer{
		Release: func(_ context.Context, r pglock.ReleaseStart) func(error) {
			return func(err error) { fmt.Println(len(r.Locks), "locks released:", err) }
		},
	}))
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account 1", "account 2"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := set.Release(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 2 locks released: <nil>
}

func ExampleHoldEnd() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(pglock.Observer{
		HoldEnded: func(e pglock.HoldEnd) { fmt.Println(e.Lock.Key, "is no longer held:", e.Cause) },
	}))

	if _, err := locks.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
	}
	if err := locks.Close(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// invoices is no longer held: lock released
}

// A session that lost its lock does not go back to the pool.
func ExampleSessionEnd() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server, pglock.WithObserver(pglock.Observer{
		SessionClosed: func(e pglock.SessionEnd) { fmt.Println("destroyed:", e.Destroyed, "because:", e.Err) },
	}))
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	server.DropLocks(lock.Info().PID)
	_ = lock.Release(ctx) // which finds out
	// Output:
	// destroyed: true because: lock lost: its server session ended: the server no longer had the lock
}

// Keys that name customers stay out of the log.
func ExampleWithKeyRedaction() {
	ctx := context.Background()
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == "msg" || a.Key == "key" {
				return a
			}
			return slog.Attr{}
		},
	}))
	server := memlock.NewServer()
	locks := memlock.New(server, pglock.WithLogger(logger),
		pglock.WithKeyRedaction(func(string) string { return "(a customer)" }))
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "jane@example.com")
	if err != nil {
		fmt.Println(err)
		return
	}
	server.DropLocks(lock.Info().PID)
	_ = lock.Release(ctx)
	// Output:
	// msg="lock release failed" key="(a customer)"
	// msg="lock session ended"
}
