package etcd

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/adapters/etcdlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

func acquire(t testing.TB, m *pglock.Manager, key string, opts ...ports.AcquireOption) ports.Lock {
	t.Helper()
	lock, err := m.Acquire(bg, key, append([]ports.AcquireOption{ports.WithTimeout(patience)}, opts...)...)
	must(t, err)
	return lock
}

func revision(t testing.TB) int64 {
	t.Helper()
	resp, err := outside.Get(bg, "x")
	must(t, err)
	return resp.Header.Revision
}

func TestALossIsToldAtOnce(t *testing.T) {
	for name, end := range map[string]func(m *pglock.Manager, lock ports.Lock) error{
		"evicted": func(m *pglock.Manager, lock ports.Lock) error {
			n, err := m.Evict(bg, lock.Info().Key)
			if n != 1 {
				err = errors.Join(err, errors.New("it was not evicted"))
			}
			return err
		},
		"lease revoked": func(_ *pglock.Manager, lock ports.Lock) error {
			_, err := outside.Revoke(bg, clientv3.LeaseID(lock.Info().PID))
			return err
		},
		"key deleted": func(*pglock.Manager, ports.Lock) error {
			_, err := outside.Delete(bg, "holdfast/", clientv3.WithPrefix())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t, newClient(t), pglock.WithLivenessWindow(time.Hour), pglock.WithHolderID("me"))
			lock := acquire(t, m, "k")
			in, err := m.Inspect(bg, "k")
			must(t, err)
			if len(in.Holders) != 1 || in.Holders[0].HolderID != "me" || in.Holders[0].PID != lock.Info().PID || in.Holders[0].Database != lock.Info().Database {
				t.Errorf("%v; the lock is %+v", in, lock.Info())
			}
			must(t, end(newManager(t, newClient(t)), lock))
			receive(t, "the end of the hold", lock.Done())
			if err := lock.Release(bg); !errors.Is(err, ports.ErrLost) {
				t.Error(err)
			}
		})
	}
}

func TestALossAfterACompactionIsToldAtOnce(t *testing.T) {
	client, watched := newWatchedClient(t)
	s, err := etcdlock.NewPool(client).Open(bg)
	must(t, err)
	t.Cleanup(s.Destroy)
	g, err := s.Lock(bg, ports.LockRequest{ID: 1})
	must(t, err)
	_, err = outside.Put(bg, "unrelated", "")
	must(t, err)
	t.Cleanup(func() { outside.Delete(bg, "unrelated") })
	_, err = s.Check(bg, true)
	must(t, err)
	_, err = outside.Compact(bg, revision(t))
	must(t, err)
	over := make(chan error, 1)
	go func() { over <- s.(ports.Watcher).Watch(bg) }()
	eventually(t, "the lock is watched", func() bool { return watched.of(1) == 1 })
	kill(t, g.PID)
	if err := receive(t, "the end of the watch", over); !errors.Is(err, ports.ErrSessionEnded) {
		t.Error(err)
	}
}

func TestAWaitWritesNothing(t *testing.T) {
	holder, waiter := newManager(t, newClient(t)), newManager(t, newClient(t))
	lock := acquire(t, holder, "k")
	before, leased := revision(t), leases(t)
	if _, acquired, err := waiter.TryAcquire(bg, "k"); acquired || err != nil {
		t.Fatal(acquired, err)
	}
	_, err := waiter.Acquire(bg, "k", ports.WithTimeout(1200*time.Millisecond)) // three slices
	if !errors.Is(err, ports.ErrNotAcquired) {
		t.Error(err)
	}
	// There may be fewer leases: those of other tests are ended in the background.
	if after := revision(t); after != before || leases(t) > leased {
		t.Errorf("the revision was %d and is %d; %d leases, were %d", before, after, leases(t), leased)
	}
	must(t, lock.Release(bg))
}

func TestAReleaseWakesAWaitHoweverLong(t *testing.T) {
	for _, mode := range []ports.Mode{ports.Exclusive, ports.Shared} {
		client, watched := newWatchedClient(t)
		pool := etcdlock.NewPool(client)
		holder, err := pool.Open(bg)
		must(t, err)
		t.Cleanup(holder.Destroy)
		waiter, err := pool.Open(bg)
		must(t, err)
		t.Cleanup(waiter.Destroy)
		_, err = holder.Lock(bg, ports.LockRequest{ID: 1})
		must(t, err)
		granted := make(chan error, 1)
		go func() {
			g, err := waiter.Lock(bg, ports.LockRequest{ID: 1, Mode: mode, Wait: time.Hour})
			if err == nil && !g.Granted {
				err = errors.New("the wait has ended without the lock")
			}
			granted <- err
		}()
		eventually(t, "the lock is watched", func() bool { return watched.of(1) == 1 })
		held, err := holder.Unlock(bg, 1, ports.Exclusive)
		must(t, err)
		if !held {
			t.Error("the lock was not held")
		}
		must(t, receive(t, "the lock", granted))
		waiter.Destroy()
		eventually(t, "the lock is free", func() bool { return len(holders(t, 1, mode)) == 0 })
	}
}

func TestASessionThatIsDestroyedOnTheWayLeavesNothing(t *testing.T) {
	pool := etcdlock.NewPool(newClient(t))
	before := leases(t)
	granted := 0
	for i := range 60 {
		s, err := pool.Open(bg)
		must(t, err)
		time.AfterFunc(time.Duration(i)*100*time.Microsecond, s.Destroy)
		g, err := s.Lock(bg, ports.LockRequest{ID: int64(i), Liveness: time.Second})
		if g.Granted {
			granted++
		} else if !errors.Is(err, ports.ErrSessionEnded) {
			t.Error(err)
		}
	}
	t.Logf("%d of 60 were granted first", granted)
	eventually(t, "no key is left", func() bool {
		resp, err := outside.Get(bg, "holdfast/", clientv3.WithPrefix())
		must(t, err)
		return len(resp.Kvs) == 0
	})
	// The server may get a lease for one who has gone: it runs out.
	eventually(t, "no lease is left", func() bool { return leases(t) <= before })
	if n, _ := pool.Usage(); n != 0 {
		t.Errorf("%d sessions are in use", n)
	}
}

