package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
	"github.com/holdfast-go/holdfast/ports/portstest"
)

// shardServers are independent servers, by the name of their shard.
type shardServers map[string]*memlock.Server

func newShardServers(names ...string) shardServers {
	servers := make(shardServers)
	for _, name := range names {
		servers[name] = memlock.NewServer()
	}
	return servers
}

// manager makes a manager over all servers, as one process does.
func (s shardServers) manager(t *testing.T, opts ...pglock.Option) *pglock.ShardedManager {
	var shards []pglock.Shard
	for name, server := range s {
		shards = append(shards, pglock.Shard{Name: name, Locks: manager(t, server.Pool(), opts...)})
	}
	return pglock.Sharded(shards...)
}

// held counts the locks that somebody has, over all servers.
func (s shardServers) held() (n int) {
	for _, server := range s {
		n += server.Locks()
	}
	return n
}

// keysOn returns n keys that live on the shard.
func keysOn(m *pglock.ShardedManager, shard string, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("key", i); m.ShardOf(key).Name == shard {
			keys = append(keys, key)
		}
	}
	return keys
}

func TestShardsKeepTheLawsOfAManager(t *testing.T) {
	portstest.TestManager(t, synctest.Test, func(t *testing.T) portstest.Manager {
		servers := newShardServers("a", "b", "c")
		view := servers.manager(t)
		serverOf := func(key string) *memlock.Server { return servers[view.ShardOf(key).Name] }
		return portstest.Manager{
			New: func() ports.LockManager { return servers.manager(t) },
			Holders: func(key string, mode ports.Mode) (n int) {
				for _, h := range serverOf(key).Holders(pglock.SHA256Key(key)) {
					if h.Mode == mode {
						n++
					}
				}
				return n
			},
			Lose: func(lock ports.Lock) { serverOf(lock.Info().Key).Kill(lock.Info().PID) },
		}
	})
}

// idle is a manager that is never asked for a lock.
func idle() ports.LockManager { return memlock.New(memlock.NewServer()) }

func named(names ...string) *pglock.ShardedManager {
	var shards []pglock.Shard
	for _, name := range names {
		shards = append(shards, pglock.Shard{Name: name, Locks: idle()})
	}
	return pglock.Sharded(shards...)
}

func TestAShardThatIsAddedTakesItsShareOfTheKeysAndNoneMovesBetweenOthers(t *testing.T) {
	const keys = 10_000
	names := []string{"lock-1", "lock-2", "lock-3", "lock-4"}
	before, shuffled := named(names...), named("lock-3", "lock-1", "lock-4", "lock-2")
	after := named(append([]string{"lock-10"}, names...)...) // not the last in any order
	perShard := make(map[string]int)
	moved := 0
	for i := range keys {
		key := fmt.Sprint("tenant-", i)
		old, now := before.ShardOf(key).Name, after.ShardOf(key).Name
		perShard[old]++
		if shuffled.ShardOf(key).Name != old {
			t.Fatalf("the shard of %q depends on the order of the list", key)
		}
		if now == old {
			continue
		}
		if moved++; now != "lock-10" {
			t.Errorf("%q has moved from %s to %s", key, old, now)
		}
	}
	// Shares are binomial: four standard deviations are 160 and 173 keys.
	if moved < keys/5-160 || moved > keys/5+160 {
		t.Errorf("%d of %d keys have moved to one shard of five", moved, keys)
	}
	for _, name := range names {
		if n := perShard[name]; n < keys/4-173 || n > keys/4+173 {
			t.Errorf("%d of %d keys are on %s, one shard of four", n, keys, name)
		}
	}
}

func TestTheShardsOfKeysAreFrozen(t *testing.T) {
	m := named("eu", "us", "asia")
	for key, want := range map[string]string{
		"": "us", "a": "asia", "invoices": "asia", "jobs": "us", "z": "eu", "\xff\x00": "asia",
	} {
		if got := m.ShardOf(key).Name; got != want {
			t.Errorf("%q is on %s, was on %s", key, got, want)
		}
	}
}

func TestAShardThatIsDownFailsItsOwnKeysOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newShardServers("a", "b", "c")
		m := servers.manager(t)
		refused := errors.New("connection refused")
		servers["b"].Intercept(func(context.Context, memlock.Command) error { return refused })
		for _, name := range []string{"a", "c"} {
			lock, err := m.Acquire(bg, keysOn(m, name, 1)[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := lock.Release(bg); err != nil {
				t.Error(err)
			}
		}
		key := keysOn(m, "b", 1)[0]
		_, err := m.Acquire(bg, key)
		_, _, tryErr := m.TryAcquire(bg, key)
		for op, err := range map[string]error{"acquire": err, "try": tryErr} {
			wraps(t, err, refused)
			var typed *ports.LockError
			if !errors.As(err, &typed) || typed.Op != op || typed.Key != key || !strings.Contains(err.Error(), `shard "b"`) {
				t.Errorf("%s: %v", op, err)
			}
		}
	})
}

func TestALossOnOneShardLeavesTheHoldsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newShardServers("a", "b", "c")
		m := servers.manager(t)
		locks := make(map[string]ports.Lock)
		var want []string
		for _, name := range []string{"c", "a", "b"} {
			key := keysOn(m, name, 1)[0]
			lock, err := m.Acquire(bg, key)
			if err != nil {
				t.Fatal(err)
			}
			locks[name], want = lock, append(want, key)
			time.Sleep(time.Millisecond)
		}
		var got []string
		for _, info := range m.Held() {
			got = append(got, info.Key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("held %v, want %v, oldest first", got, want)
		}
		servers["b"].Kill(locks["b"].Info().PID)
		<-locks["b"].Done()
		if m.HeldCount() != 2 || locks["a"].Err() != nil || locks["c"].Err() != nil {
			t.Errorf("%d are held: %v, %v", m.HeldCount(), locks["a"].Err(), locks["c"].Err())
		}
		err := m.Release(bg, locks["b"].Info().Key)
		if wraps(t, err, ports.ErrLost); !strings.Contains(err.Error(), `shard "b"`) {
			t.Error(err)
		}
		if n, err := m.ReleaseAll(bg); n != 2 || err != nil || servers.held() != 0 {
			t.Errorf("released %d (%v), %d are held", n, err, servers.held())
		}
	})
}

func TestAShardedManagerTellsEvictsVerifiesAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newShardServers("a", "b", "c")
		m := servers.manager(t, pglock.WithHolderID("me"))
		if err := m.Verify(bg); err != nil {
			t.Error(err)
		}
		key := keysOn(m, "b", 1)[0]
		lock, err := m.Acquire(bg, key)
		if err != nil {
			t.Fatal(err)
		}
		if in, err := m.Inspect(bg, key); err != nil || len(in.Holders) != 1 || in.Holders[0].HolderID != "me" {
			t.Errorf("%v %v", in, err)
		}
		if n, err := m.Evict(bg, key); n != 1 || err != nil {
			t.Errorf("evicted %d, %v", n, err)
		}
		<-lock.Done()
		wraps(t, lock.Err(), ports.ErrLost)
		for _, name := range []string{"a", "b", "c"} {
			if _, err := m.Acquire(bg, keysOn(m, name, 1)[0]); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Close(bg); err != nil || servers.held() != 0 || m.HeldCount() != 0 {
			t.Errorf("%v; %d are held", err, servers.held())
		}
		_, err = m.Acquire(bg, key)
		wraps(t, err, ports.ErrClosed)
	})
}

func TestAShardMayHaveAManagerThatCanLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		m := pglock.Sharded(pglock.Shard{Name: "plain", Locks: struct{ ports.LockManager }{manager(t, server.Pool())}})
		_, inspected := m.Inspect(bg, "k")
		_, evicted := m.Evict(bg, "k")
		_, all := m.AcquireAll(bg, []string{"k"})
		for _, err := range []error{m.Verify(bg), inspected, evicted, all} {
			if wraps(t, err, ports.ErrUnsupported); !strings.Contains(err.Error(), `shard "plain"`) {
				t.Error(err)
			}
		}
		if _, err := m.Acquire(bg, "k"); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(bg); err != nil || server.Locks() != 0 {
			t.Errorf("%v; %d are held", err, server.Locks())
		}
	})
}

func TestASetOverShardsIsOneHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newShardServers("a", "b", "c")
		m, rival := servers.manager(t), servers.manager(t)
		keys := append(keysOn(m, "c", 2), keysOn(m, "a", 2)...)
		set, err := m.AcquireAll(bg, keys)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(set.Infos()); n != 4 || len(set.Parts()) != 2 || servers.held() != 4 || m.HeldCount() != 4 {
			t.Errorf("%d locks in %d parts, %d are held", n, len(set.Parts()), servers.held())
		}
		if set.Info().Key != set.Parts()[0].Info().Key || m.ShardOf(set.Info().Key).Name != "a" {
			t.Errorf("the first is %+v", set.Info())
		}
		for _, key := range keys {
			if _, acquired, err := rival.TryAcquire(bg, key); acquired || err != nil {
				t.Errorf("%q: %v %v", key, acquired, err)
			}
		}
		ctx, cancel := pglock.Context(bg, set)
		defer cancel()
		if err := set.Release(bg); err != nil || servers.held() != 0 || !errors.Is(set.Err(), ports.ErrReleased) {
			t.Errorf("%v, %v; %d are held", err, set.Err(), servers.held())
		}
		<-ctx.Done()
		wraps(t, context.Cause(ctx), ports.ErrReleased)
		if err := set.Release(bg); err != nil {
			t.Error(err)
		}
	})
}

func TestASetOverShardsIsLostWithAnyOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newShardServers("a", "b", "c")
		m := servers.manager(t)
		set, err := m.AcquireAll(bg, append(keysOn(m, "a", 1), keysOn(m, "b", 1)...))
		if err != nil {
			t.Fatal(err)
		}
		servers["b"].Kill(set.Parts()[1].Info().PID)
		<-set.Done()
		wraps(t, set.Err(), ports.ErrLost)
		if servers.held() != 1 {
			t.Errorf("%d are held until the work has stopped, want 1", servers.held())
		}
		wraps(t, set.Release(bg), ports.ErrLost)
		if servers.held() != 0 || m.HeldCount() != 0 {
			t.Errorf("%d are held", servers.held())
		}
	})
}

func TestASetOverShardsThatCannotBeHadHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newShardServers("a", "b", "c")
		m, rival := servers.manager(t), servers.manager(t)
		keys := append(keysOn(m, "a", 2), keysOn(m, "c", 1)...)
		theirs, err := rival.Acquire(bg, keys[2])
		if err != nil {
			t.Fatal(err)
		}
		for _, timeout := range []time.Duration{0, time.Minute} {
			start := time.Now()
			_, err := m.AcquireAll(bg, keys, ports.WithTimeout(timeout), ports.WithHoldAtLeast(time.Hour))
			wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
			if took := time.Since(start); took != timeout || m.HeldCount() != 0 || servers.held() != 1 {
				t.Errorf("after %v of %v, %d are held", took, timeout, servers.held())
			}
		}
		// The time that is spent on one shard is not there for the next.
		first, err := rival.Acquire(bg, keys[0])
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(40*time.Second, func() { first.Release(bg) })
		start := time.Now()
		_, err = m.AcquireAll(bg, keys, ports.WithTimeout(time.Minute))
		if wraps(t, err, ports.ErrNotAcquired); time.Since(start) != time.Minute {
			t.Errorf("it took %v", time.Since(start))
		}
		// A part that is lost during the wait for another is not handed out.
		time.AfterFunc(time.Second, func() {
			held := m.Held()
			servers["a"].Kill(held[0].PID)
		})
		time.AfterFunc(5*time.Second, func() { theirs.Release(bg) })
		_, err = m.AcquireAll(bg, keys)
		if wraps(t, err, ports.ErrLost); m.HeldCount() != 0 || servers.held() != 0 {
			t.Errorf("%d are held", servers.held())
		}
		if _, err := m.AcquireAll(bg, nil); err == nil || !strings.Contains(err.Error(), "no keys") {
			t.Error(err)
		}
	})
}

func TestSetsOverShardsDoNotDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := newShardServers("a", "b", "c")
		view := servers.manager(t)
		var keys []string
		for _, name := range []string{"c", "a", "b"} {
			keys = append(keys, keysOn(view, name, 2)...)
		}
		inside := 0 // guarded by the locks
		var wg sync.WaitGroup
		for process := range 3 {
			m := servers.manager(t)
			for worker := range 2 {
				order := slices.Concat(keys[2*process:], keys[:2*process]) // overlapping in every order
				if worker == 1 {
					slices.Reverse(order)
				}
				wg.Go(func() {
					for range 20 {
						set, err := m.AcquireAll(bg, order)
						if err != nil {
							t.Error(err)
							return
						}
						if inside++; inside != 1 {
							t.Error("two are inside")
						}
						time.Sleep(10 * time.Millisecond)
						inside--
						if err := set.Release(bg); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
	})
}

func TestAListOfShardsIsChecked(t *testing.T) {
	for name, shards := range map[string][]pglock.Shard{
		"no shards":        nil,
		"no manager":       {{Name: "a"}},
		"one name for two": {{Name: "a", Locks: idle()}, {Name: "b", Locks: idle()}, {Name: "a", Locks: idle()}},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "pglock.Sharded: ") {
					t.Errorf("recovered %q", text)
				}
			}()
			pglock.Sharded(shards...)
			t.Error("it was accepted")
		})
	}
}
