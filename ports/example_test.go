package ports_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// A service asks for the contract, and main decides what is behind it.
func ExampleDistributedLock() {
	reindex := func(ctx context.Context, locks ports.DistributedLock) (err error) {
		lock, err := locks.Acquire(ctx, "reindex", ports.WithTimeout(30*time.Second))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lock.Release(ctx)) }()
		fmt.Println("reindexing, held:", locks.IsHeld("reindex"))
		return nil
	}

	ctx := context.Background()
	locks := memlock.New(memlock.NewServer()) // in production pgxlock.New(db)
	defer locks.Close(ctx)
	if err := reindex(ctx, locks); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("done, held:", locks.IsHeld("reindex"))
	// Output:
	// reindexing, held: true
	// done, held: false
}

// A registry is enough for a health page.
func ExampleLockRegistry() {
	report := func(registry ports.LockRegistry) {
		fmt.Println("held:", registry.HeldCount())
		for _, info := range registry.Held() {
			fmt.Println(info.HolderID, info.Key, info.Mode)
		}
	}

	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithHolderID("worker-1"))
	defer locks.Close(ctx)
	if _, err := locks.Acquire(ctx, "catalogue", ports.WithShared()); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := locks.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}
	report(locks)
	// Output:
	// held: 2
	// worker-1 catalogue shared
	// worker-1 invoices exclusive
}

// A decorator embeds the contract and changes the one method that it is about.
// The suite portstest.TestManager tells whether it is still a LockManager.
func ExampleLockManager() {
	ctx := context.Background()
	var locks ports.LockManager = memlock.New(memlock.NewServer())
	locks = impatient{locks}

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)

	released, err := locks.ReleaseAll(ctx)
	fmt.Println(released, err)
	// Output:
	// 1 <nil>
}

// impatient bounds each wait that its caller did not bound.
type impatient struct{ ports.LockManager }

func (i impatient) Acquire(ctx context.Context, key string, opts ...ports.AcquireOption) (ports.Lock, error) {
	opts = append([]ports.AcquireOption{ports.WithTimeout(time.Minute)}, opts...)
	return i.LockManager.Acquire(ctx, key, opts...)
}

func ExampleLock() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithHolderID("worker-1"))
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	info := lock.Info()
	fmt.Printf("%s has %q in database %s\n", info.HolderID, info.Key, info.Database)
	fmt.Println("while it is held:", lock.Err())

	if err := lock.Release(ctx); err != nil {
		fmt.Println(err)
		return
	}
	<-lock.Done() // closed, however the hold ended
	fmt.Println("afterwards:", errors.Is(lock.Err(), ports.ErrReleased))
	fmt.Println("once more:", lock.Release(ctx))
	// Output:
	// worker-1 has "invoices" in database memlock
	// while it is held: <nil>
	// afterwards: true
	// once more: <nil>
}

// LockInfo is a value: it can be kept and logged after the hold has ended.
func ExampleLockInfo() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithHolderID("worker-1"))
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)

	info := lock.Info()
	fmt.Println(info.Key, info.Mode, info.HolderID, info.Database)
	fmt.Println("server process:", info.PID)
	fmt.Println("ID in pg_locks:", info.ID == locks.KeyID("invoices"))
	fmt.Println("acquired just now:", time.Since(info.AcquiredAt) < time.Hour)
	// Output:
	// invoices exclusive worker-1 memlock
	// server process: 1
	// ID in pg_locks: true
	// acquired just now: true
}

func ExampleMode() {
	var mode ports.Mode // Exclusive
	fmt.Println(mode, mode == ports.Exclusive)
	fmt.Println(ports.Shared.String())
	// Output:
	// exclusive true
	// shared
}

func ExampleMode_String() {
	fmt.Println(ports.Exclusive.String(), ports.Shared.String())
	// Output:
	// exclusive shared
}

// A Mode is a word in JSON and in configuration.
func ExampleMode_MarshalText() {
	text, err := json.Marshal(map[string]ports.Mode{"catalogue": ports.Shared})
	fmt.Println(string(text), err)
	// Output:
	// {"catalogue":"shared"} <nil>
}

func ExampleMode_UnmarshalText() {
	var modes map[string]ports.Mode
	fmt.Println(json.Unmarshal([]byte(`{"catalogue":"shared"}`), &modes), modes["catalogue"] == ports.Shared)

	var mode ports.Mode
	fmt.Println(mode.UnmarshalText([]byte("reader")))
	// Output:
	// <nil> true
	// ports: unknown lock mode "reader"; it is exclusive or shared
}

