package pqlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/holdfast-go/holdfast/adapters/pqlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

func Example() {
	db, err := sql.Open("postgres", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	locks := pqlock.New(db)
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
	db, err := sql.Open("postgres", "postgres://app@db.internal/app?sslmode=require")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(10)

	locks := pqlock.New(db, pglock.WithNamespace("billing:"))
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
	db, err := sql.Open("postgres", "postgres://app@db.internal/app?sslmode=require")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(10)

	pool := pqlock.NewPool(db)
	fmt.Println(pool.Usage())
	// Output:
	// 0 10
}
