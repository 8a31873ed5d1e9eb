package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// Every replica of a service has this code; one of them does the work.
func Example() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer()) // in production pgxlock.New(db)
	defer locks.Close(ctx)

	ran, err := pglock.TryDo(ctx, locks, "nightly-reconciliation", func(ctx context.Context) error {
		fmt.Println("reconciling")
		return ctx.Err() // which ends the work when the lock is lost
	})
	switch {
	case err != nil:
		fmt.Println(err)
	case !ran:
		fmt.Println("someone else is at it")
	}
	// Output:
	// reconciling
}

func ExampleDo() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	err := pglock.Do(ctx, locks, "invoices", func(ctx context.Context) error {
		fmt.Println("held:", locks.IsHeld("invoices"))
		return nil
	}, ports.WithTimeout(30*time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", locks.IsHeld("invoices"))
	// Output:
	// held: true
	// held: false
}

// The context of the work ends with the hold: work that heeds it does not go on
// beside a rival.
func ExampleDo_lost() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	err := pglock.Do(ctx, locks, "invoices", func(ctx context.Context) error {
		server.Kill(1) // ends the only session, as an operator or a failover does
		<-ctx.Done()
		return fmt.Errorf("stopped half way: %w", context.Cause(ctx))
	})
	if errors.Is(err, ports.ErrLost) {
		fmt.Println("someone else may have it now; look at what was done")
	}
	// Output:
	// someone else may have it now; look at what was done
}

func ExampleTryDo() {
	ctx := context.Background()
	server := memlock.NewServer()
	replica1, replica2 := memlock.New(server), memlock.New(server)
	defer replica1.Close(ctx)
	defer replica2.Close(ctx)

	ran, err := pglock.TryDo(ctx, replica1, "report", func(ctx context.Context) error {
		ran, err := pglock.TryDo(ctx, replica2, "report", func(context.Context) error { return nil })
		fmt.Println("replica 2 meanwhile:", ran, err)
		return nil
	})
	fmt.Println("replica 1:", ran, err)
	// Output:
	// replica 2 meanwhile: false <nil>
	// replica 1: true <nil>
}

// Context is for a hold that does not fit into one function.
func ExampleContext() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "leader")
	if err != nil {
		fmt.Println(err)
		return
	}
	held, cancel := pglock.Context(ctx, lock)
	defer cancel()
	fmt.Println("leading:", held.Err() == nil)

	if err := lock.Release(ctx); err != nil {
		fmt.Println(err)
		return
	}
	<-held.Done()
	fmt.Println("released:", errors.Is(context.Cause(held), ports.ErrReleased))
	// Output:
	// leading: true
	// released: true
}

// A function that must be called under a lock can say so.
func ExampleFromContext() {
	post := func(ctx context.Context, amount int) error {
		lock, ok := pglock.FromContext(ctx)
		if !ok || lock.Info().Key != "ledger" || lock.Err() != nil {
			return errors.New("post: the ledger is not locked")
		}
		fmt.Println("posted", amount)
		return nil
	}

	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)
	fmt.Println(post(ctx, 100))
	fmt.Println(pglock.Do(ctx, locks, "ledger", func(ctx context.Context) error { return post(ctx, 100) }))
	// Output:
	// post: the ledger is not locked
	// posted 100
	// <nil>
}

// Adapters do this; so does a test with a pool of its own.
func ExampleNewManager() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool(memlock.WithLimit(10))
	var locks *pglock.Manager = pglock.NewManager(pool, pglock.WithHolderID("worker-1"))
	defer locks.Close(ctx)

	fmt.Println("at most", locks.Stats().MaxSessions, "sessions for locks")
	// Output:
	// at most 9 sessions for locks
}