// A resource that remembers the greatest token refuses a holder that was
// overtaken without knowing it.
func ExampleToken() {
	var seen ports.Token
	write := func(token ports.Token, what string) error {
		if token < seen {
			return fmt.Errorf("%s: token %d is older than %d", what, token, seen)
		}
		seen = token
		return nil
	}
	fmt.Println(write(34, "the new holder"))
	fmt.Println(write(33, "the old holder, after a long pause"))
	// Output:
	// <nil>
	// the old holder, after a long pause: token 33 is older than 34
}

func ExampleWithTimeout() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices", ports.WithTimeout(5*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)

	// Locks are not re-entrant, so a second hold of the key would have to wait.
	// Zero means one attempt.
	_, err = locks.Acquire(ctx, "invoices", ports.WithTimeout(0))
	fmt.Println("not acquired:", errors.Is(err, ports.ErrNotAcquired))
	fmt.Println("deadline:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// not acquired: true
	// deadline: true
}

// Many may read a catalogue while nobody rebuilds it.
func ExampleWithShared() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	for range 2 {
		reader, err := locks.Acquire(ctx, "catalogue", ports.WithShared())
		if err != nil {
			fmt.Println(err)
			return
		}
		defer reader.Release(ctx)
	}
	fmt.Println("readers:", locks.HeldCount())

	_, acquired, err := locks.TryAcquire(ctx, "catalogue")
	fmt.Println("writer:", acquired, err)
	// Output:
	// readers: 2
	// writer: false <nil>
}

// A thousand workers that wait for keys which stay held for minutes need not
// pin a thousand connections.
func ExampleWithPolling() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "tenant-42", ports.WithPolling(10*time.Second), ports.WithTimeout(time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)
	fmt.Println("held:", locks.IsHeld("tenant-42"))
	// Output:
	// held: true
}

// A holder that was overtaken without knowing it has the smaller token.
func ExampleWithFencing() {
	ctx := context.Background()
	server := memlock.NewServer()
	here, elsewhere := memlock.New(server), memlock.New(server)
	defer here.Close(ctx)
	defer elsewhere.Close(ctx)

	before, err := here.Acquire(ctx, "invoices", ports.WithFencing())
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Kill(before.Info().PID) // as a failover does
	after, err := elsewhere.Acquire(ctx, "invoices", ports.WithFencing())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("greater:", after.Info().Token > before.Info().Token)

	plain, err := elsewhere.Acquire(ctx, "catalogue")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("not asked for:", plain.Info().Token)
	// Output:
	// greater: true
	// not asked for: 0
}

// A job that is done in a millisecond must not run again on the replica whose
// clock is a little behind.
func ExampleWithHoldAtLeast() {
	ctx := context.Background()
	server := memlock.NewServer()
	replica1, replica2 := memlock.New(server), memlock.New(server)
	defer replica1.Close(ctx)
	defer replica2.Close(ctx)

	lock, acquired, err := replica1.TryAcquire(ctx, "every-minute", ports.WithHoldAtLeast(30*time.Second))
	if err != nil || !acquired {
		fmt.Println(acquired, err)
		return
	}
	fmt.Println("replica 1 runs it")
	if err := lock.Release(ctx); err != nil { // returns at once
		fmt.Println(err)
		return
	}

	_, acquired, err = replica2.TryAcquire(ctx, "every-minute", ports.WithHoldAtLeast(30*time.Second))
	fmt.Println("replica 2 runs it:", acquired, err)
	// Output:
	// replica 1 runs it
	// replica 2 runs it: false <nil>
}

// An implementation of the contract reads the options of a call.
func ExampleNewAcquireOptions() {
	opts := ports.NewAcquireOptions(ports.WithShared(), ports.WithTimeout(3*time.Second))
	fmt.Println(opts.Mode, opts.Timeout)

	opts = ports.NewAcquireOptions()
	fmt.Println(opts.Mode, "bounded:", opts.Timeout >= 0)
	// Output:
	// shared 3s
	// exclusive bounded: false
}

