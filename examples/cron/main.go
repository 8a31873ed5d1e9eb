// Cron runs a job at most once at a time across all replicas: each replica's
// scheduler starts it at the same minute, one of them does the work, and the
// others skip it. It shows the two kinds of lock that can do that, chosen by
// -lock, and where they differ.
//
//	DATABASE_URL=postgres://… go run ./examples/cron -lock=session
//	DATABASE_URL=postgres://… go run ./examples/cron -lock=tx
//
// Both take the same key to the same lock, so replicas of either kind exclude
// each other. Both are free again the moment the process or its connection
// dies. What neither does is remember: a replica whose clock is late, and that
// comes after a short job has ended, runs it once more. A scheduler that lives
// on can keep the lock past the job with ports.WithHoldAtLeast; this program
// ends with its job, so let the job write down for which night it ran, and look
// there first.
//
// The exit code is 0 if the job ran or was skipped, and 1 if not.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
)

var (
	dsn   = flag.String("dsn", "", "address of the database (default $DATABASE_URL)")
	kind  = flag.String("lock", "session", `kind of lock, "session" or "tx"`)
	key   = flag.String("job", "nightly-reconciliation", "name of the job, which is the key of its lock")
	takes = flag.Duration("for", time.Second, "how long the job takes")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cron:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	db, err := sql.Open("pgx", cmp.Or(*dsn, os.Getenv("DATABASE_URL")))
	if err != nil {
		return err
	}
	defer db.Close()

	var ran bool
	switch *kind {
	case "session":
		ran, err = inSession(ctx, db)
	case "tx":
		ran, err = inTransaction(ctx, db)
	default:
		return fmt.Errorf(`unknown kind of lock %q: want "session" or "tx"`, *kind)
	}
	switch {
	case err != nil:
		return err
	case ran:
		fmt.Println("done")
	default:
		fmt.Println("skipped: another replica is running it")
	}
	return nil
}

// inSession holds the lock on a connection of its own, which is idle meanwhile,
// and does the work on other connections of the pool. It is the choice for jobs
// that take long or consist of many transactions: nothing at the server is kept
// open for them. What it costs is a second connection; and, since the work and
// the lock can end separately, the job must stop when its context ends, which
// is how it hears that the lock is lost.
//
// A pooler in transaction mode breaks session locks.
func inSession(ctx context.Context, db *sql.DB) (ran bool, err error) {
	locks := pgxlock.New(db)
	defer locks.Close(context.Background())
	return pglock.TryDo(ctx, locks, *key, func(ctx context.Context) error {
		return reconcile(ctx, db)
	})
}

// inTransaction holds the lock in the transaction that does the work. It is the
// simpler choice for short jobs that are one transaction: no manager, one
// connection, any pooler; and a job whose lock is gone cannot commit, because
// its transaction is gone as well. In exchange the transaction is open for as
// long as the job takes: it holds back vacuum, and the server may end it by
// idle_in_transaction_session_timeout while the job does something else. All
// of the work must go through tx to be covered.
func inTransaction(ctx context.Context, db *sql.DB) (ran bool, err error) {
	return sqllock.TryDoTx(ctx, db, *key, func(ctx context.Context, tx *sql.Tx) error {
		return reconcile(ctx, tx)
	})
}

// queryer is a *sql.DB or a *sql.Tx.
type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// reconcile is the work: some of it on the database, some elsewhere.
func reconcile(ctx context.Context, q queryer) error {
	var database string
	if err := q.QueryRowContext(ctx, "SELECT current_database()").Scan(&database); err != nil {
		return err
	}
	fmt.Printf("running: %s, under a %s lock, on database %s\n", *key, *kind, database)
	select {
	case <-time.After(*takes):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
