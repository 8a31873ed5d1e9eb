// Cutover moves a tenant from one event store to another while several
// instances of the application serve traffic. The dangerous moment is the
// switch of its routing: writes are paused, the lag of the target is checked
// for the last time, routing is switched, writes are resumed; and all of that is
// rolled back if a step fails or the pause gets too long. It is correct only if
// one actor at a time does it for a tenant, so it runs under a lock per tenant.
//
// cutover.go is what an application would have. It depends on
// ports.DistributedLock, so that its tests run on an in-memory lock server. This
// file plays two instances of an application on a real database, in a schema
// that it makes and drops:
//
//	DATABASE_URL=postgres://… go run ./examples/cutover
//
// The exit code is 0 if the cutovers ended as they should, and 1 if something
// failed.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/pglock"
)

var dsn = flag.String("dsn", "", "address of the database (default $DATABASE_URL)")

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cutover:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	db, err := sql.Open("pgx", cmp.Or(*dsn, os.Getenv("DATABASE_URL")))
	if err != nil {
		return err
	}
	defer db.Close()

	// The schema's name also keeps the tenants of two runs apart.
	suffix := strings.ToLower(rand.Text()[:8])
	schema := "holdfast_cutover_" + suffix
	tenants, err := createTable(ctx, db, schema)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackPatience)
		defer cancel()
		_, dropped := db.ExecContext(ctx, `DROP SCHEMA `+schema+` CASCADE`)
		err = errors.Join(err, dropped)
	}()

	// Two instances of the application, as if they were two processes. The
	// budget leaves room for a slow machine; only one scene is to exceed it.
	here := pgxlock.New(db, pglock.WithHolderID("here"))
	defer here.Close(context.Background())
	elsewhere := pgxlock.New(db, pglock.WithHolderID("elsewhere"))
	defer elsewhere.Close(context.Background())
	cutover := &Cutover{Locks: here, Tenants: tenants, MaxLag: 10, PauseBudget: time.Second}

	// scene adds a tenant, asks whether it is ready, tries the cutover, and
	// prints the answers.
	scene := func(title, tenant string, state State, lag int) error {
		if err := tenants.add(ctx, tenant, state, lag); err != nil {
			return err
		}
		fmt.Printf("%s\n", title)
		_, reason := cutover.Ready(ctx, tenant)
		fmt.Printf("  probe:  %s\n", reason)
		result, err := cutover.Execute(ctx, tenant)
		if err != nil {
			return err
		}
		fmt.Printf("  result: success %v, rolled back %v, writes paused for %v\n", result.Success, result.RolledBack, result.Duration.Round(time.Microsecond))
		if !result.Success {
			fmt.Printf("  reason: %s\n", result.Reason)
		}
		now, err := tenants.describe(ctx, tenant)
		fmt.Printf("  now:    %s\n", now)
		return err
	}

	if err := scene("A tenant that is ready", "ready-"+suffix, DualWrite, 3); err != nil {
		return err
	}
	if err := scene("A tenant whose target is too far behind", "lagging-"+suffix, DualWrite, 500); err != nil {
		return err
	}
	if err := scene("A tenant that is still being copied", "copying-"+suffix, BulkCopy, 0); err != nil {
		return err
	}

	err = pglock.Do(ctx, elsewhere, lockKey("busy-"+suffix), func(ctx context.Context) error {
		if err := scene("A tenant that another instance is working on", "busy-"+suffix, DualWrite, 0); err != nil {
			return err
		}
		return scene("A second tenant meanwhile", "other-"+suffix, DualWrite, 0)
	})
	if err != nil {
		return err
	}

	cutover.Tenants = slowSwitch{tenants}
	cutover.PauseBudget = DefaultPauseBudget
	return scene("A tenant whose pause gets too long", "slow-"+suffix, DualWrite, 0)
}

// slowSwitch takes a second to switch routing to the target.
type slowSwitch struct{ Tenants }

func (s slowSwitch) SetRoute(ctx context.Context, tenant, attempt string, store Store) error {
	if store == Target {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return s.Tenants.SetRoute(ctx, tenant, attempt, store)
}
