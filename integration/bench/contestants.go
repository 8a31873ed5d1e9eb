package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	leases "cirello.io/pglock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/pressly/goose/v3/lock"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/pqlock"
	"github.com/holdfast-go/holdfast/integration/peers"
	"github.com/holdfast-go/holdfast/integration/wire"
	"github.com/holdfast-go/holdfast/pglock"
)

// contestant is one way to lock.
type contestant struct {
	name string
	// driver is the one that it uses; empty if it does not use PostgreSQL.
	driver string
	// floor: it is what the others are compared with.
	floor bool
	// advisory: its locks are advisory locks, and their IDs those of
	// pglock.SHA256Key, so that a plain session can hold them for a scenario.
	advisory bool
	// asks is how often one that waits asks again; 0 if it is woken.
	asks time.Duration
	// turns: processes that want one key take turns that are longer than a round.
	turns bool
	// mostHeld is how many locks it is asked to hold at once, which must be
	// within what its connections allow.
	mostHeld int
	// open prepares it for a place; db is nil if it does not use PostgreSQL.
	open func(p place, db *sql.DB) (locker, error)
}

// place is where, and with what, a contestant works.
type place struct {
	DSN         string // of a database of its own
	Redis       string // address
	Connections int    // the most that it may have; 0 for no limit

	counter *wire.Counter // counts what its driver sends, if it is not nil
}

// locker is a contestant at work.
type locker interface {
	// lock waits for the lock of a key until ctx ends. The hold does not end
	// with ctx.
	lock(ctx context.Context, key string) (unlock func() error, err error)
	// close gives back all but the database.
	close() error
}

// everybody is who takes part. All peers have the options that they have by
// default, but for the three that are said below, and use the driver on which
// they are fastest and which they support.
func everybody() []contestant {
	return []contestant{
		raw("raw SQL, lib/pq", wire.PQ),
		raw("raw SQL, pgx", wire.PGX),
		own("Holdfast, lib/pq", wire.PQ, mostConnections),
		own("Holdfast, pgx", wire.PGX, mostConnections),
		shared("Holdfast, one shared session, lib/pq", wire.PQ),
		shared("Holdfast, one shared session, pgx", wire.PGX),
		{name: peers.GoPglock, driver: wire.PGX, advisory: true, mostHeld: mostConnections, open: openAdvisory},
		{name: "goose/v3/lock " + version("github.com/pressly/goose/v3"), driver: wire.PGX, advisory: true, asks: goosePeriod, mostHeld: mostConnections, open: openGoose},
		{name: peers.Cirello, driver: wire.PQ, asks: leaseDuration, mostHeld: mostLeases, open: openLeases},
		{name: "redsync " + version("github.com/go-redsync/redsync/v4"), asks: redsyncPeriod, mostHeld: unlimited, open: openRedsync},
	}
}

const (
	// leaseDuration replaces cirello.io/pglock's 20 s. One that waits sleeps
	// for that long, so a run would take four times as long.
	leaseDuration = 5 * time.Second
	// redsyncExpiry replaces redsync's 8 s, because nothing here extends a
	// lease; and redsyncTries its 32, after which it gives up. Neither matters
	// to its speed.
	redsyncExpiry = time.Minute
	redsyncTries  = 1 << 20

	// How many locks at once a contestant is asked for: one that needs a
	// connection for each, one whose leases each have a heartbeat, and any
	// other.
	mostConnections = 1000
	mostLeases      = 100
	unlimited       = math.MaxInt

	goosePeriod   = 5 * time.Second        // its default
	redsyncPeriod = 150 * time.Millisecond // the middle of its default
)

// entrant is a contestant at a place.
type entrant struct {
	locker
	db *sql.DB // nil if it does not use PostgreSQL
}

