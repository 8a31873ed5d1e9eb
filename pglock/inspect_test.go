package pglock_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

func TestInspectTellsWhoHoldsAndWhoWaits(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		a := manager(t, server.Pool(), pglock.WithHolderID("a"), pglock.WithNamespace("app:"))
		b := manager(t, server.Pool(), pglock.WithHolderID("b"), pglock.WithNamespace("app:"))
		c := manager(t, server.Pool(), pglock.WithHolderID("c"), pglock.WithNamespace("app:"))

		in, err := c.Inspect(bg, "k")
		if err != nil || in.Key != "k" || in.ID != c.KeyID("k") || len(in.Holders)+len(in.Waiters) != 0 {
			t.Errorf("of a free key: %+v %v", in, err)
		}
		since := time.Now()
		shared := []ports.Lock{acquire(t, a, "k", ports.WithShared()), acquire(t, b, "k", ports.WithShared())}
		go func() {
			if lock, err := c.Acquire(bg, "k"); err == nil {
				lock.Release(bg)
			}
		}()
		time.Sleep(1200 * time.Millisecond) // in the middle of a slice
		in, err = c.Inspect(bg, "k")
		if err != nil || len(in.Holders) != 2 || len(in.Waiters) != 1 {
			t.Fatalf("%+v %v", in, err)
		}
		for i, h := range in.Holders {
			if h.PID != shared[i].Info().PID || h.HolderID != shared[i].Info().HolderID || !h.Granted || h.Mode != ports.Shared || !h.Since.Equal(since) || h.Database != "memlock" {
				t.Errorf("holder %d: %+v", i, h)
			}
		}
		if w := in.Waiters[0]; w.Granted || w.Mode != ports.Exclusive || w.PID == 0 || time.Since(w.Since) > time.Second {
			t.Errorf("waiter: %+v", w)
		}
		if n := c.Stats().Sessions; n != 1 {
			t.Errorf("the inspection has pinned sessions: %d", n)
		}
		for _, lock := range shared {
			lock.Release(bg)
		}
	})
}

func TestInspectAllTellsOfEveryLock(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		a, b := manager(t, server.Pool(), pglock.WithHolderID("a")), manager(t, server.Pool())
		if all, err := b.InspectAll(bg); err != nil || all == nil || len(all) != 0 {
			t.Errorf("of no locks: %#v %v", all, err)
		}
		locks := []ports.Lock{acquire(t, a, "k", ports.WithShared()), acquire(t, a, "l"), acquire(t, a, "m")}
		go func() {
			if lock, err := b.Acquire(bg, "k"); err == nil {
				lock.Release(bg)
			}
		}()
		time.Sleep(1200 * time.Millisecond) // in the middle of a slice
		all, err := b.InspectAll(bg)
		if err != nil || len(all) != len(locks) {
			t.Fatalf("%+v %v", all, err)
		}
		for i, in := range all {
			if i > 0 && in.ID <= all[i-1].ID {
				t.Errorf("IDs out of order: %d after %d", in.ID, all[i-1].ID)
			}
		}
		for _, lock := range locks {
			one, err := b.Inspect(bg, lock.Info().Key)
			one.Key = "" // the server does not know it
			if err != nil || !slices.ContainsFunc(all, func(in pglock.Inspection) bool { return reflect.DeepEqual(in, one) }) {
				t.Errorf("%+v (%v) is not in %+v", one, err, all)
			}
			lock.Release(bg)
		}
	})
}