// A double of a lock in a test looks at what it was asked for.
func ExampleAcquireOptions() {
	asked := func(opts ...ports.AcquireOption) string {
		o := ports.NewAcquireOptions(opts...)
		if o.Timeout == 0 {
			return "without a wait"
		}
		return fmt.Sprintf("polling every %v, fenced: %t", o.Polling, o.Fencing)
	}
	fmt.Println(asked(ports.WithTimeout(0)))
	fmt.Println(asked(ports.WithPolling(time.Second), ports.WithFencing()))
	// Output:
	// without a wait
	// polling every 1s, fenced: true
}

// An option of one's own is made of others.
func ExampleAcquireOption() {
	background := func(o *ports.AcquireOptions) {
		ports.WithPolling(5 * time.Second)(o)
		ports.WithTimeout(10 * time.Minute)(o)
	}

	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)
	lock, err := locks.Acquire(ctx, "vacuum-archive", background)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lock.Release(ctx))
	// Output:
	// <nil>
}

// What to do about an error depends on which of them it is.
func Example_notAcquired() {
	ctx := context.Background()
	server := memlock.NewServer()
	here, elsewhere := memlock.New(server), memlock.New(server)
	defer here.Close(ctx)
	defer elsewhere.Close(ctx)
	if _, err := elsewhere.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}

	lock, err := here.Acquire(ctx, "invoices", ports.WithTimeout(0))
	switch {
	case errors.Is(err, ports.ErrNotAcquired):
		fmt.Println("someone else does it; come back later")
	case errors.Is(err, ports.ErrPoolExhausted):
		fmt.Println("this process is short of connections:", err)
	case errors.Is(err, ports.ErrUnsafeConnection):
		fmt.Println("the set-up cannot exclude anybody; stop:", err)
	case errors.Is(err, ports.ErrClosed):
		fmt.Println("we are shutting down")
	case err != nil:
		fmt.Println("the database has a problem:", err)
	default:
		defer lock.Release(ctx)
	}
	// Output:
	// someone else does it; come back later
}

// A holder that loses its lock is told, and must stop: someone else can hold it
// now.
func Example_lost() {
	ctx := context.Background()
	server := memlock.NewServer()
	here, elsewhere := memlock.New(server), memlock.New(server)
	defer here.Close(ctx)
	defer elsewhere.Close(ctx)

	lock, err := here.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Kill(lock.Info().PID) // as an operator or a failover does

	<-lock.Done()
	fmt.Println("lost:", errors.Is(lock.Err(), ports.ErrLost))
	_, acquired, err := elsewhere.TryAcquire(ctx, "invoices")
	fmt.Println("a rival has it:", acquired, err)
	fmt.Println("release says so, too:", errors.Is(lock.Release(ctx), ports.ErrLost))
	// Output:
	// lost: true
	// a rival has it: true <nil>
	// release says so, too: true
}

func ExampleLockError() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	err := locks.Release(ctx, "invoices") // which nobody has acquired
	var lockErr *ports.LockError
	if errors.As(err, &lockErr) {
		fmt.Println(lockErr.Op, lockErr.Key)
		fmt.Println(lockErr.Unwrap() == ports.ErrNotHeld)
	}
	fmt.Println(err.Error())
	// Output:
	// release invoices
	// true
	// release "invoices": lock not held by this manager
}

// A key may be a megabyte long; a log line is not.
func ExampleLockError_Error() {
	err := &ports.LockError{Op: "acquire", Key: strings.Repeat("x", 1_000_000), Err: ports.ErrClosed}
	fmt.Println(len(err.Key), "bytes of key,", len(err.Error()) < 200)
	// Output:
	// 1000000 bytes of key, true
}

// Unwrap is what lets errors.Is and errors.As find the reason.
func ExampleLockError_Unwrap() {
	err := &ports.LockError{Op: "acquire", Key: "invoices", Err: ports.ErrClosed}
	fmt.Println(err.Unwrap(), errors.Is(err, ports.ErrClosed))
	// Output:
	// lock manager is closed true
}

// Contention is an answer, not a failure.
func ExampleErrNotAcquired() {
	ctx := context.Background()
	server := memlock.NewServer()
	here, elsewhere := memlock.New(server), memlock.New(server)
	defer here.Close(ctx)
	defer elsewhere.Close(ctx)
	if _, err := elsewhere.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}

	_, err := here.Acquire(ctx, "invoices", ports.WithTimeout(0))
	fmt.Println("someone else has it:", errors.Is(err, ports.ErrNotAcquired))
	fmt.Println("the wait ran out:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// someone else has it: true
	// the wait ran out: true
}