func TestTheLeaseOutlastsTheWindow(t *testing.T) {
	for window, want := range map[time.Duration]int64{5 * time.Second: 6, 7500 * time.Millisecond: 9, 15 * time.Second: 16} {
		m := newManager(t, newClient(t), pglock.WithLivenessWindow(window))
		lock := acquire(t, m, "k")
		resp, err := outside.TimeToLive(bg, clientv3.LeaseID(lock.Info().PID))
		must(t, err)
		if resp.GrantedTTL != want {
			t.Errorf("with a window of %v the lease is for %d s, want %d", window, resp.GrantedTTL, want)
		}
		must(t, lock.Release(bg))
	}
}

func TestATokenIsTheRevisionOfTheHold(t *testing.T) {
	m := newManager(t, newClient(t))
	lock := acquire(t, m, "k", ports.WithFencing())
	resp, err := outside.Get(bg, "holdfast/", clientv3.WithPrefix())
	must(t, err)
	if len(resp.Kvs) != 1 || resp.Kvs[0].CreateRevision != int64(lock.Info().Token) {
		t.Errorf("token %d, keys %v", lock.Info().Token, resp.Kvs)
	}
	must(t, lock.Release(bg))
}

func TestWhatBuildsOnLocksWorks(t *testing.T) {
	m, rival := newManager(t, newClient(t)), newManager(t, newClient(t))
	must(t, m.Verify(bg))

	set, err := m.AcquireAll(bg, []string{"a", "b", "c"})
	must(t, err)
	resp, err := outside.TimeToLive(bg, clientv3.LeaseID(set.Info().PID), clientv3.WithAttachedKeys())
	must(t, err)
	if len(resp.Keys) != 3 {
		t.Errorf("one lease has %q", resp.Keys)
	}
	must(t, set.Release(bg))

	imports, theirs := pglock.NewSemaphore(m, 2), pglock.NewSemaphore(rival, 2)
	for range 2 {
		_, err := imports.Acquire(bg, "imports")
		must(t, err)
	}
	if _, acquired, err := theirs.TryAcquire(bg, "imports"); acquired || err != nil {
		t.Error(acquired, err)
	}
	if n, err := m.ReleaseAll(bg); n != 2 || err != nil {
		t.Error(n, err)
	}

	shared := newManager(t, newClient(t), pglock.WithSharedSessions(1))
	if _, err := shared.Acquire(bg, "k"); !errors.Is(err, ports.ErrUnsupported) {
		t.Errorf("shared sessions: %v", err)
	}

	err = pglock.Do(bg, m, "k", func(ctx context.Context) error {
		lock, _ := pglock.FromContext(ctx)
		return sqllock.RunTx(ctx, lock, nil, nil)
	})
	if !errors.Is(err, ports.ErrUnsupported) {
		t.Errorf("RunTx: %v", err)
	}
}

func TestWithoutAServerACallEndsInTime(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, nobody.Close())
	m := newManager(t, newClient(t, nobody.Addr().String()), pglock.WithLivenessWindow(pglock.MinLivenessWindow))
	start := time.Now()
	_, err = m.Acquire(bg, "k", ports.WithTimeout(time.Second))
	if err == nil || time.Since(start) > patience {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// network is a proxy that can go silent, without closing a connection.
type network struct {
	listener net.Listener
	mu       sync.Mutex
	silent   bool
	conns    []net.Conn
}

func newNetwork(t testing.TB) *network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	n := &network{listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", endpoint)
			if err != nil {
				client.Close()
				continue
			}
			n.mu.Lock()
			n.conns = append(n.conns, client, server)
			n.mu.Unlock()
			wg.Go(func() { n.pump(client, server) })
			wg.Go(func() { n.pump(server, client) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		n.mu.Lock()
		for _, c := range n.conns {
			c.Close()
		}
		n.mu.Unlock()
		wg.Wait()
	})
	return n
}

// pump forwards what it reads, or swallows it.
func (n *network) pump(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		got, err := from.Read(buffer)
		if err != nil {
			to.Close()
			return
		}
		n.mu.Lock()
		silent := n.silent
		n.mu.Unlock()
		if silent {
			continue
		}
		if _, err := to.Write(buffer[:got]); err != nil {
			return
		}
	}
}

func (n *network) goSilent() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.silent = true
}

func TestInAPartitionTheHolderIsToldBeforeARivalGetsIn(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	holder := etcdlock.New(newClient(t, n.listener.Addr().String()), pglock.WithLivenessWindow(pglock.MinLivenessWindow))
	t.Cleanup(func() { holder.Close(bg) }) // which nobody confirms
	rival := newManager(t, newClient(t))
	lock := acquire(t, holder, "partition")
	n.goSilent()
	theirs := acquire(t, rival, "partition")
	select {
	case <-lock.Done():
	default:
		t.Error("two hold the lock")
	}
	if !errors.Is(lock.Err(), ports.ErrLost) {
		t.Error(lock.Err())
	}
	if held := theirs.Info().AcquiredAt.Sub(lock.Info().AcquiredAt); held < pglock.MinLivenessWindow {
		t.Errorf("a lease was over after %v", held)
	}
	must(t, theirs.Release(bg))
}
