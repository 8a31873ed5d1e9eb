package gooselock_test

import (
	"context"
	"database/sql"
	"log"
	"os"

	"github.com/pressly/goose/v3"

	"github.com/holdfast-go/holdfast/adapters/gooselock"
	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/pglock/keys"
)

// Every replica of a service migrates at its start; one of them at a time.
func ExampleNew() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	locks := pgxlock.New(db, pglock.WithKeyFunc(keys.Always(keys.Goose)))
	defer locks.Close(ctx)

	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"),
		goose.WithSessionLocker(gooselock.New(locks, "migrations")))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := provider.Up(ctx); err != nil {
		log.Fatal(err)
	}
}