// A release by key that may come twice.
func ExampleErrNotHeld() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	if err := locks.Release(ctx, "invoices"); errors.Is(err, ports.ErrNotHeld) {
		fmt.Println("there was nothing to give back")
	}
	// Output:
	// there was nothing to give back
}

// A loss can be told by the release at the latest: what was done under the lock
// is in question then.
func ExampleErrLost() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)
	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Kill(lock.Info().PID) // as an operator or a failover does

	if err := lock.Release(ctx); errors.Is(err, ports.ErrLost) {
		fmt.Println("look at what was done")
	}
	// Output:
	// look at what was done
}

// Whoever watches a hold tells its release from its loss.
func ExampleErrReleased() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)
	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(lock.Err())
	fmt.Println(lock.Release(ctx))
	fmt.Println(errors.Is(lock.Err(), ports.ErrReleased))
	// Output:
	// <nil>
	// <nil>
	// true
}

// A worker ends when its manager is closed.
func ExampleErrClosed() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())

	for turn := 1; ; turn++ {
		err := pglock.Do(ctx, locks, "queue", func(context.Context) error { return nil })
		if errors.Is(err, ports.ErrClosed) {
			fmt.Println("shut down in turn", turn)
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		if turn == 2 {
			fmt.Println(locks.Close(ctx)) // in main, at the end of the process
		}
	}
	// Output:
	// <nil>
	// shut down in turn 3
}

// A pool of two connections is enough for one lock and the queries of its holder.
func ExampleErrPoolExhausted() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool(memlock.WithLimit(2)) // as with db.SetMaxOpenConns(2)
	locks := pglock.NewManager(pool, pglock.WithoutVerification())
	defer locks.Close(ctx)
	if _, err := locks.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}

	_, err := locks.Acquire(ctx, "payments", ports.WithTimeout(0))
	fmt.Println("allow more connections:", errors.Is(err, ports.ErrPoolExhausted))
	fmt.Println("someone else has it:", errors.Is(err, ports.ErrNotAcquired))
	// Output:
	// allow more connections: true
	// someone else has it: false
}

// A program that cannot exclude anybody had better not start.
func ExampleErrUnsafeConnection() {
	ctx := context.Background()
	server := memlock.NewServer()
	server.Intercept(func(context.Context, memlock.Command) error { // as a hot standby does
		return fmt.Errorf("%w: the server is in recovery; connect to the primary", ports.ErrUnsafeConnection)
	})
	locks := memlock.New(server)
	defer locks.Close(ctx)

	if _, err := locks.Acquire(ctx, "invoices"); errors.Is(err, ports.ErrUnsafeConnection) {
		fmt.Println("do not start:", err)
	}
	// Output:
	// do not start: acquire "invoices": connection cannot hold an exclusive lock: the server is in recovery; connect to the primary
}

