// Swapdrivers takes a lock through the driver that -driver names, and prints
// who holds it. Only the function that opens the database knows the driver; the
// code that locks is the same for all, and so is the lock: run it twice, with
// two drivers, and the second run finds the lock held.
//
//	DATABASE_URL=postgres://… go run ./examples/swapdrivers -driver=pq
//	DATABASE_URL=postgres://… go run ./examples/swapdrivers -driver=pgxpool -for=1m
//
// The exit code is 0 if the lock was held, by this run or by someone else, and
// 1 if something failed.
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

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/pqlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

var (
	dsn    = flag.String("dsn", "", "address of the database (default $DATABASE_URL)")
	driver = flag.String("driver", "pgx", "driver to use: pq, pgx or pgxpool")
	key    = flag.String("key", "cache-warmer", "key of the lock")
	hold   = flag.Duration("for", time.Second, "how long to hold the lock")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	locks, closeAll, err := open(ctx, *driver, cmp.Or(*dsn, os.Getenv("DATABASE_URL")))
	if err == nil {
		err = run(ctx, locks)
		closeAll()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "swapdrivers:", err)
		os.Exit(1)
	}
}

// open makes a lock manager on a database that is opened through driver.
func open(ctx context.Context, driver, dsn string) (locks *pglock.Manager, closeAll func(), err error) {
	var db *sql.DB
	closePool := func() {}
	switch driver {
	case "pq":
		if db, err = sql.Open("postgres", dsn); err != nil {
			return nil, nil, err
		}
		locks = pqlock.New(db)
	case "pgx":
		if db, err = sql.Open("pgx", dsn); err != nil {
			return nil, nil, err
		}
		locks = pgxlock.New(db)
	case "pgxpool":
		pool, err := pgxpool.New(ctx, dsn)
		if err != nil {
			return nil, nil, err
		}
		db, closePool = stdlib.OpenDBFromPool(pool), pool.Close
		// The size of the pool is not known to a *sql.DB that is made from
		// it. With it, waiters cannot take the last connection.
		db.SetMaxOpenConns(int(pool.Config().MaxConns))
		locks = pgxlock.New(db)
	default:
		return nil, nil, fmt.Errorf("unknown driver %q: want pq, pgx or pgxpool", driver)
	}
	return locks, func() {
		locks.Close(context.Background())
		db.Close()
		closePool()
	}, nil
}

// run is all that the rest of a program needs to know of locks.
func run(ctx context.Context, locks ports.LockManager) error {
	lock, acquired, err := locks.TryAcquire(ctx, *key)
	if err != nil {
		return err
	}
	if !acquired {
		fmt.Printf("held: someone else holds %q\n", *key)
		return nil
	}
	for _, info := range locks.Held() {
		fmt.Printf("held: %q (%s, lock ID %d) by %s through %s, server process %d, since %s\n",
			info.Key, info.Mode, info.ID, info.HolderID, *driver, info.PID, info.AcquiredAt.Format(time.RFC3339Nano))
	}
	select {
	case <-time.After(*hold):
	case <-lock.Done(): // lost; the release says so
	case <-ctx.Done(): // asked to stop early, which is fine here
	}
	if err := lock.Release(ctx); err != nil {
		return err
	}
	fmt.Println("released")
	return nil
}
