package memlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// Two managers on one server exclude each other like two processes on one
// database.
func ExampleNew() {
	ctx := context.Background()
	server := memlock.NewServer()
	here, elsewhere := memlock.New(server, pglock.WithHolderID("here")), memlock.New(server)
	defer here.Close(ctx)
	defer elsewhere.Close(ctx)

	lock, err := here.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, acquired, err := elsewhere.TryAcquire(ctx, "invoices")
	fmt.Println("while it is held:", acquired, err)

	if err := lock.Release(ctx); err != nil {
		fmt.Println(err)
		return
	}
	_, acquired, err = elsewhere.TryAcquire(ctx, "invoices")
	fmt.Println("after its release:", acquired, err)
	// Output:
	// while it is held: false <nil>
	// after its release: true <nil>
}

// A test looks at the server from outside, instead of trusting the lock.
func ExampleNewServer() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("locks:", server.Locks(), "sessions:", server.Sessions())
	if err := lock.Release(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("locks:", server.Locks(), "sessions:", server.Sessions()) // one idle in the pool
	fmt.Println("unlocks:", server.Commands("unlock"))
	// Output:
	// locks: 1 sessions: 1
	// locks: 0 sessions: 1
	// unlocks: 1
}

// Two servers are two databases: the same key is another lock in each.
func ExampleServer() {
	ctx := context.Background()
	for _, server := range []*memlock.Server{memlock.NewServer(), memlock.NewServer()} {
		locks := memlock.New(server)
		defer locks.Close(ctx)
		_, acquired, err := locks.TryAcquire(ctx, "invoices")
		fmt.Println(acquired, err)
	}
	// Output:
	// true <nil>
	// true <nil>
}

func ExampleServer_Holders() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	for range 2 {
		if _, err := locks.Acquire(ctx, "catalogue", ports.WithShared()); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, holder := range server.Holders(locks.KeyID("catalogue")) {
		fmt.Println(holder.PID, holder.Mode)
	}
	// Output:
	// 1 shared
	// 2 shared
}

// The body of a test that has somebody wait, in virtual time: synctest.Wait
// returns when the waiter is in the queue.
func ExampleServer_Waiters() {
	var t *testing.T // the test's

	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		here, elsewhere := memlock.New(server), memlock.New(server)
		defer here.Close(t.Context())
		defer elsewhere.Close(t.Context())

		lock, err := here.Acquire(t.Context(), "invoices")
		if err != nil {
			t.Fatal(err)
		}
		waited := make(chan error)
		go func() {
			_, err := elsewhere.Acquire(t.Context(), "invoices")
			waited <- err
		}()
		synctest.Wait()
		if n := server.Waiters(here.KeyID("invoices")); n != 1 {
			t.Errorf("%d sessions wait, want 1", n)
		}
		if err := lock.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
}

// Does the job stop when its lock is lost?
func ExampleServer_Kill() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	err := pglock.Do(ctx, locks, "invoices", func(ctx context.Context) error {
		lock, ok := pglock.FromContext(ctx)
		if !ok {
			return errors.New("not under a lock")
		}
		fmt.Println("killed:", server.Kill(lock.Info().PID))
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println("lost:", errors.Is(err, ports.ErrLost))
	fmt.Println("no such session:", server.Kill(99))
	// Output:
	// killed: true
	// lost: true
	// no such session: false
}

// A session that lives on without its locks is found out by the release, at the
// latest.
func ExampleServer_DropLocks() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	server.DropLocks(lock.Info().PID)
	fmt.Println("holders:", len(server.Holders(lock.Info().ID)))
	fmt.Println("lost:", errors.Is(lock.Release(ctx), ports.ErrLost))
	// Output:
	// holders: 0
	// lost: true
}

// How does the code take it that the answer to an unlock never comes?
func ExampleServer_Intercept() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	reset := errors.New("connection reset by peer")
	server.Intercept(func(ctx context.Context, c memlock.Command) error {
		if c.Op == "unlock" && c.Done {
			return reset
		}
		return nil
	})

	err = lock.Release(ctx)
	fmt.Println("unconfirmed:", errors.Is(err, reset))
	fmt.Println("sessions ended in doubt:", locks.Stats().Destroyed)
	fmt.Println("locks left behind:", server.Locks())
	// Output:
	// unconfirmed: true
	// sessions ended in doubt: 1
	// locks left behind: 0
}