// A manager is made once and shared: by all goroutines of a process, and by all
// its keys.
func ExampleManager() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer()) // in production pgxlock.New(db)
	defer locks.Close(ctx)

	var wg sync.WaitGroup
	balance := 0
	for range 10 {
		wg.Go(func() {
			err := pglock.Do(ctx, locks, "account-42", func(context.Context) error {
				balance += 10
				return nil
			})
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	wg.Wait()
	fmt.Println(balance)
	// Output:
	// 100
}

func ExampleManager_Acquire() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices", ports.WithTimeout(5*time.Second))
	if errors.Is(err, ports.ErrNotAcquired) {
		fmt.Println("someone else kept it for five seconds")
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	// The context and the timeout were for the wait; the hold lasts until here.
	defer lock.Release(ctx)
	fmt.Println("held", lock.Info().Key)
	// Output:
	// held invoices
}

func ExampleManager_TryAcquire() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	lock, acquired, err := locks.TryAcquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err) // whether it is free is not known
		return
	}
	if !acquired {
		fmt.Println("someone else has it")
		return
	}
	defer lock.Release(ctx)

	_, acquired, err = locks.TryAcquire(ctx, "invoices") // locks are not re-entrant
	fmt.Println("once more:", acquired, err)
	// Output:
	// once more: false <nil>
}

// Where the handle is out of reach, the key will do.
func ExampleManager_Release() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	if _, err := locks.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(locks.Release(ctx, "invoices"))

	err := locks.Release(ctx, "invoices")
	fmt.Println(errors.Is(err, ports.ErrNotHeld))
	// Output:
	// <nil>
	// true
}

func ExampleManager_Held() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	for _, key := range []string{"invoices", "payments"} {
		if _, err := locks.Acquire(ctx, key); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, info := range locks.Held() {
		fmt.Println(info.Key)
	}
	fmt.Println(locks.HeldCount(), locks.IsHeld("payments"), locks.IsHeld("refunds"))
	// Output:
	// invoices
	// payments
	// 2 true false
}

// The number of holds, for a metric or for the end of a test.
func ExampleManager_HeldCount() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	for range 2 { // two holds of one key
		if _, err := locks.Acquire(ctx, "catalogue", ports.WithShared()); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(locks.HeldCount())
	fmt.Println(locks.Release(ctx, "catalogue"), locks.HeldCount())
	// Output:
	// 2
	// <nil> 1
}

// IsHeld is about this manager; who else has the key is for Inspect to tell.
func ExampleManager_IsHeld() {
	ctx := context.Background()
	server := memlock.NewServer()
	here, elsewhere := memlock.New(server), memlock.New(server)
	defer here.Close(ctx)
	defer elsewhere.Close(ctx)

	if _, err := elsewhere.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("here:", here.IsHeld("invoices"), "elsewhere:", elsewhere.IsHeld("invoices"))
	// Output:
	// here: false elsewhere: true
}

func ExampleManager_ReleaseAll() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	for _, tenant := range []string{"acme", "globex"} {
		if _, err := locks.Acquire(ctx, pglock.MigrationKey(tenant, "backfill")); err != nil {
			fmt.Println(err)
			return
		}
	}
	released, err := locks.ReleaseAll(ctx)
	fmt.Println(released, err)
	// Output:
	// 2 <nil>
}

func ExampleManager_Stats() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)
	if _, acquired, err := locks.TryAcquire(ctx, "invoices"); acquired || err != nil {
		fmt.Println(acquired, err)
		return
	}

	stats := locks.Stats()
	fmt.Println("now:", stats.Held, "held,", stats.Waiting, "waiting,", stats.Sessions, "sessions")
	fmt.Println("ever:", stats.Acquired, "acquired,", stats.Contended, "contended,", stats.Lost, "lost")
	// Output:
	// now: 1 held, 0 waiting, 1 sessions
	// ever: 1 acquired, 1 contended, 0 lost
}

// An alert on what needs a look: locks that are lost, and sessions that run out.
func ExampleStats() {
	alert := func(before, now pglock.Stats) {
		if lost := now.Lost - before.Lost; lost > 0 {
			fmt.Println("locks lost:", lost)
		}
		if now.MaxSessions > 0 && now.Sessions == now.MaxSessions {
			fmt.Println("all", now.MaxSessions, "sessions are pinned")
		}
	}

	ctx := context.Background()
	server := memlock.NewServer()
	locks := pglock.NewManager(server.Pool(memlock.WithLimit(3)), pglock.WithoutVerification())
	defer locks.Close(ctx)

	before := locks.Stats()
	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Kill(lock.Info().PID)
	<-lock.Done()
	alert(before, locks.Stats())
	alert(pglock.Stats{}, pglock.Stats{Sessions: 2, MaxSessions: 2})
	// Output:
	// locks lost: 1
	// all 2 sessions are pinned
}

