// Leader is one replica of a service of which one replica leads. Start any number
// of them: one works, the others wait. Interrupt the leader, or kill it, and the
// next one leads.
//
//	DATABASE_URL=postgres://… go run ./examples/leader -name=a
//	DATABASE_URL=postgres://… go run ./examples/leader -name=b
//
// In a rolling restart the old leader is told to stop (SIGTERM), finishes what it
// is at, gives the lock back, and exits; a replica that waits leads in that
// moment, without a pause and without an overlap. When a leader's session is
// ended instead, by a restart of the server or by an operator, it stops its work
// and waits in line again.
//
// With -listen the replica answers two questions over HTTP: /readyz, whether it is
// of use, be it as the leader or in line; and /leader, whether it leads, for a
// load balancer that should send writes to the leader only.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

var (
	dsn    = flag.String("dsn", "", "address of the database (default $DATABASE_URL)")
	key    = flag.String("key", "scheduler", "name of the leadership, which is the key of its lock")
	name   = flag.String("name", "", "name of the replica (default: the process ID)")
	every  = flag.Duration("every", time.Second, "how often the leader does a piece of work")
	takes  = flag.Duration("takes", 100*time.Millisecond, "how long a piece of work takes")
	listen = flag.String("listen", "", "address for /readyz and /leader (default: none)")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	db, err := sql.Open("pgx", cmp.Or(*dsn, os.Getenv("DATABASE_URL")))
	if err != nil {
		return err
	}
	defer db.Close()
	locks := pgxlock.New(db, pglock.WithHolderID(replica()))
	defer locks.Close(context.Background())

	elector := pglock.NewElector(locks, *key,
		pglock.WithCampaign(ports.WithFencing()),
		pglock.WithErrorHandler(func(err error) { say("campaigns again: %v", err) }))
	if *listen != "" {
		stop, err := serve(elector)
		if err != nil {
			return err
		}
		defer stop()
	}
	say("waits in line")
	if err := elector.Run(ctx, work); err != nil {
		return err
	}
	say("has handed over")
	return nil
}

// work is what the leader does until ctx ends: piece after piece, each of which
// is finished.
func work(ctx context.Context) error {
	lock, _ := pglock.FromContext(ctx)
	say("leads, with token %d, on server process %d", lock.Info().Token, lock.Info().PID)
	tick := time.NewTicker(*every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			time.Sleep(*takes)
		case <-ctx.Done():
			say("stops, because of: %v", context.Cause(ctx))
			return ctx.Err()
		}
	}
}

// serve answers probes until stop is called.
func serve(elector *pglock.Elector) (stop func(), err error) {
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return nil, err
	}
	say("listens on %s", listener.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", answer(elector.Check))
	mux.HandleFunc("/leader", answer(func(context.Context) error {
		if elector.IsLeader() {
			return nil
		}
		return errors.New("another replica leads")
	}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go server.Serve(listener)
	return func() { server.Close() }, nil
}

// answer is 200 if check returns nil, and 503 with its error if not.
func answer(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := check(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}
}

func replica() string { return cmp.Or(*name, fmt.Sprint(os.Getpid())) }

// say prints a line that begins with the name of the replica.
func say(format string, args ...any) {
	fmt.Printf(replica()+" "+format+"\n", args...)
}