// A server with room for ten locks, of which one manager takes five at most.
func ExampleServer_LimitLocks() {
	ctx := context.Background()
	server := memlock.NewServer()
	server.LimitLocks(10)
	locks := memlock.New(server, pglock.WithSharedSessions(1))
	defer locks.Close(ctx)

	for i := range 6 {
		_, err := locks.Acquire(ctx, fmt.Sprint("partition ", i))
		fmt.Println(i, errors.Is(err, ports.ErrTooManyLocks))
	}
	// Output:
	// 0 false
	// 1 false
	// 2 false
	// 3 false
	// 4 false
	// 5 true
}

// A pool of one connection, as with db.SetMaxOpenConns(1), is too small for a
// lock and the queries of its holder.
func ExampleWithLimit() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool(memlock.WithLimit(1))
	locks := pglock.NewManager(pool)
	defer locks.Close(ctx)

	_, err := locks.Acquire(ctx, "invoices")
	fmt.Println("exhausted:", errors.Is(err, ports.ErrPoolExhausted))
	// Output:
	// exhausted: true
}

// With most drivers the end of a session goes unnoticed until the next command
// on it: a check, or the release.
func ExampleWithoutWatch() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := pglock.NewManager(server.Pool(memlock.WithoutWatch()))
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Kill(lock.Info().PID)
	fmt.Println("lost:", errors.Is(lock.Release(ctx), ports.ErrLost))
	// Output:
	// lost: true
}

// A test looks at the locks of a manager that has those of two integers.
func ExampleServer_Pairs() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server, pglock.WithTwoIntegerKeys(func(string) (int32, int32) { return 7, 42 }))
	defer locks.Close(ctx)

	if _, err := locks.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("of one number:", len(server.Holders(ports.PairID(7, 42))))
	fmt.Println("of two:", len(server.Pairs().Holders(ports.PairID(7, 42))))
	// Output:
	// of one number: 0
	// of two: 1
}

// A manager with WithTwoIntegerKeys turns its pool into one of pairs by itself.
func ExamplePool_Pairs() {
	pool := memlock.NewServer().Pool(memlock.WithLimit(4)).Pairs()
	inUse, limit := pool.Usage()
	fmt.Println(inUse, "of", limit)
	// Output:
	// 0 of 4
}

// A pool can be asked, and used without a manager.
func ExampleServer_Pool() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool(memlock.WithLimit(4))

	session, err := pool.Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	inUse, limit := pool.Usage()
	fmt.Println(inUse, "of", limit)
	session.Recycle(ctx)
	inUse, limit = pool.Usage()
	fmt.Println(inUse, "of", limit)
	// Output:
	// 1 of 4
	// 0 of 4
}

// A test whose locks must all be given back, whatever the code under test does.
func ExampleServer_Locks() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	err := pglock.Do(ctx, locks, "invoices", func(context.Context) error { return errors.New("no such invoice") })
	fmt.Println(err)
	fmt.Println("left behind:", server.Locks())
	// Output:
	// no such invoice
	// left behind: 0
}

func ExampleServer_Sessions() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server, pglock.WithSharedSessions(1))
	defer locks.Close(ctx)

	for i := range 10 {
		if _, err := locks.Acquire(ctx, fmt.Sprint("partition ", i)); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(server.Locks(), "locks on", server.Sessions(), "session")
	// Output:
	// 10 locks on 1 session
}

// How many round trips does it cost?
func ExampleServer_Commands() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	ran, err := pglock.TryDo(ctx, locks, "invoices", func(context.Context) error { return nil })
	fmt.Println(ran, err)
	fmt.Println(server.Commands("lock"), "lock,", server.Commands("unlock"), "unlock,", server.Commands("check"), "check")
	// Output:
	// true <nil>
	// 1 lock, 1 unlock, 0 check
}

// The server's side of a lock, against what the holder was told.
func ExampleHolder() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	info := lock.Info()
	fmt.Println(server.Holders(info.ID)[0] == memlock.Holder{PID: info.PID, Mode: ports.Exclusive})
	// Output:
	// true
}