// The lock table is the whole server's: a manager leaves room for others.
func ExampleErrTooManyLocks() {
	ctx := context.Background()
	server := memlock.NewServer()
	server.LimitLocks(100)
	locks := memlock.New(server, pglock.WithSharedSessions(1))
	defer locks.Close(ctx)

	for i := range 100 {
		_, err := locks.Acquire(ctx, fmt.Sprint("partition ", i))
		if errors.Is(err, ports.ErrTooManyLocks) {
			fmt.Println("raise max_locks_per_transaction, or do with", locks.HeldCount(), "partitions")
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	// Output:
	// raise max_locks_per_transaction, or do with 50 partitions
}

// What an adapter or a server cannot do, it says; here a pool that shows nothing
// but the port.
func ExampleErrUnsupported() {
	ctx := context.Background()
	pool := struct{ ports.SessionPool }{memlock.NewServer().Pool()}
	locks := pglock.NewManager(pool)
	defer locks.Close(ctx)

	_, err := locks.Inspect(ctx, "invoices")
	fmt.Println("cannot tell:", errors.Is(err, ports.ErrUnsupported))
	// Output:
	// cannot tell: true
}

// An adapter says by it that a session is over, so that the manager need not ask
// again; callers of a lock see ErrLost.
func ExampleErrSessionEnded() {
	ctx := context.Background()
	server := memlock.NewServer()
	session, err := server.Pool().Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Destroy()
	grant, err := session.Lock(ctx, ports.LockRequest{ID: 42})
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Kill(grant.PID)

	_, err = session.Check(ctx, false)
	fmt.Println("over:", errors.Is(err, ports.ErrSessionEnded))
	// Output:
	// over: true
}

// A pool around another counts what a manager opens. The sessions themselves
// should be passed on as they are: one that is wrapped loses its optional
// interfaces.
func ExampleSessionPool() {
	ctx := context.Background()
	pool := &counting{SessionPool: memlock.NewServer().Pool()}
	locks := pglock.NewManager(pool, pglock.WithoutVerification())
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	inUse, limit := pool.Usage()
	fmt.Println("opened:", pool.opened, "in use:", inUse, "limit:", limit)
	fmt.Println(lock.Release(ctx))
	// Output:
	// opened: 1 in use: 1 limit: 0
	// <nil>
}

// counting is a pool that counts. A manager opens one session at a time for one
// key, and several for several keys; count with sync/atomic then.
type counting struct {
	ports.SessionPool
	opened int
}

func (c *counting) Open(ctx context.Context) (ports.Session, error) {
	c.opened++
	return c.SessionPool.Open(ctx)
}

// A session is what a manager works with; an adapter implements it.
func ExampleSession() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool()
	session, err := pool.Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Destroy() // does nothing after Recycle

	request := ports.LockRequest{ID: 42, Mode: ports.Exclusive, Wait: 500 * time.Millisecond}
	grant, err := session.Lock(ctx, request)
	if err != nil || !grant.Granted {
		fmt.Println(grant.Granted, err)
		return
	}
	fmt.Println("granted to server process", grant.PID, "in", grant.Database)
	if _, err := session.Check(ctx, true); err != nil {
		fmt.Println(err)
		return
	}
	held, err := session.Unlock(ctx, request.ID, request.Mode)
	fmt.Println("was held:", held, err)
	session.Recycle(ctx)
	// Output:
	// granted to server process 1 in memlock
	// was held: true <nil>
}

func ExampleWatcher() {
	ctx := context.Background()
	server := memlock.NewServer()
	session, err := server.Pool().Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Destroy()
	grant, err := session.Lock(ctx, ports.LockRequest{ID: 42})
	if err != nil {
		fmt.Println(err)
		return
	}

	watcher, ok := session.(ports.Watcher)
	if !ok {
		fmt.Println("this session does not notice its end")
		return
	}
	go server.Kill(grant.PID)
	err = watcher.Watch(ctx) // blocks until the session is over
	fmt.Println("ended:", errors.Is(err, ports.ErrSessionEnded))
	// Output:
	// ended: true
}

// A pool whose server can tell implements Inspector; pglock's Manager.Inspect
// and Manager.Evict are made of it.
func ExampleInspector() {
	ctx := context.Background()
	var pool ports.SessionPool = memlock.NewServer().Pool()
	session, err := pool.Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Destroy()
	if _, err := session.Lock(ctx, ports.LockRequest{ID: 42, HolderID: "worker-1"}); err != nil {
		fmt.Println(err)
		return
	}

	inspector, ok := pool.(ports.Inspector)
	if !ok {
		fmt.Println(ports.ErrUnsupported)
		return
	}
	infos, err := inspector.Inspect(ctx, 42)
	fmt.Println("holders:", len(infos), err)
	ended, err := inspector.Evict(ctx, 42, infos[0].PID)
	fmt.Println("ended:", ended, err)
	// Output:
	// holders: 1 <nil>
	// ended: true <nil>
}

// A pool whose server tells of all its locks implements Lister; pglock's
// Manager.InspectAll is made of it.
func ExampleLister() {
	ctx := context.Background()
	var pool ports.SessionPool = memlock.NewServer().Pool()
	session, err := pool.Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Destroy()
	for _, id := range []int64{42, 43} {
		if _, err := session.Lock(ctx, ports.LockRequest{ID: id, HolderID: "worker-1"}); err != nil {
			fmt.Println(err)
			return
		}
	}

	lister, ok := pool.(ports.Lister)
	if !ok {
		fmt.Println(ports.ErrUnsupported)
		return
	}
	locks, err := lister.List(ctx)
	fmt.Println(len(locks), "locks; 43 is held by", locks[43][0].HolderID, err)
	// Output:
	// 2 locks; 43 is held by worker-1 <nil>
}

// A session that implements Batcher carries many locks at the price of one
// statement.
func ExampleBatcher() {
	ctx := context.Background()
	session, err := memlock.NewServer().Pool().Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Destroy()

	batcher, ok := session.(ports.Batcher)
	if !ok {
		fmt.Println(ports.ErrUnsupported)
		return
	}
	answer, err := batcher.Batch(ctx, ports.Batch{Tries: []ports.Try{{ID: 1}, {ID: 2, Mode: ports.Shared}}})
	fmt.Println("granted:", answer.Granted, err)
	answer, err = batcher.Batch(ctx, ports.Batch{
		Unlocks: []ports.Unlock{{ID: 1}},
		Tries:   []ports.Try{{ID: 3}},
	})
	fmt.Println("given back:", answer.Unlocked, "granted:", answer.Granted, err)
	// Output:
	// granted: [true true] <nil>
	// given back: [true] granted: [true] <nil>
}

// A session that implements Exchanger goes from one lock to the next in one round
// trip.
func ExampleExchanger() {
	ctx := context.Background()
	session, err := memlock.NewServer().Pool().Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Destroy()
	if _, err := session.Lock(ctx, ports.LockRequest{ID: 1}); err != nil {
		fmt.Println(err)
		return
	}

	exchanger, ok := session.(ports.Exchanger)
	if !ok {
		fmt.Println(ports.ErrUnsupported)
		return
	}
	held, grant, err := exchanger.Exchange(ctx, 1, ports.Exclusive, ports.LockRequest{ID: 2})
	fmt.Println("given back:", held, "granted:", grant.Granted, err)
	// Output:
	// given back: true granted: true <nil>
}

func ExampleInterruptible() {
	session, err := memlock.NewServer().Pool().Open(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Destroy()

	i, ok := session.(ports.Interruptible)
	fmt.Println("may run on its caller's goroutine:", ok && i.Interruptible())
	// Output:
	// may run on its caller's goroutine: true
}

// A pool that implements Witness tells of a session that is busy with someone
// else's work.
func ExampleWitness() {
	ctx := context.Background()
	var pool ports.SessionPool = memlock.NewServer().Pool()
	session, err := pool.Open(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Destroy()
	grant, err := session.Lock(ctx, ports.LockRequest{ID: 42})
	if err != nil {
		fmt.Println(err)
		return
	}

	witness, ok := pool.(ports.Witness)
	if !ok {
		fmt.Println(ports.ErrUnsupported)
		return
	}
	fmt.Println(witness.Holds(ctx, grant.PID, []int64{42}))
	fmt.Println(witness.Holds(ctx, grant.PID, []int64{42, 43}))
	// Output:
	// true <nil>
	// false <nil>
}

// SessionInfo has a form for code; what the server does not tell is left out.
func ExampleSessionInfo() {
	text, err := json.Marshal(ports.SessionInfo{PID: 4711, Granted: true, HolderID: "worker-1", State: "idle"})
	fmt.Println(string(text), err)
	// Output:
	// {"pid":4711,"granted":true,"mode":"exclusive","holder_id":"worker-1","state":"idle"} <nil>
}

// An adapter borrows the session that carries a hold; sqllock.RunTx is made of
// this.
func ExampleSessionLender() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)
	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)

	lender, ok := lock.(ports.SessionLender)
	if !ok {
		fmt.Println(ports.ErrUnsupported)
		return
	}
	err = lender.LendSession(ctx, func(session ports.Session) (trusted bool) {
		_, err := session.Check(ctx, true)
		fmt.Println("on the lock's own session:", err)
		return err == nil
	})
	fmt.Println("lent:", err, "still held:", lock.Err() == nil)
	// Output:
	// on the lock's own session: <nil>
	// lent: <nil> still held: true
}

// The two spaces of one server: the same number is another lock in each.
func ExamplePairPool() {
	ctx := context.Background()
	var numbers ports.PairPool = memlock.NewServer().Pool()
	id := ports.PairID(1, 2)
	for _, pool := range []ports.SessionPool{numbers, numbers.Pairs(), numbers.Pairs()} {
		session, err := pool.Open(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer session.Destroy()
		grant, err := session.Lock(ctx, ports.LockRequest{ID: id})
		fmt.Println(grant.Granted, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

func ExamplePairID() {
	fmt.Println(ports.PairID(1, 2), ports.PairID(0, -1), ports.PairID(-1, -1))
	// Output:
	// 4294967298 4294967295 -1
}

func ExampleIDPair() {
	fmt.Println(ports.IDPair(4294967298))
	fmt.Println(ports.IDPair(-1))
	// Output:
	// 1 2
	// -1 -1
}