// KeyID is the number to look for in pg_locks.
func ExampleManager_KeyID() {
	locks := memlock.New(memlock.NewServer(), pglock.WithNamespace("billing:"))
	defer locks.Close(context.Background())

	fmt.Println(locks.KeyID("invoices"))
	fmt.Println(locks.KeyID("invoices") == pglock.SHA256Key("billing:invoices"))
	// Output:
	// 2159219737898085743
	// true
}

// Close is for the end of the process: it gives back what is held, and sends
// home who waits.
func ExampleManager_Close() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	if _, err := locks.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}

	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := locks.Close(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println("locks left:", server.Locks())
	_, err := locks.Acquire(ctx, "invoices")
	fmt.Println("closed:", errors.Is(err, ports.ErrClosed))
	// Output:
	// locks left: 0
	// closed: true
}

// Options come from a service's configuration.
func ExampleOption() {
	config := struct {
		Namespace string
		Window    time.Duration // zero for the default
	}{Namespace: "billing:"}

	opts := []pglock.Option{pglock.WithNamespace(config.Namespace)}
	if config.Window > 0 {
		opts = append(opts, pglock.WithLivenessWindow(config.Window))
	}
	locks := memlock.New(memlock.NewServer(), opts...)
	defer locks.Close(context.Background())
	fmt.Println(locks.KeyID("invoices") == pglock.SHA256Key("billing:invoices"))
	// Output:
	// true
}

func ExampleWithHolderID() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithHolderID("billing-7f9c/worker-1"))
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)
	fmt.Println(lock.Info().HolderID)
	// Output:
	// billing-7f9c/worker-1
}

// Two applications that share a database, each with a job called "cleanup".
func ExampleWithNamespace() {
	ctx := context.Background()
	server := memlock.NewServer()
	billing := memlock.New(server, pglock.WithNamespace("billing:"))
	search := memlock.New(server, pglock.WithNamespace("search:"))
	defer billing.Close(ctx)
	defer search.Close(ctx)

	for _, locks := range []*pglock.Manager{billing, search} {
		lock, acquired, err := locks.TryAcquire(ctx, "cleanup")
		if err != nil || !acquired {
			fmt.Println(acquired, err)
			return
		}
		fmt.Println("acquired", lock.Info().Key)
	}
	// Output:
	// acquired cleanup
	// acquired cleanup
}

// A service that has locked with FNV-1a for years, and one on this package, can
// exclude each other during the change.
func ExampleWithKeyFunc() {
	locks := memlock.New(memlock.NewServer(), pglock.WithKeyFunc(pglock.FNV1aKey))
	defer locks.Close(context.Background())

	fmt.Println(locks.KeyID("invoices") == pglock.FNV1aKey("invoices"))
	// Output:
	// true
}

// The neighbour locks with SELECT pg_advisory_lock(7, tenant), in the space of two
// integers.
func ExampleWithTwoIntegerKeys() {
	locks := memlock.New(memlock.NewServer(), pglock.WithTwoIntegerKeys(func(key string) (int32, int32) {
		tenant, _ := strconv.ParseInt(key, 10, 32)
		return 7, int32(tenant)
	}))
	fmt.Println(locks.KeyID("42"))
	fmt.Println(ports.IDPair(locks.KeyID("42")))
	// Output:
	// 30064771114
	// 7 42
}

// The window is how long a holder that has vanished may keep the others out. A
// short one for quick failover; not below what a busy host can keep up with.
func ExampleWithLivenessWindow() {
	configured := 2 * time.Second
	window := max(configured, pglock.MinLivenessWindow)
	locks := memlock.New(memlock.NewServer(), pglock.WithLivenessWindow(window))
	defer locks.Close(context.Background())

	fmt.Println("window:", window, "instead of", pglock.DefaultLivenessWindow)
	// Output:
	// window: 5s instead of 15s
}

// A pool that is for locks alone may be used up to its last connection.
func ExampleWithMaxSessions() {
	ctx := context.Background()
	pool := memlock.NewServer().Pool(memlock.WithLimit(1)) // as with db.SetMaxOpenConns(1)
	locks := pglock.NewManager(pool, pglock.WithMaxSessions(1))
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "leader")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)
	stats := locks.Stats()
	fmt.Println(stats.Sessions, "of", stats.MaxSessions)
	// Output:
	// 1 of 1
}

