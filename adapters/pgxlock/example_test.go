package pgxlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

func Example() {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	locks := pgxlock.New(db)
	defer locks.Close(context.Background())

	ran, err := pglock.TryDo(context.Background(), locks, "nightly-report", func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, `REFRESH MATERIALIZED VIEW report`)
		return err
	})
	switch {
	case errors.Is(err, ports.ErrLost):
		log.Print("the lock was lost on the way; someone else may be at it")
	case err != nil:
		log.Print(err)
	case !ran:
		log.Print("another replica is at it")
	}
}

// New opens nothing: how many connections a manager may pin, and which number
// stands for a key, is known without a server.
func ExampleNew() {
	db, err := sql.Open("pgx", "postgres://app@db.internal/app?sslmode=require")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(10)

	locks := pgxlock.New(db, pglock.WithNamespace("billing:"))
	defer locks.Close(context.Background())
	fmt.Println(locks.Stats().MaxSessions, "of 10 connections may be pinned;", db.Stats().OpenConnections, "are open")
	fmt.Println(locks.KeyID("invoices"))
	// Output:
	// 9 of 10 connections may be pinned; 0 are open
	// 2159219737898085743
}

// NewPool is for what is built around a pool, or for its test by
// portstest.TestSessionPool.
func ExampleNewPool() {
	db, err := sql.Open("pgx", "postgres://app@db.internal/app?sslmode=require")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(10)

	pool := pgxlock.NewPool(db)
	fmt.Println(pool.Usage())
	// Output:
	// 0 10
}

// A pgxpool that the service has already. The *sql.DB made from it does not
// know the pool's size, and has to be told.
func ExampleNew_pgxpool() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://app@db.internal/app?pool_max_conns=10")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	db.SetMaxOpenConns(int(pool.Config().MaxConns))

	locks := pgxlock.New(db)
	defer locks.Close(ctx)
	fmt.Println(locks.Stats().MaxSessions, "of", pool.Config().MaxConns)
	// Output:
	// 9 of 10
}
