package keys_test

import (
	"context"
	"fmt"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/pglock/keys"
	"github.com/holdfast-go/holdfast/ports"
)

// A deployment waits for goose to be done, by taking goose's own lock. With a
// real database, goose is the one who holds it.
func ExampleAlways() {
	ctx := context.Background()
	server := memlock.NewServer()
	goose := memlock.New(server, pglock.WithKeyFunc(keys.Always(keys.Goose)))
	deployment := memlock.New(server, pglock.WithKeyFunc(keys.Always(keys.Goose)))
	defer goose.Close(ctx)
	defer deployment.Close(ctx)

	if _, err := goose.Acquire(ctx, "migrations"); err != nil {
		fmt.Println(err)
		return
	}
	_, acquired, err := deployment.TryAcquire(ctx, "whatever it is called here")
	fmt.Println("while goose migrates:", acquired, err)
	// Output:
	// while goose migrates: false <nil>
}

// The neighbour locks with SELECT pg_advisory_lock(42, 7).
func ExampleAlwaysPair() {
	locks := memlock.New(memlock.NewServer(), pglock.WithTwoIntegerKeys(keys.AlwaysPair(42, 7)))
	fmt.Println(ports.IDPair(locks.KeyID("any key")))
	// Output:
	// 42 7
}

func ExampleRailsMigration() {
	fmt.Println(keys.RailsMigration("myapp_production"))
	// Output:
	// 8572362244439197575
}

func ExampleSQLxMigrate() {
	fmt.Println(keys.SQLxMigrate("myapp_production"))
	// Output:
	// 4286181120132304570
}

func ExampleSQLx() {
	locks := memlock.New(memlock.NewServer(), pglock.WithKeyFunc(keys.SQLx))
	fmt.Println(locks.KeyID("my first Postgres advisory lock!"))
	// Output:
	// -5560419505042474287
}

func ExampleRiver() {
	fmt.Println(keys.River(0)("some content for hashing purposes"))
	fmt.Println(keys.River(7)("my-lock")) // AdvisoryLockPrefix: 7
	// Output:
	// 1854036014321452184
	// 33566542317
}

func ExampleGoodJob() {
	fmt.Println(keys.GoodJob("my-lock"))
	// Output:
	// -1323429866322628863
}

func ExampleDjangoPGLock() {
	fmt.Println(keys.DjangoPGLock("my-lock"))
	// Output:
	// 6170642704201584368
}

func ExampleDjangoPGLocks() {
	fmt.Println(keys.DjangoPGLocks("my-lock"))
	// Output:
	// -994442763
}

func ExampleGolangMigrate() {
	fmt.Println(keys.GolangMigrate("postgres", "public", "schema_migrations"))
	// Output:
	// 143310882
}

func ExampleGoose() {
	locks := memlock.New(memlock.NewServer(), pglock.WithKeyFunc(keys.Always(keys.Goose)))
	fmt.Println(locks.KeyID("migrations"))
	// Output:
	// 4097083626
}

func ExamplePrisma() {
	locks := memlock.New(memlock.NewServer(), pglock.WithKeyFunc(keys.Always(keys.Prisma)))
	fmt.Println(locks.KeyID("migrations"))
	// Output:
	// 72707369
}

func ExampleFlyway() {
	fmt.Println(keys.Flyway("public", "flyway_schema_history"))
	// Output:
	// 77433833903597
}

// The name says in which space the lock is; the manager has to be in that one.
func ExampleDistributedLock() {
	for _, name := range []string{"orders", "nightly-report"} {
		id, pair := keys.DistributedLock(name)
		option := pglock.WithKeyFunc(keys.Always(id))
		if pair {
			option = pglock.WithTwoIntegerKeys(keys.AlwaysPair(ports.IDPair(id)))
		}
		locks := memlock.New(memlock.NewServer(), option)
		fmt.Println(name, pair, locks.KeyID(name) == id)
	}
	// Output:
	// orders true true
	// nightly-report false true
}

func ExampleWithAdvisoryLock() {
	locks := memlock.New(memlock.NewServer(), pglock.WithTwoIntegerKeys(keys.WithAdvisoryLock))
	fmt.Println(ports.IDPair(locks.KeyID("my-lock")))

	// The neighbour runs with WITH_ADVISORY_LOCK_PREFIX=7.
	prefixed := func(name string) (int32, int32) {
		first, _ := keys.WithAdvisoryLock(name)
		return first, 7
	}
	fmt.Println(prefixed("my-lock"))
	// Output:
	// 1153040885 0
	// 1153040885 7
}

// The neighbour locks with SELECT pg_advisory_lock(hashtext('my-lock')).
func ExampleHashText() {
	locks := memlock.New(memlock.NewServer(), pglock.WithKeyFunc(keys.HashText))
	fmt.Println(locks.KeyID("my-lock"))
	// Output:
	// 577534659
}

// The neighbour locks with SELECT pg_advisory_lock(hashtext('tenants'), hashtext('my-lock')).
func ExampleHashTextPair() {
	tenants := int32(keys.HashText("tenants"))
	locks := memlock.New(memlock.NewServer(), pglock.WithTwoIntegerKeys(keys.HashTextPair(tenants)))
	_, second := ports.IDPair(locks.KeyID("my-lock"))
	fmt.Println(second)
	// Output:
	// 577534659
}

// The neighbour locks with SELECT pg_advisory_lock(hashtextextended('my-lock', 0)).
func ExampleHashTextExtended() {
	locks := memlock.New(memlock.NewServer(), pglock.WithKeyFunc(keys.HashTextExtended(0)))
	fmt.Println(locks.KeyID("my-lock"))
	// Output:
	// 7574172786964069059
}
