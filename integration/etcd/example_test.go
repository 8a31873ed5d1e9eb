package etcd

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/adapters/etcdlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// Two replicas want one job, and a resource remembers the greatest token.
func Example() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	ctx := context.Background()
	first, second := etcdlock.New(client), etcdlock.New(client)
	defer first.Close(ctx)
	defer second.Close(ctx)

	var seen ports.Token
	report := func(ctx context.Context) error {
		lock, _ := pglock.FromContext(ctx)
		_, acquired, err := second.TryAcquire(ctx, "nightly-report")
		fmt.Println("the other replica:", acquired, err)
		fmt.Println("a greater token:", lock.Info().Token > seen)
		seen = lock.Info().Token
		return nil
	}
	for range 2 {
		fmt.Println(pglock.TryDo(ctx, first, "nightly-report", report, ports.WithFencing()))
	}
	// Output:
	// the other replica: false <nil>
	// a greater token: true
	// true <nil>
	// the other replica: false <nil>
	// a greater token: true
	// true <nil>
}