func TestAnInspectionIsReadableByPeopleAndCode(t *testing.T) {
	in := pglock.Inspection{
		Key: "invoices\n" + strings.Repeat("x", 1<<20), ID: 42,
		Holders: []ports.SessionInfo{{PID: 7, Granted: true, HolderID: "worker\"\x1b[31m", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)), User: "app", State: "idle"}},
		Waiters: []ports.SessionInfo{{PID: 8, Mode: ports.Shared}},
	}
	text := in.String()
	for _, want := range []string{"lock ID 42", "1 holders, 1 waiters", "process 7 holds it, exclusive, since 2026-01-02T02:04:05Z", `user "app"`, "process 8 waits for it, shared"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	if strings.Count(text, "\n") != 3 || len(text) > 1000 || strings.Contains(text, "\x1b") {
		t.Errorf("%d lines, %d bytes: %.300q", strings.Count(text, "\n"), len(text), text)
	}
	encoded, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"id":42`, `"pid":7`, `"granted":true`, `"mode":"exclusive"`, `"mode":"shared"`, `"state":"idle"`, `"since":"2026-01-02T03:04:05+01:00"`} {
		if !strings.Contains(string(encoded), want) {
			t.Errorf("%s is not in %s", want, encoded[len(encoded)-400:])
		}
	}
	if strings.Count(string(encoded), "since") != 1 {
		t.Error("a time that is not known is there all the same")
	}
}

func TestEvictEndsEveryHolderAndTellsIt(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		a, b, operator := manager(t, server.Pool()), manager(t, server.Pool()), manager(t, server.Pool())
		locks := []ports.Lock{acquire(t, a, "k", ports.WithShared()), acquire(t, b, "k", ports.WithShared())}
		other := acquire(t, a, "other")
		got := make(chan ports.Lock, 1)
		go func() {
			lock, _ := operator.Acquire(bg, "k")
			got <- lock
		}()
		time.Sleep(1200 * time.Millisecond)
		if n, err := operator.Evict(bg, "k"); n != 2 || err != nil {
			t.Errorf("%d %v", n, err)
		}
		for _, lock := range locks {
			<-lock.Done()
			wraps(t, lock.Err(), ports.ErrLost)
		}
		if other.Err() != nil {
			t.Error(other.Err())
		}
		(<-got).Release(bg) // the waiter was not evicted
		if n, err := operator.Evict(bg, "k"); n != 0 || err != nil {
			t.Errorf("nobody holds it: %d %v", n, err)
		}
		other.Release(bg)
	})
}

// inspectorPool answers inspections with what a test says.
type inspectorPool struct {
	*memlock.Pool
	infos    []ports.SessionInfo
	err      error
	evicted  map[int]bool
	evictErr error
}

func (p *inspectorPool) Inspect(context.Context, int64) ([]ports.SessionInfo, error) {
	return p.infos, p.err
}

func (p *inspectorPool) Evict(_ context.Context, _ int64, pid int) (bool, error) {
	if pid%2 == 0 {
		return false, p.evictErr
	}
	return p.evicted[pid], nil
}

func TestEvictSaysWhatItCouldNotDo(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		denied := errors.New("permission denied to terminate process")
		pool := &inspectorPool{Pool: server.Pool(), evictErr: denied, evicted: map[int]bool{1: true, 5: true}, infos: []ports.SessionInfo{
			{PID: 1, Granted: true}, {PID: 2, Granted: true}, {PID: 3, Granted: true}, {PID: 5, Granted: true}, {PID: 7}, {PID: 8},
		}}
		m := pglock.NewManager(pool)
		n, err := m.Evict(bg, "k")
		wraps(t, err, denied)
		var typed *ports.LockError
		if n != 2 || !errors.As(err, &typed) || typed.Op != "evict" || typed.Key != "k" {
			t.Errorf("%d %v", n, err)
		}
		// 3 had gone by itself, 7 and 8 only wait.
		pool.evictErr = nil
		if n, err := m.Evict(bg, "k"); n != 2 || err != nil {
			t.Errorf("%d %v", n, err)
		}

		pool.err = errors.New("read: connection reset by peer")
		for _, call := range []func() error{
			func() error { _, err := m.Inspect(bg, "k"); return err },
			func() error { _, err := m.Evict(bg, "k"); return err },
		} {
			err := call()
			wraps(t, err, pool.err)
			if !errors.As(err, &typed) || typed.Key != "k" {
				t.Errorf("%v", err)
			}
		}
	})
}

func TestInspectOfAPoolThatCannotTellIsUnsupported(t *testing.T) {
	bubble(t, func(t *testing.T, server *memlock.Server) {
		m := pglock.NewManager(struct{ ports.SessionPool }{server.Pool()})
		_, err := m.Inspect(bg, "k")
		wraps(t, err, ports.ErrUnsupported)
		n, err := m.Evict(bg, "k")
		wraps(t, err, ports.ErrUnsupported)
		var typed *ports.LockError
		if n != 0 || !errors.As(err, &typed) || typed.Key != "k" {
			t.Errorf("%d %v", n, err)
		}
	})
}
