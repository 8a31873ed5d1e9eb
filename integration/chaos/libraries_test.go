//go:build linux

package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	peertable "cirello.io/pglock"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/pqlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/integration/peers"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// window is the liveness window of everybody.
const window = pglock.MinLivenessWindow

// The drivers, by the names that database/sql knows them by.
const (
	pq  = "postgres"
	pgx = "pgx"
)

// library is a lock library as the workers use it.
type library struct {
	name string
	// What it offers besides exclusive locks.
	shared, fencing bool
	// sessions: its locks live on server sessions.
	sessions bool
	// fenced: its transactions cannot commit once the lock is lost, so that
	// it is worth trying.
	fenced bool
	// unasked is how long after its grant a lock may be passed on within a
	// process, without asking the server whether it is still there.
	unasked time.Duration
	open    func(ctx context.Context, db *sql.DB, driver, holder string) (locker, error)
}

var (
	// A lock is passed on for 50 ms; the rest is for the machine.
	holdfast       = library{"Holdfast", true, true, true, true, 100 * time.Millisecond, openHoldfast}
	holdfastShared = library{"Holdfast, shared sessions", true, true, true, false, time.Hour, openHoldfastShared}
	goPglock       = library{peers.GoPglock, true, false, true, false, 0, openGoPglock}
	cirello        = library{peers.Cirello, false, false, false, false, 0, openCirello}
	allLibraries   = []library{holdfast, holdfastShared, goPglock, cirello}
)

// request is one attempt to take a key.
type request struct {
	key         string
	shared, try bool
	fencing     bool
}

// locker is a lock library in one process.
type locker interface {
	// acquire returns nil and no error if the lock is held by somebody else.
	acquire(ctx context.Context, r request) (held, error)
	close(ctx context.Context) error
}

