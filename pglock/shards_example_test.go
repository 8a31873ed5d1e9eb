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

// lockServers is what main does in production with one *sql.DB a server.
func lockServers(n int) (shards []pglock.Shard) {
	for i := range n {
		shards = append(shards, pglock.Shard{
			Name:  fmt.Sprint("lock-", i+1),
			Locks: memlock.New(memlock.NewServer()), // in production pgxlock.New(dbs[i])
		})
	}
	return shards
}

func ExampleSharded() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	ran, err := pglock.TryDo(ctx, locks, "tenant-42", func(context.Context) error {
		fmt.Println("held:", locks.IsHeld("tenant-42"), locks.HeldCount())
		return nil
	})
	fmt.Println(ran, err)
	// Output:
	// held: true 1
	// true <nil>
}

// A fourth shard is added while processes with three are running. This version
// excludes both them and those that will know the new list only: it is rolled out
// in between.
func ExampleShardedManager_ShardOf() {
	ctx := context.Background()
	shards := lockServers(4)
	three, four := pglock.Sharded(shards[:3]...), pglock.Sharded(shards...)
	defer four.Close(ctx) // and with it the shards of both

	do := func(key string, work func(context.Context) error) error {
		if three.ShardOf(key).Name == four.ShardOf(key).Name {
			return pglock.Do(ctx, four, key, work)
		}
		return pglock.Do(ctx, three, key, func(ctx context.Context) error {
			return pglock.Do(ctx, four, key, work)
		})
	}
	for _, key := range []string{"tenant-1", "tenant-9"} {
		err := do(key, func(context.Context) error {
			fmt.Println(key, "is held on", four.HeldCount(), "shards; they are", three.ShardOf(key).Name, "and", four.ShardOf(key).Name)
			return nil
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// tenant-1 is held on 1 shards; they are lock-1 and lock-1
	// tenant-9 is held on 2 shards; they are lock-3 and lock-4
}

// Keys on several servers, as one hold.
func ExampleShardedManager_AcquireAll() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account-1", "account-2", "account-3", "account-4"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, part := range set.Parts() {
		for _, info := range part.Infos() {
			fmt.Println(locks.ShardOf(info.Key).Name, info.Key)
		}
	}
	fmt.Println(set.Release(ctx))
	// Output:
	// lock-1 account-1
	// lock-1 account-3
	// lock-2 account-2
	// lock-3 account-4
	// <nil>
}

// A name stays with the shard when its server moves to another address.
func ExampleShard() {
	ctx := context.Background()
	eu := pglock.Shard{Name: "eu", Locks: memlock.New(memlock.NewServer())}
	us := pglock.Shard{Name: "us", Locks: memlock.New(memlock.NewServer())}
	locks := pglock.Sharded(us, eu) // in any order
	defer locks.Close(ctx)
	fmt.Println(locks.ShardOf("invoices").Name, locks.ShardOf("nightly").Name)
	// Output:
	// eu us
}

// It is a ports.LockManager like any other.
func ExampleShardedManager() {
	ctx := context.Background()
	var locks ports.LockManager = pglock.Sharded(lockServers(3)...)

	for _, key := range []string{"account-1", "account-2"} {
		if _, err := locks.Acquire(ctx, key); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, info := range locks.Held() {
		fmt.Println(info.Key, info.Mode)
	}
	fmt.Println(locks.ReleaseAll(ctx))
	// Output:
	// account-1 exclusive
	// account-2 exclusive
	// 2 <nil>
}

func ExampleShardedManager_Acquire() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "account-1", ports.WithTimeout(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)
	_, err = locks.Acquire(ctx, "account-1", ports.WithTimeout(0))
	fmt.Println(err)
	// Output:
	// acquire "account-1": shard "lock-1": lock not acquired: someone else holds it: context deadline exceeded
}

func ExampleShardedManager_TryAcquire() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	for range 2 {
		_, acquired, err := locks.TryAcquire(ctx, "account-1")
		fmt.Println(acquired, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

func ExampleShardedManager_Release() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	if _, err := locks.Acquire(ctx, "account-1"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(locks.IsHeld("account-1"), locks.Release(ctx, "account-1"), locks.IsHeld("account-1"))
	fmt.Println(locks.Release(ctx, "account-1"))
	// Output:
	// true <nil> false
	// release "account-1": shard "lock-1": lock not held by this manager
}

func ExampleShardedManager_Held() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	for _, key := range []string{"account-4", "account-2", "account-1"} {
		if _, err := locks.Acquire(ctx, key); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, info := range locks.Held() { // oldest first, over all shards
		fmt.Println(locks.ShardOf(info.Key).Name, info.Key)
	}
	fmt.Println(locks.HeldCount())
	// Output:
	// lock-3 account-4
	// lock-2 account-2
	// lock-1 account-1
	// 3
}

func ExampleShardedManager_HeldCount() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	for _, key := range []string{"account-1", "account-2"} { // on two shards
		if _, err := locks.Acquire(ctx, key); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(locks.HeldCount())
	// Output:
	// 2
}

func ExampleShardedManager_IsHeld() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	if _, err := locks.Acquire(ctx, "account-1"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(locks.IsHeld("account-1"), locks.IsHeld("account-2"))
	// Output:
	// true false
}

func ExampleShardedManager_ReleaseAll() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	for _, key := range []string{"account-1", "account-2", "account-4"} {
		if _, err := locks.Acquire(ctx, key); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(locks.ReleaseAll(ctx))
	// Output:
	// 3 <nil>
}

// At the start of a service: all shards, or none.
func ExampleShardedManager_Verify() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)
	fmt.Println(locks.Verify(ctx))
	// Output:
	// <nil>
}

func ExampleShardedManager_Inspect() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	if _, err := locks.Acquire(ctx, "account-1"); err != nil {
		fmt.Println(err)
		return
	}
	in, err := locks.Inspect(ctx, "account-1")
	fmt.Println(len(in.Holders), len(in.Waiters), err)
	// Output:
	// 1 0 <nil>
}

