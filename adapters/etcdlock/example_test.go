package etcdlock_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/adapters/etcdlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// Only the constructor tells that this service does not lock on PostgreSQL.
func Example() {
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split("etcd-1:2379,etcd-2:2379,etcd-3:2379", ",")})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx := context.Background()
	locks := etcdlock.New(client, pglock.WithHolderID("replica-1"))
	defer locks.Close(ctx)

	ran, err := pglock.TryDo(ctx, locks, "nightly-report", func(ctx context.Context) error {
		lock, _ := pglock.FromContext(ctx)
		log.Println("the store refuses tokens below", lock.Info().Token)
		return nil
	}, ports.WithFencing())
	if err != nil {
		log.Fatal(err)
	}
	log.Println("ran here:", ran)
}

// New sends nothing: what stands for a key is known without a server, and is the
// same as on PostgreSQL.
func ExampleNew() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	locks := etcdlock.New(client, pglock.WithNamespace("billing:"))
	defer locks.Close(context.Background())
	fmt.Println(locks.KeyID("invoices"))
	// Output:
	// 2159219737898085743
}

// A pool that wraps another one can count, delay or log what managers do.
func ExampleNewPool() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	pool := etcdlock.NewPool(client)
	locks := pglock.NewManager(pool, pglock.WithoutVerification())
	defer locks.Close(context.Background())

	inUse, limit := pool.Usage()
	fmt.Println(inUse, "leases in use; a limit of", limit, "is none")
	// Output:
	// 0 leases in use; a limit of 0 is none
}

// Who has the lock, and how to take it from them.
func ExamplePool() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx, pool, id := context.Background(), etcdlock.NewPool(client), pglock.SHA256Key("nightly-report")
	sessions, err := pool.Inspect(ctx, id)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range sessions {
		evicted, err := pool.Evict(ctx, id, s.PID)
		log.Println(s.HolderID, evicted, err)
	}
}