// held is a lock that is held.
type held interface {
	// done is closed when the hold ends; nil if the library does not tell.
	done() <-chan struct{}
	// release says how the hold ended.
	release(ctx context.Context) (outcome, error)
	// write runs a transaction in the way that the library means it to be run.
	write(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error
	backend() int
	token() uint64
}

// Holdfast.

type holdfastLocker struct{ *pglock.Manager }

func openHoldfast(_ context.Context, db *sql.DB, driver, holder string) (locker, error) {
	return newHoldfast(db, driver, holder), nil
}

func openHoldfastShared(_ context.Context, db *sql.DB, driver, holder string) (locker, error) {
	return newHoldfast(db, driver, holder, pglock.WithSharedSessions(2)), nil
}

func newHoldfast(db *sql.DB, driver, holder string, opts ...pglock.Option) locker {
	create := map[string]func(*sql.DB, ...pglock.Option) *pglock.Manager{pq: pqlock.New, pgx: pgxlock.New}[driver]
	return holdfastLocker{create(db, append(opts, pglock.WithHolderID(holder), pglock.WithLivenessWindow(window))...)}
}

func (l holdfastLocker) acquire(ctx context.Context, r request) (held, error) {
	var opts []ports.AcquireOption
	if r.shared {
		opts = append(opts, ports.WithShared())
	}
	if r.fencing {
		opts = append(opts, ports.WithFencing())
	}
	if r.try {
		lock, ok, err := l.TryAcquire(ctx, r.key, opts...)
		if err != nil || !ok {
			return nil, err
		}
		return holdfastHeld{lock}, nil
	}
	lock, err := l.Acquire(ctx, r.key, opts...)
	switch {
	case errors.Is(err, ports.ErrNotAcquired):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return holdfastHeld{lock}, nil
}

func (l holdfastLocker) close(ctx context.Context) error { return l.Close(ctx) }

type holdfastHeld struct{ ports.Lock }

func (h holdfastHeld) done() <-chan struct{} { return h.Done() }
func (h holdfastHeld) backend() int          { return h.Info().PID }
func (h holdfastHeld) token() uint64         { return uint64(h.Info().Token) }

func (h holdfastHeld) release(ctx context.Context) (outcome, error) {
	switch err := h.Release(ctx); {
	case err == nil:
		return released, nil
	case errors.Is(err, ports.ErrLost):
		return lost, err
	default:
		return unconfirmed, err
	}
}

func (h holdfastHeld) write(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return sqllock.RunTx(ctx, h.Lock, nil, fn)
}

// github.com/allisson/go-pglock: advisory locks on a pinned connection.

type goPglockLocker struct{ db *sql.DB }

func openGoPglock(_ context.Context, db *sql.DB, _, _ string) (locker, error) {
	return goPglockLocker{db}, nil
}

func (l goPglockLocker) acquire(ctx context.Context, r request) (held, error) {
	lock, err := peers.LockAdvisory(ctx, l.db, pglock.SHA256Key(r.key), r.shared, r.try)
	if err != nil && ctx.Err() != nil {
		err = nil // somebody else has it
	}
	if lock == nil {
		return nil, err
	}
	return &goPglockHeld{lock, l.db}, nil
}

func (l goPglockLocker) close(context.Context) error { return nil }

type goPglockHeld struct {
	lock *peers.AdvisoryLock
	db   *sql.DB
}

func (h *goPglockHeld) done() <-chan struct{} { return nil }
func (h *goPglockHeld) backend() int          { return 0 }
func (h *goPglockHeld) token() uint64         { return 0 }

func (h *goPglockHeld) release(ctx context.Context) (outcome, error) {
	if err := h.lock.Unlock(ctx); err != nil {
		return unconfirmed, err
	}
	return released, nil
}

func (h *goPglockHeld) write(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return plainTx(ctx, h.db, fn)
}

// plainTx runs a transaction on any connection.
func plainTx(ctx context.Context, db *sql.DB, fn func(context.Context, *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(ctx, tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// cirello.io/pglock: leases in a table.

type cirelloLocker struct {
	client *peertable.Client
	db     *sql.DB
}

func openCirello(ctx context.Context, db *sql.DB, _, holder string) (locker, error) {
	client, err := peertable.UnsafeNew(db, // New takes lib/pq only
		peertable.WithLeaseDuration(window),
		peertable.WithHeartbeatFrequency(window/5),
		peertable.WithOwner(holder))
	if err != nil {
		return nil, err
	}
	return cirelloLocker{client, db}, nil
}

// acquire leaves the lock to Do, which is the library's way of telling a loss.
func (l cirelloLocker) acquire(ctx context.Context, r request) (held, error) {
	var opts []peertable.LockOption
	if r.try {
		opts = append(opts, peertable.FailIfLocked())
	}
	// Do's context is that of the wait and of the hold.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopWaiting := context.AfterFunc(ctx, cancel)
	h := &cirelloHeld{db: l.db, giveUp: make(chan struct{}), over: make(chan error, 1)}
	granted := make(chan struct{})
	go func() {
		defer cancel()
		h.over <- l.client.Do(own, r.key, func(ctx context.Context, lock *peertable.Lock) error {
			h.lost = ctx.Done()
			close(granted)
			select {
			case <-ctx.Done():
				return errLeaseLost
			case <-h.giveUp:
				return lock.Close()
			}
		}, opts...)
	}()
	select {
	case <-granted:
		if stopWaiting() {
			return h, nil
		}
		h.once.Do(func() { close(h.giveUp) })
		<-h.over
		return nil, nil
	case err := <-h.over:
		stopWaiting()
		if errors.Is(err, peertable.ErrNotAcquired) || ctx.Err() != nil {
			return nil, nil
		}
		return nil, err
	}
}

func (l cirelloLocker) close(context.Context) error { return nil }

var errLeaseLost = errors.New("the lease was lost")

type cirelloHeld struct {
	db     *sql.DB
	lost   <-chan struct{}
	once   sync.Once
	giveUp chan struct{}
	over   chan error
}

func (h *cirelloHeld) done() <-chan struct{} { return h.lost }
func (h *cirelloHeld) backend() int          { return 0 }
func (h *cirelloHeld) token() uint64         { return 0 }

func (h *cirelloHeld) release(ctx context.Context) (outcome, error) {
	h.once.Do(func() { close(h.giveUp) })
	select {
	case err := <-h.over:
		switch {
		case err == nil:
			return released, nil
		case errors.Is(err, errLeaseLost), errors.Is(err, peertable.ErrLockAlreadyReleased):
			return lost, err
		default:
			return unconfirmed, err
		}
	case <-ctx.Done():
		return unconfirmed, fmt.Errorf("no answer to the release: %w", ctx.Err())
	}
}

func (h *cirelloHeld) write(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return plainTx(ctx, h.db, fn)
}

// prepare makes what a library needs in the database.
func (l library) prepare(db *sql.DB) error {
	if l.name != cirello.name {
		return nil
	}
	client, err := peertable.UnsafeNew(db, peertable.WithHeartbeatFrequency(time.Second))
	if err != nil {
		return err
	}
	return client.TryCreateTable()
}
