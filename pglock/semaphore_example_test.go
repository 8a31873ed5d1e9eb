package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// At most three imports run at a time, on whichever replicas.
func ExampleSemaphore() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer()) // in production pgxlock.New(db)
	defer locks.Close(ctx)

	imports := pglock.NewSemaphore(locks, 3)
	err := pglock.Do(ctx, imports, "imports", func(context.Context) error {
		fmt.Println("importing")
		return nil
	}, ports.WithTimeout(time.Minute))
	fmt.Println(err)
	// Output:
	// importing
	// <nil>
}

// Two replicas lead at a time.
func ExampleNewSemaphore() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	fmt.Println(pglock.Lead(ctx, pglock.NewSemaphore(locks, 2), "consumer", func(context.Context) error {
		fmt.Println("consuming")
		return nil
	}))
	// Output:
	// consuming
	// <nil>
}

// Who has the slots?
func ExampleSlotKey() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithHolderID("replica-1"))
	defer locks.Close(ctx)

	const n = 2
	for range n {
		if _, err := pglock.NewSemaphore(locks, n).Acquire(ctx, "imports"); err != nil {
			fmt.Println(err)
			return
		}
	}
	for slot := range n {
		in, err := locks.Inspect(ctx, pglock.SlotKey("imports", slot))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(in.Key, in.Holders[0].HolderID)
	}
	// Output:
	// imports#0 replica-1
	// imports#1 replica-1
}

func ExampleSemaphore_Acquire() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	imports := pglock.NewSemaphore(locks, 2)
	for range 3 {
		_, err := imports.Acquire(ctx, "imports", ports.WithTimeout(0))
		fmt.Println(err == nil, errors.Is(err, ports.ErrNotAcquired))
	}
	// Output:
	// true false
	// true false
	// false true
}

func ExampleSemaphore_TryAcquire() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	imports := pglock.NewSemaphore(locks, 1)
	for range 2 {
		_, acquired, err := imports.TryAcquire(ctx, "imports")
		fmt.Println(acquired, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

func ExampleSemaphore_Release() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	imports := pglock.NewSemaphore(locks, 2)
	for range 2 {
		if _, err := imports.Acquire(ctx, "imports"); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(imports.Release(ctx, "imports"), locks.HeldCount())
	fmt.Println(imports.Release(ctx, "imports"), locks.HeldCount())
	fmt.Println(imports.Release(ctx, "imports"))
	// Output:
	// <nil> 1
	// <nil> 0
	// release "imports": lock not held by this manager
}

func ExampleSemaphore_IsHeld() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	imports := pglock.NewSemaphore(locks, 2)
	fmt.Println(imports.IsHeld("imports"))
	if _, err := imports.Acquire(ctx, "imports"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(imports.IsHeld("imports"))
	// Output:
	// false
	// true
}