// A log of what is asked of the server.
func ExampleCommand() {
	ctx := context.Background()
	server := memlock.NewServer()
	server.Intercept(func(_ context.Context, c memlock.Command) error {
		if !c.Done {
			fmt.Println("process", c.PID, "is asked to", c.Op, c.ID)
		}
		return nil
	})
	locks := memlock.New(server)
	defer locks.Close(ctx)

	err := pglock.Do(ctx, locks, "invoices", func(context.Context) error { return nil })
	fmt.Println(err)
	// Output:
	// process 1 is asked to lock 5268556066836248654
	// process 1 is asked to unlock 5268556066836248654
	// <nil>
}

// The set-up of a test: a small pool, on a driver that does not notice the end of
// a session.
func ExamplePoolOption() {
	opts := []memlock.PoolOption{memlock.WithLimit(5), memlock.WithoutWatch()}
	locks := pglock.NewManager(memlock.NewServer().Pool(opts...))
	defer locks.Close(context.Background())

	fmt.Println("at most", locks.Stats().MaxSessions, "sessions for locks")
	// Output:
	// at most 4 sessions for locks
}

// Two pools on one server are two processes.
func ExamplePool() {
	ctx := context.Background()
	server := memlock.NewServer()
	for _, pool := range []*memlock.Pool{server.Pool(), server.Pool()} {
		session, err := pool.Open(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer session.Destroy()
		grant, err := session.Lock(ctx, ports.LockRequest{ID: 42})
		fmt.Println(grant.Granted, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

// A session that was given back is used again.
func ExamplePool_Open() {
	ctx := context.Background()
	server := memlock.NewServer()
	pool := server.Pool()
	for range 2 {
		session, err := pool.Open(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		session.Recycle(ctx)
	}
	fmt.Println("sessions:", server.Sessions())
	// Output:
	// sessions: 1
}

// Each lock pins a session of the pool; others have the rest.
func ExamplePool_Usage() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool(memlock.WithLimit(5))
	locks := pglock.NewManager(pool, pglock.WithoutVerification())
	defer locks.Close(ctx)

	for _, key := range []string{"invoices", "payments"} {
		if _, err := locks.Acquire(ctx, key); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(pool.Usage())
	// Output:
	// 2 5
}

// The pool's own methods serve a manager's Inspect, InspectAll and Evict, and
// take IDs for keys.
func ExamplePool_Inspect() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool()
	locks := pglock.NewManager(pool, pglock.WithHolderID("worker-1"), pglock.WithoutVerification())
	defer locks.Close(ctx)
	if _, err := locks.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}

	sessions, err := pool.Inspect(ctx, locks.KeyID("invoices"))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range sessions {
		fmt.Println(s.HolderID, s.Mode, "granted:", s.Granted)
	}
	// Output:
	// worker-1 exclusive granted: true
}

func ExamplePool_List() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool()
	locks := pglock.NewManager(pool, pglock.WithoutVerification())
	defer locks.Close(ctx)
	if _, err := locks.AcquireAll(ctx, []string{"users", "orders"}); err != nil {
		fmt.Println(err)
		return
	}

	all, err := pool.List(ctx)
	fmt.Println(len(all), "locks", err)
	// Output:
	// 2 locks <nil>
}

// A session is ended only if it has that lock.
func ExamplePool_Evict() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool()
	locks := pglock.NewManager(pool, pglock.WithoutVerification())
	defer locks.Close(ctx)
	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}

	info := lock.Info()
	fmt.Println(pool.Evict(ctx, locks.KeyID("payments"), info.PID))
	fmt.Println(pool.Evict(ctx, info.ID, info.PID))
	<-lock.Done()
	fmt.Println("lost:", errors.Is(lock.Err(), ports.ErrLost))
	// Output:
	// false <nil>
	// true <nil>
	// lost: true
}

func ExamplePool_Holds() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool()
	locks := pglock.NewManager(pool, pglock.WithoutVerification())
	defer locks.Close(ctx)
	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}

	info := lock.Info()
	fmt.Println(pool.Holds(ctx, info.PID, []int64{info.ID}))
	fmt.Println(lock.Release(ctx))
	fmt.Println(pool.Holds(ctx, info.PID, []int64{info.ID}))
	// Output:
	// true <nil>
	// <nil>
	// false <nil>
}