func ExampleWithSharedSessions() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithSharedSessions(1))
	defer locks.Close(ctx)

	for partition := range 1000 {
		if _, err := locks.Acquire(ctx, fmt.Sprint("partition ", partition)); err != nil {
			fmt.Println(err)
			return
		}
	}
	stats := locks.Stats()
	fmt.Println(stats.Held, "locks on", stats.Sessions, "session")
	// Output:
	// 1000 locks on 1 session
}

func ExampleWithLogger() {
	// Time and error are left out so that the output is always the same.
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelError,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "error" || a.Key == "id" {
				return slog.Attr{}
			}
			return a
		},
	}))

	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server, pglock.WithLogger(logger))
	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	server.Kill(lock.Info().PID)
	<-lock.Done()
	if err := locks.Close(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// level=ERROR msg="lock lost" key=invoices database=memlock pid=1
}

// The same key has the same ID in every process and every version.
func ExampleSHA256Key() {
	fmt.Println(pglock.SHA256Key("invoices"))
	// Output:
	// 5268556066836248654
}

func ExampleFNV1aKey() {
	fmt.Println(pglock.FNV1aKey("invoices"))
	// Output:
	// 7083979394435973785
}

func ExampleMigrationKey() {
	fmt.Println(pglock.MigrationKey("tenant-42", "cutover"))
	// Output:
	// cutover:tenant-42
}

// Verify at the start of a program finds a pooler in transaction mode, or a
// standby, before the first job does.
func ExampleManager_Verify() {
	ctx := context.Background()
	locks := pglock.NewManager(memlock.NewServer().Pool()) // in production pgxlock.New(db)
	defer locks.Close(ctx)

	switch err := locks.Verify(ctx); {
	case errors.Is(err, ports.ErrUnsafeConnection):
		fmt.Println("do not start:", err)
	case errors.Is(err, ports.ErrPoolExhausted):
		fmt.Println("the pool is too small for the proof:", err)
	case err != nil:
		fmt.Println("the database has a problem:", err)
	default:
		fmt.Println("two connections exclude each other")
	}
	// Output:
	// two connections exclude each other
}

func ExampleWithoutVerification() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := pglock.NewManager(server.Pool(), pglock.WithoutVerification())
	defer locks.Close(ctx)

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)
	fmt.Println("statements:", server.Commands("lock")+server.Commands("check"))
	// Output:
	// statements: 1
}

// A transfer locks both accounts. Another one in the opposite direction cannot
// deadlock with it.
func ExampleManager_AcquireAll() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"account-2", "account-1"}, ports.WithTimeout(10*time.Second))
	if err != nil {
		fmt.Println(err) // which names the key; none is held
		return
	}
	fmt.Println(locks.IsHeld("account-1"), locks.IsHeld("account-2"))
	fmt.Println(set.Release(ctx))
	fmt.Println(locks.HeldCount())
	// Output:
	// true true
	// <nil>
	// 0
}

// A set is a lock: it is lost and released as a whole, and goes wherever a
// ports.Lock goes.
func ExampleLockSet() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"users", "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	held, cancel := pglock.Context(ctx, set)
	defer cancel()
	server.Kill(set.Info().PID) // as an operator or a failover does
	<-held.Done()
	fmt.Println("lost:", errors.Is(context.Cause(held), ports.ErrLost))
	fmt.Println("still held:", locks.HeldCount())
	// Output:
	// lost: true
	// still held: 0
}

func ExampleLockSet_Infos() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"users", "orders", "users"}, ports.WithFencing())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Release(ctx)
	for _, info := range set.Infos() {
		fmt.Println(info.Key, "has token", info.Token)
	}
	// Output:
	// orders has token 1
	// users has token 2
}

func ExampleLockSet_Info() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"users", "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Release(ctx)
	fmt.Println(set.Info() == set.Infos()[0]) // the others are on the same session
	// Output:
	// true
}

func ExampleLockSet_Done() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"users", "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	batch := 0
	for {
		select {
		case <-set.Done():
			fmt.Println("stopped after", batch, "batches")
			return
		default:
		}
		if batch++; batch == 3 {
			fmt.Println(set.Release(ctx)) // or a loss, at any time
		}
	}
	// Output:
	// <nil>
	// stopped after 3 batches
}

func ExampleLockSet_Err() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"users", "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", set.Err() == nil)
	server.Kill(set.Info().PID)
	<-set.Done()
	fmt.Println("lost:", errors.Is(set.Err(), ports.ErrLost))
	// Output:
	// held: true
	// lost: true
}

