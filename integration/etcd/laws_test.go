package etcd

import (
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/adapters/etcdlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
	"github.com/holdfast-go/holdfast/ports/portstest"
)

// holders returns the leases that hold a lock, as the server has them.
func holders(t testing.TB, id int64, mode ports.Mode) (leases []int) {
	t.Helper()
	resp, err := outside.Get(bg, fmt.Sprintf("holdfast/%d/%s", id, mode), clientv3.WithPrefix())
	must(t, err)
	for _, kv := range resp.Kvs {
		leases = append(leases, int(kv.Lease))
	}
	return leases
}

// kill has the server end a lease.
func kill(t testing.TB, lease int) {
	t.Helper()
	_, err := outside.Revoke(bg, clientv3.LeaseID(lease))
	must(t, err)
}

// leases counts the leases that the server has.
func leases(t testing.TB) int {
	t.Helper()
	resp, err := outside.Leases(bg)
	must(t, err)
	return len(resp.Leases)
}

// newManager makes a manager that the test closes at its end.
func newManager(t testing.TB, client *clientv3.Client, opts ...pglock.Option) *pglock.Manager {
	t.Helper()
	m := etcdlock.New(client, opts...)
	t.Cleanup(func() {
		if err := m.Close(bg); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return m
}

func TestSessionPoolsKeepTheLaws(t *testing.T) {
	portstest.TestSessionPool(t, nil, func(t *testing.T) portstest.Pool {
		client, watched := newWatchedClient(t)
		return portstest.Pool{
			Pool:    etcdlock.NewPool(client),
			Holders: func(id int64, mode ports.Mode) []int { return holders(t, id, mode) },
			Waiters: watched.of,
			Kill:    func(pid int) { kill(t, pid) },
		}
	})
}

func TestManagersKeepTheLaws(t *testing.T) {
	before := leases(t)
	portstest.TestManager(t, nil, func(t *testing.T) portstest.Manager {
		return portstest.Manager{
			New:     func() ports.LockManager { return newManager(t, newClient(t)) },
			Holders: func(key string, mode ports.Mode) int { return len(holders(t, pglock.SHA256Key(key), mode)) },
			Lose:    func(lock ports.Lock) { kill(t, lock.Info().PID) },
		}
	})
	eventually(t, "no lease is left", func() bool { return leases(t) <= before })
	if resp, err := outside.Get(bg, "", clientv3.WithPrefix()); err != nil || len(resp.Kvs) != 0 {
		t.Errorf("left in the cluster: %v, %v", resp, err)
	}
}
