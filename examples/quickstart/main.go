// Quickstart is a worker that wants to run one nightly job. Start as many
// replicas of it as you like: one runs the job, the others skip it, or wait for
// their turn with -wait.
//
//	DATABASE_URL=postgres://… go run ./examples/quickstart -name worker-1
//
// Each line on standard output is a time, the worker's name and what happened,
// so that the output of several workers can be merged by sorting it. A signal
// (SIGINT or SIGTERM) ends the wait or the job, and gives the lock back. The
// exit code is 0 if the job was done or skipped, and 1 if not.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

var (
	dsn   = flag.String("dsn", "", "address of the database (default $DATABASE_URL)")
	name  = flag.String("name", fmt.Sprintf("worker-%d", os.Getpid()), "name of this worker, without spaces")
	key   = flag.String("job", "nightly-report", "name of the job, which is the key of its lock")
	takes = flag.Duration("for", 2*time.Second, "how long the job takes")
	wait  = flag.Bool("wait", false, "wait for the lock instead of skipping the job")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	db, err := sql.Open("pgx", cmp.Or(*dsn, os.Getenv("DATABASE_URL")))
	if err != nil {
		return err
	}
	defer db.Close()
	locks := pgxlock.New(db, pglock.WithHolderID(*name))
	defer locks.Close(context.Background())

	ran := true
	if *wait {
		say("waiting")
		err = pglock.Do(ctx, locks, *key, job)
	} else {
		ran, err = pglock.TryDo(ctx, locks, *key, job)
	}
	switch {
	case errors.Is(err, ports.ErrLost):
		say("lost: someone else may be running it now")
	case err != nil && ctx.Err() != nil:
		say("cancelled")
	case err == nil && !ran:
		say("skipped: someone else is running it")
	}
	return err
}

// job is the work that only one worker may do at a time. Its context ends when
// the program is to stop, and also when the lock is lost: a job that stops then
// does not work on beside its successor.
func job(ctx context.Context) error {
	if lock, ok := pglock.FromContext(ctx); ok {
		say("running: the lock is held by server process %d", lock.Info().PID)
	}
	select {
	case <-time.After(*takes): // the work
		say("done")
		return nil
	case <-ctx.Done():
		say("stopping: %v", context.Cause(ctx))
		return context.Cause(ctx)
	}
}

// say reports what happens, with the time.
func say(format string, args ...any) {
	fmt.Println(time.Now().UTC().Format(time.RFC3339Nano), *name, fmt.Sprintf(format, args...))
}
