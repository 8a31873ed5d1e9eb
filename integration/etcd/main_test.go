package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
)

// patience is how long a test waits for what must happen sooner or later.
const patience = 20 * time.Second

var (
	bg = context.Background()
	// endpoint is where the server listens.
	endpoint string
	// outside is the view of the server from outside the things under test.
	outside *clientv3.Client
)

func TestMain(m *testing.M) {
	if os.Getenv(memberName) != "" {
		os.Exit(serve())
	}
	os.Exit(withServer(m.Run))
}

// withServer runs the tests on a server that it starts and stops, and fails if they
// leave a goroutine behind.
func withServer(run func() int) int {
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		return failed(err)
	}
	defer os.RemoveAll(dir)
	cfg := config(dir)
	anyPort := address("127.0.0.1:0")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = anyPort, anyPort
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = anyPort, anyPort // there are no peers
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return failed(err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(patience):
		return failed(fmt.Errorf("etcd is not ready after %v", patience))
	}
	endpoint, outside = server.Clients[0].Addr().String(), v3client.New(server.Server)
	defer outside.Close()

	code := run()
	if left := ours(); left != "" && code == 0 {
		return failed(errors.New("goroutines are left after the tests:\n" + left))
	}
	return code
}

// config is that of a server for tests, which is silent and trusts its disk.
func config(dir string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.UnsafeNoFsync = true
	return cfg
}

func address(host string) []url.URL { return []url.URL{{Scheme: "http", Host: host}} }

// ours returns the stacks of goroutines of managers, sessions and leases, which may
// take a moment to end. The server has many of its own.
func ours() (left string) {
	buffer := make([]byte, 16<<20)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		left = ""
		for _, stack := range strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
			for _, of := range []string{"holdfast/pglock", "holdfast/adapters/etcdlock", "client/v3/concurrency", "client/v3.(*lessor)"} {
				if strings.Contains(stack, of) {
					left += stack + "\n\n"
					break
				}
			}
		}
		if left == "" {
			break
		}
	}
	return left
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// newClient makes a client of the server, as one process has; or of the servers at
// other endpoints.
func newClient(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	if len(endpoints) == 0 {
		endpoints = []string{endpoint}
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually fails the test unless cond comes true within patience.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// receive returns what c yields, and fails the test if it yields nothing.
func receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("never came: %s", what)
	}
	return v
}

// watched counts the watches that go through it to a client, and have not been given
// up.
type watched struct {
	clientv3.Watcher
	mu      sync.Mutex
	watches []watch
}

// watch is one of them.
type watch struct {
	ctx context.Context
	key string
}

// Watch notes the watch, and passes it on.
func (w *watched) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.mu.Lock()
	w.watches = append(w.watches, watch{ctx, key})
	w.mu.Unlock()
	return w.Watcher.Watch(ctx, key, opts...)
}

// of is how many watch a lock.
func (w *watched) of(id int64) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, watch := range w.watches {
		if watch.ctx.Err() == nil && strings.HasPrefix(watch.key, fmt.Sprintf("holdfast/%d/", id)) {
			n++
		}
	}
	return n
}

// newWatchedClient makes a client whose watches are counted.
func newWatchedClient(t testing.TB) (*clientv3.Client, *watched) {
	t.Helper()
	c := newClient(t)
	w := &watched{Watcher: c.Watcher}
	c.Watcher = w
	return c, w
}