// A release gives back all of the set, however often it is called.
func ExampleLockSet_Release() {
	ctx := context.Background()
	server := memlock.NewServer()
	locks := memlock.New(server)
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"users", "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Release(ctx) // for every way out of here
	fmt.Println("locks:", server.Locks())
	fmt.Println(set.Release(ctx))
	fmt.Println("locks:", server.Locks())
	// Output:
	// locks: 2
	// <nil>
	// locks: 0
}

// All locks of a set are on one session, which is what sqllock.RunTx runs on.
func ExampleLockSet_LendSession() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	set, err := locks.AcquireAll(ctx, []string{"users", "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Release(ctx)
	err = set.LendSession(ctx, func(session ports.Session) (trusted bool) {
		pid, err := session.Check(ctx, true)
		fmt.Println("on the set's session:", pid == set.Info().PID, err)
		return err == nil
	})
	fmt.Println(err)
	// Output:
	// on the set's session: true <nil>
	// <nil>
}

// Who holds it, and who waits?
func ExampleManager_Inspect() {
	ctx := context.Background()
	server := memlock.NewServer()
	worker, operator := memlock.New(server, pglock.WithHolderID("worker-1")), memlock.New(server)
	defer worker.Close(ctx)
	defer operator.Close(ctx)
	if _, err := worker.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}

	in, err := operator.Inspect(ctx, "invoices")
	if err != nil {
		fmt.Println(err) // ports.ErrUnsupported if the adapter cannot tell
		return
	}
	for _, session := range in.Holders {
		fmt.Println(session.HolderID, "holds it on server process", session.PID)
	}
	fmt.Println(len(in.Waiters), "wait")
	// Output:
	// worker-1 holds it on server process 1
	// 0 wait
}

// What is locked at all? The server knows IDs only; KeyID tells which of them a
// key has.
func ExampleManager_InspectAll() {
	ctx := context.Background()
	server := memlock.NewServer()
	worker, operator := memlock.New(server, pglock.WithHolderID("worker-1")), memlock.New(server)
	defer worker.Close(ctx)
	defer operator.Close(ctx)
	if _, err := worker.Acquire(ctx, "invoices"); err != nil {
		fmt.Println(err)
		return
	}

	all, err := operator.InspectAll(ctx)
	if err != nil {
		fmt.Println(err) // ports.ErrUnsupported if the adapter cannot tell
		return
	}
	for _, in := range all {
		fmt.Println(in.Holders[0].HolderID, "holds", in.ID, "which is invoices:", in.ID == operator.KeyID("invoices"))
	}
	// Output:
	// worker-1 holds 5268556066836248654 which is invoices: true
}

// An inspection prints itself for people, and is JSON for code.
func ExampleInspection() {
	in := pglock.Inspection{
		Key: "invoices", ID: pglock.SHA256Key("invoices"),
		Holders: []ports.SessionInfo{{PID: 4711, Granted: true, HolderID: "worker-1", Since: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), State: "idle"}},
		Waiters: []ports.SessionInfo{{PID: 4712, Mode: ports.Shared, Application: "psql"}},
	}
	fmt.Print(in)
	// Output:
	// "invoices" (lock ID 5268556066836248654): 1 holders, 1 waiters
	//   process 4711 holds it, exclusive, since 2026-03-01T12:00:00Z, holder "worker-1", state "idle"
	//   process 4712 waits for it, shared, application "psql"
}

// For a log line or a terminal; a lock that nobody has is a line, too.
func ExampleInspection_String() {
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)

	in, err := locks.Inspect(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(in.String())
	// Output:
	// "invoices" (lock ID 5268556066836248654): 0 holders, 0 waiters
}

// Evict is for a holder that hangs. It is told of a loss, and whoever waits is
// next.
func ExampleManager_Evict() {
	ctx := context.Background()
	server := memlock.NewServer()
	stuck, operator := memlock.New(server), memlock.New(server)
	defer stuck.Close(ctx)
	defer operator.Close(ctx)
	lock, err := stuck.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}

	ended, err := operator.Evict(ctx, "invoices")
	fmt.Println("sessions ended:", ended, err)
	<-lock.Done()
	fmt.Println("told:", errors.Is(lock.Err(), ports.ErrLost))
	// Output:
	// sessions ended: 1 <nil>
	// told: true
}
