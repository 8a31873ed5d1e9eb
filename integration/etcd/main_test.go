package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

// watches is how many watches the server serves, by its own count. It takes the
// server a moment to notice that one was given up.
func watches(t testing.TB) (n int) {
	t.Helper()
	for range 50 {
		families, err := prometheus.DefaultGatherer.Gather()
		must(t, err)
		for _, f := range families {
			if f.GetName() == "etcd_debugging_mvcc_watcher_total" {
				n = int(f.GetMetric()[0].GetGauge().GetValue())
			}
		}
		if n == 0 {
			return 0
		}
		time.Sleep(2 * time.Millisecond)
	}
	return n
}
