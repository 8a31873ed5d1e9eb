package migratelock_test

import (
	"context"
	"fmt"
	"log"
	"testing/fstest"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database/stub"
	"github.com/golang-migrate/migrate/v4/source/iofs"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/adapters/migratelock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/pglock/keys"
)

// With a real database, the driver is what pgx.WithInstance or
// postgres.WithInstance of golang-migrate return, and the manager is
// pgxlock.New(db) on another *sql.DB.
func ExampleNew() {
	migrations := fstest.MapFS{"1_orders.up.sql": {Data: []byte("CREATE TABLE orders (id bigint)")}}
	source, err := iofs.New(migrations, ".")
	if err != nil {
		log.Fatal(err)
	}
	driver, err := stub.WithInstance(nil, &stub.Config{})
	if err != nil {
		log.Fatal(err)
	}
	locks := memlock.New(memlock.NewServer(), pglock.WithKeyFunc(keys.Always(
		keys.GolangMigrate("app", "public", "schema_migrations"))))
	defer locks.Close(context.Background())

	m, err := migrate.NewWithInstance("iofs", source, "app", migratelock.New(driver, locks, "migrations"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Up())
	fmt.Println(m.Version())
	// Output:
	// <nil>
	// 1 false <nil>
}