func ExampleShardedManager_Evict() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "account-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(locks.Evict(ctx, "account-1"))
	<-lock.Done()
	fmt.Println(errors.Is(lock.Err(), ports.ErrLost))
	// Output:
	// 1 <nil>
	// true
}

func ExampleShardedManager_Close() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	fmt.Println(locks.Close(ctx))

	_, err := locks.Acquire(ctx, "account-1")
	fmt.Println(errors.Is(err, ports.ErrClosed))
	// Output:
	// <nil>
	// true
}

func ExampleShardedSet() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account-1", "account-2"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("while it is held:", set.Err())
	fmt.Println(set.Release(ctx))
	<-set.Done()
	fmt.Println("afterwards:", set.Err())
	// Output:
	// while it is held: <nil>
	// <nil>
	// afterwards: lock released
}

func ExampleShardedSet_Infos() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account-2", "account-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Release(ctx)
	for _, info := range set.Infos() {
		fmt.Println(info.Key)
	}
	// Output:
	// account-1
	// account-2
}

// A part is what sqllock.RunTx takes: it runs on the server of that shard.
func ExampleShardedSet_Parts() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account-2", "account-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Release(ctx)
	for _, part := range set.Parts() {
		_, lends := ports.Lock(part).(ports.SessionLender)
		fmt.Println(part.Info().Key, lends)
	}
	// Output:
	// account-1 true
	// account-2 true
}

// Info describes the first lock of a set; the other shards have sessions and
// databases of their own, which Infos tells.
func ExampleShardedSet_Info() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account-2", "account-1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Release(ctx)
	fmt.Println(set.Info().Key, "and", len(set.Infos())-1, "more")
	// Output:
	// account-1 and 1 more
}

// The loss of one shard is the loss of the set.
func ExampleShardedSet_Done() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account-1", "account-2"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(locks.Evict(ctx, "account-2")) // as an operator does
	<-set.Done()
	fmt.Println("stop the transfer")
	// Output:
	// 1 <nil>
	// stop the transfer
}

func ExampleShardedSet_Err() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account-1", "account-2"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", set.Err() == nil)
	fmt.Println(locks.Evict(ctx, "account-2"))
	<-set.Done()
	fmt.Println("lost:", errors.Is(set.Err(), ports.ErrLost))
	// Output:
	// held: true
	// 1 <nil>
	// lost: true
}

func ExampleShardedSet_Release() {
	ctx := context.Background()
	locks := pglock.Sharded(lockServers(3)...)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account-1", "account-2"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(set.Release(ctx), locks.HeldCount())
	// Output:
	// <nil> 0
}
