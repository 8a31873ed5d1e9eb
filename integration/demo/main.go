// Demo shows the life of one lock in a few seconds: several worker processes
// (examples/quickstart) want to run one nightly job, on a PostgreSQL server
// that the demo starts. One of them gets it, and is killed; another takes over;
// a waiting one is told to stop; the rest hand over in order.
//
//	go run ./demo          (in the directory integration)
//
// It checks from outside that no two of them ever had the lock at once: by
// what a connection of its own sees in pg_locks every few milliseconds, and by
// the times that the workers report. If they had, or if anything else did not
// go as told, it says so and exits with 1.
//
// HOLDFAST_PROVIDER and HOLDFAST_DSN choose the server; see package postgres.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/integration/postgres"
)

// patience is how long the demo waits for what has to happen next.
const patience = 15 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo: FAILED:", err)
		os.Exit(1)
	}
}

// run starts what the demo needs, plays it, and leaves nothing behind.
func run(ctx context.Context) (err error) {
	fmt.Println("Starting a PostgreSQL server and building the worker, examples/quickstart …")
	dir, err := os.MkdirTemp("", "holdfast-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	worker := filepath.Join(dir, "worker")
	if runtime.GOOS == "windows" {
		worker += ".exe"
	}
	built := make(chan error, 1)
	go func() {
		out, err := exec.CommandContext(ctx, "go", "build", "-o", worker, "github.com/holdfast-go/holdfast/examples/quickstart").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("build the worker: %w\n%s", err, out)
		}
		built <- err
	}()
	server, err := postgres.Start(ctx)
	if err := errors.Join(<-built, err); err != nil {
		if server != nil {
			server.Stop()
		}
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	fmt.Println(server.Describe())

	// A run on a server that others use must not meet another run.
	key := fmt.Sprintf("nightly-report/%d/%d", os.Getpid(), time.Now().UnixNano())
	t := newTimeline(os.Stdout)
	w, err := watch(ctx, server.DSN(), key, t)
	if err != nil {
		return err
	}
	d := &demo{worker: worker, dsn: server.DSN(), key: key, watcher: w, timeline: t, ends: make(map[string]error)}
	err = d.play(ctx)
	d.killAll()
	err = errors.Join(err, w.stop())
	t.close()
	if ctx.Err() != nil {
		return context.Cause(ctx) // whatever else went wrong, this is why
	}
	if err != nil {
		return errors.Join(err, d.exclusive())
	}
	return d.judge()
}

// play is the story. Every step waits for what has happened, not for a time.
func (d *demo) play(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*patience, errors.New("the demo takes too long"))
	defer cancel()

	d.timeline.chapter("Three replicas want to run one nightly job. Whoever comes too late skips it.")
	first := []string{"anna", "ben", "cleo"}
	for _, name := range first {
		if err := d.start(name, "-for=1m"); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "one runs the job and two skip it", func() bool {
		return d.count("running", first...) == 1 && d.watcher.holds(d.last("running")) &&
			d.count("skipped", first...) == 2 && d.ended(first...) == 2
	}); err != nil {
		return err
	}
	holder := d.last("running")

	d.timeline.chapter("Four more replicas come, and wait for their turn instead.")
	rest := []string{"dora", "emil", "finn", "gina"}
	for _, name := range rest {
		if err := d.start(name, "-wait", "-for=1s"); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "four wait at the server", func() bool {
		return d.count("waiting", rest...) == 4 && d.watcher.waiting() == 4
	}); err != nil {
		return err
	}
	d.timeline.add(event{at: time.Now(), who: "server", what: "seen", text: "pg_locks: held by " + holder + ", four are waiting"})

	d.timeline.chapter("The holder crashes (kill -9). Nobody cleans up; the server notices.")
	if err := d.kill(holder); err != nil {
		return err
	}
	if err := d.await(ctx, "a waiting worker takes over", func() bool {
		return d.count("running", rest...) == 1 && d.watcher.holds(d.last("running"))
	}); err != nil {
		return err
	}

	left := d.without(rest, "running")
	d.timeline.chapter("A waiting worker is told to stop (SIGTERM). It gives up at once, and nobody else is disturbed.")
	if err := d.terminate(left[0]); err != nil {
		return err
	}
	if err := d.await(ctx, left[0]+" gives up", func() bool { return d.count("cancelled", left[0]) == 1 }); err != nil {
		return err
	}

	d.timeline.chapter("The holder finishes, and the next one gets the lock. That one is told to stop in the middle of its job.")
	if err := d.await(ctx, "the next one runs the job", func() bool {
		return d.count("running", left[1:]...) == 1 && d.watcher.holds(d.last("running"))
	}); err != nil {
		return err
	}
	if err := d.terminate(d.last("running")); err != nil {
		return err
	}
	return d.await(ctx, "the last one runs the job, all workers end, and the lock is free", func() bool {
		return d.ended(first...)+d.ended(rest...) == len(first)+len(rest) && d.watcher.free()
	})
}

// exclusive returns an error if two workers had the lock at once.
func (d *demo) exclusive() error {
	return errors.Join(append(replay(d.timeline.sorted()).overlaps, d.watcher.summary().violations...)...)
}

// judge checks that everything went as told, and prints the summary.
func (d *demo) judge() error {
	h := replay(d.timeline.sorted())
	seen := d.watcher.summary()
	errs := []error{d.exclusive()}
	for name, end := range d.ends {
		var exit *exec.ExitError
		last := h.last[name]
		switch {
		case (last == "done" || last == "skipped") && end == nil:
		case last == "cancelled" && errors.As(end, &exit) && exit.ExitCode() == 1:
		case last == "killed" && end != nil:
		default:
			errs = append(errs, fmt.Errorf("%s ended after %q with %v", name, last, end))
		}
	}
	if len(h.holders) != 4 || len(h.handovers) != 3 {
		errs = append(errs, fmt.Errorf("%d workers ran the job and %d handed it over, want 4 and 3", len(h.holders), len(h.handovers)))
	}
	for _, name := range h.holders {
		if !seen.holders[name] {
			errs = append(errs, fmt.Errorf("%s ran the job, but was never seen in pg_locks", name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}

	fmt.Println("\nSummary")
	for _, h := range h.handovers {
		fmt.Printf("  %-8s got the lock %9v after %s\n", h.to, h.took.Round(10*time.Microsecond), h.cause)
	}
	fmt.Printf("  %d of 7 workers ran the job, 2 skipped it, 1 was stopped while it waited.\n", len(h.holders))
	fmt.Printf("  Never two at once: not in %d looks at pg_locks, not by the workers' own times.\n", seen.looks)
	fmt.Println("PASS")
	return nil
}