// enter opens a contestant at a place.
func (c contestant) enter(p place) (*entrant, error) {
	e := &entrant{}
	var err error
	if c.driver != "" {
		if e.db, err = p.db(c.driver); err != nil {
			return nil, err
		}
	}
	if e.locker, err = c.open(p, e.db); err != nil {
		if e.db != nil {
			err = errors.Join(err, e.db.Close())
		}
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return e, nil
}

// db opens a pool that keeps its connections.
func (p place) db(driver string) (*sql.DB, error) {
	open := sql.Open
	if p.counter != nil {
		open = p.counter.Open
	}
	db, err := open(driver, p.DSN)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(p.Connections)
	db.SetMaxIdleConns(p.idle())
	return db, nil
}

func (p place) idle() int { return max(p.Connections, 4) }

// trim closes the connections that nobody uses, so that those can be counted
// that are used from here on.
func (e *entrant) trim(p place) {
	if e.db != nil {
		e.db.SetMaxIdleConns(-1)
		e.db.SetMaxIdleConns(p.idle())
	}
}

// warm has the entrant do all that is done only once: by as many goroutines as
// there are to be connections.
func (e *entrant) warm(goroutines int) error {
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for range 3 {
				errs[g] = errors.Join(errs[g], e.pair(fmt.Sprint("warm ", g)))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// pair takes and gives back a lock.
func (e *entrant) pair(key string) error {
	unlock, err := e.lock(context.Background(), key)
	if err != nil {
		return err
	}
	return unlock()
}

func (e *entrant) close() error {
	err := e.locker.close()
	if e.db != nil {
		err = errors.Join(err, e.db.Close())
	}
	return err
}

// Holdfast.

func own(name, driver string, mostHeld int, opts ...pglock.Option) contestant {
	return contestant{name: name, driver: driver, advisory: true, mostHeld: mostHeld, open: func(p place, db *sql.DB) (locker, error) {
		all := slices.Clone(opts)
		if p.Connections > 0 { // the pool is for locks alone
			all = append(all, pglock.WithMaxSessions(p.Connections))
		}
		create := map[string]func(*sql.DB, ...pglock.Option) *pglock.Manager{wire.PQ: pqlock.New, wire.PGX: pgxlock.New}[driver]
		return ownLocker{create(db, all...)}, nil
	}}
}

func shared(name, driver string) contestant {
	c := own(name, driver, unlimited, pglock.WithSharedSessions(1))
	c.turns = true
	return c
}

type ownLocker struct{ m *pglock.Manager }

func (l ownLocker) lock(ctx context.Context, key string) (func() error, error) {
	h, err := l.m.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return func() error { return h.Release(context.Background()) }, nil
}

func (l ownLocker) close() error { return l.m.Close(context.Background()) }

// The floor: the fewest and fastest statements of a driver, prepared on pinned
// connections. pgx does that by itself.

func raw(name, driver string) contestant {
	return contestant{name: name, driver: driver, floor: true, advisory: true, mostHeld: unlimited, open: func(p place, db *sql.DB) (locker, error) {
		l := &rawLocker{conns: make([]rawConn, max(p.Connections, 1))}
		for i := range l.conns {
			conn, err := db.Conn(context.Background())
			if err != nil {
				return nil, err
			}
			l.conns[i].conn = conn
			if driver == wire.PQ {
				if err := l.conns[i].prepare(); err != nil {
					return nil, err
				}
			}
		}
		return l, nil
	}}
}

// rawLocker deals its keys out to its connections; each stays on its own, whose
// server process has what it needs at hand. It is for keys that nobody else in
// the process wants, since a session may lock a key twice.
type rawLocker struct {
	conns []rawConn
	turn  atomic.Uint64
	of    sync.Map // from a key to its *rawConn
}

type rawConn struct {
	mu       sync.Mutex // one statement at a time
	conn     *sql.Conn
	prepared map[string]*sql.Stmt // nil if the driver prepares by itself
}

const (
	rawLock   = "SELECT pg_advisory_lock($1::bigint)"
	rawUnlock = "SELECT pg_advisory_unlock($1::bigint)"
)

// prepare prepares what the connection will be asked.
func (c *rawConn) prepare() (err error) {
	c.prepared = map[string]*sql.Stmt{}
	for _, statement := range []string{rawLock, rawUnlock} {
		if c.prepared[statement], err = c.conn.PrepareContext(context.Background(), statement); err != nil {
			return err
		}
	}
	return nil
}

func (l *rawLocker) lock(ctx context.Context, key string) (func() error, error) {
	of, ok := l.of.Load(key)
	if !ok {
		of, _ = l.of.LoadOrStore(key, &l.conns[l.turn.Add(1)%uint64(len(l.conns))])
	}
	c, id := of.(*rawConn), pglock.SHA256Key(key)
	if err := c.run(ctx, rawLock, id); err != nil {
		return nil, err
	}
	return func() error { return c.run(context.Background(), rawUnlock, id) }, nil
}

func (c *rawConn) run(ctx context.Context, statement string, id int64) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.prepared[statement]; s != nil {
		_, err = s.ExecContext(ctx, id)
	} else {
		_, err = c.conn.ExecContext(ctx, statement, id)
	}
	return err
}

func (l *rawLocker) close() error {
	var errs []error
	for i := range l.conns {
		errs = append(errs, l.conns[i].conn.Close())
	}
	return errors.Join(errs...)
}

// The peers on PostgreSQL.

func openAdvisory(_ place, db *sql.DB) (locker, error) { return advisoryLocker{db}, nil }

type advisoryLocker struct{ db *sql.DB }

func (l advisoryLocker) lock(ctx context.Context, key string) (func() error, error) {
	h, err := peers.LockAdvisory(ctx, l.db, pglock.SHA256Key(key), false, false)
	if err != nil {
		return nil, err
	}
	return func() error { return h.Unlock(context.Background()) }, nil
}

func (l advisoryLocker) close() error { return nil }

func openGoose(_ place, db *sql.DB) (locker, error) { return gooseLocker{db}, nil }

type gooseLocker struct{ db *sql.DB }

func (l gooseLocker) lock(ctx context.Context, key string) (func() error, error) {
	// A locker counts its tries over all its life, so each lock has its own.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(pglock.SHA256Key(key)))
	if err != nil {
		return nil, err
	}
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if err := locker.SessionLock(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return func() error {
		return errors.Join(locker.SessionUnlock(context.Background(), conn), conn.Close())
	}, nil
}

func (l gooseLocker) close() error { return nil }

func openLeases(_ place, db *sql.DB) (locker, error) {
	client, err := leases.New(db, leases.WithLeaseDuration(leaseDuration), leases.WithHeartbeatFrequency(leaseDuration/4))
	if err != nil {
		return nil, err
	}
	return leaseLocker{client}, client.TryCreateTable()
}

type leaseLocker struct{ client *leases.Client }

func (l leaseLocker) lock(ctx context.Context, key string) (func() error, error) {
	// The context that a lease is taken with is that of its heartbeat, too.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	h, err := l.client.AcquireContext(own, key)
	stop()
	if err != nil {
		cancel()
		return nil, err
	}
	return func() error { defer cancel(); return h.Close() }, nil
}

func (l leaseLocker) close() error { return nil }

// The peer on Redis.

func openRedsync(p place, _ *sql.DB) (locker, error) {
	client := redis.NewClient(&redis.Options{Addr: p.Redis, PoolSize: p.Connections, PoolTimeout: time.Minute})
	return redsyncLocker{redsync.New(goredis.NewPool(client)), client}, nil
}

type redsyncLocker struct {
	*redsync.Redsync
	client *redis.Client
}

func (l redsyncLocker) lock(ctx context.Context, key string) (func() error, error) {
	m := l.NewMutex(key, redsync.WithExpiry(redsyncExpiry), redsync.WithTries(redsyncTries))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return func() error {
		if ok, err := m.UnlockContext(context.Background()); !ok || err != nil {
			return fmt.Errorf("redsync had lost %s: %w", key, err)
		}
		return nil
	}, nil
}

func (l redsyncLocker) close() error { return l.client.Close() }
