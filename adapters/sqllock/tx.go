package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// txSlice is the longest single wait of AcquireTx at the server; see "slices at
// the server" in docs/adr.
const txSlice = 500 * time.Millisecond

// TxOption adjusts one lock in a transaction.
type TxOption func(*txConfig)

type txConfig struct {
	mode    ports.Mode
	keyID   func(string) int64
	form    form
	timeout time.Duration // negative: only the context bounds the wait
}

// TxShared asks for ports.Shared.
func TxShared() TxOption {
	return func(c *txConfig) { c.mode = ports.Shared }
}

// TxKeyID derives the lock ID with f instead of pglock.SHA256Key. Give it the
// KeyID method of a manager that has a namespace or a key function, so that the
// transaction's lock and the manager's exclude each other; one that has
// pglock.WithTwoIntegerKeys needs TxTwoIntegerKeys instead. It panics if f is
// nil.
func TxKeyID(f func(key string) int64) TxOption {
	if f == nil {
		panic("sqllock.TxKeyID: nil function; leave the option out to use pglock.SHA256Key")
	}
	return func(c *txConfig) { c.keyID, c.form = f, inText }
}

// TxTwoIntegerKeys has the lock be one of two 32-bit integers, which f derives
// from the key, like those of a manager with pglock.WithTwoIntegerKeys. Of this
// option and TxKeyID the last one counts. It panics if f is nil.
func TxTwoIntegerKeys(f func(key string) (first, second int32)) TxOption {
	if f == nil {
		panic("sqllock.TxTwoIntegerKeys: nil function; leave the option out to use pglock.SHA256Key")
	}
	return func(c *txConfig) {
		c.keyID, c.form = func(key string) int64 { return ports.PairID(f(key)) }, inText|ofPairs
	}
}

// TxTimeout bounds the wait of AcquireTx, beside its context. Zero means one
// attempt without waiting. It panics if d is negative.
func TxTimeout(d time.Duration) TxOption {
	if d < 0 {
		panic(fmt.Sprintf("sqllock.TxTimeout: negative duration %v; leave the option out to wait for as long as the context allows", d))
	}
	return func(c *txConfig) { c.timeout = d }
}

func newTxConfig(opts []TxOption) txConfig {
	c := txConfig{keyID: pglock.SHA256Key, timeout: -1}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	return c
}

// AcquireTx waits for the key in tx, which then holds it until it commits or
// rolls back, or rolls back to a savepoint that was set before. It excludes
// every manager and every other transaction on the same database. It works
// behind a pooler in transaction mode.
//
// A wait that ends by the context's deadline or TxTimeout returns an error that
// wraps ports.ErrNotAcquired and context.DeadlineExceeded, and leaves tx
// usable, with its settings as they were. A context that is cancelled may cost
// the connection, as with any statement. Errors are *ports.LockError.
func AcquireTx(ctx context.Context, tx *sql.Tx, key string, opts ...TxOption) error {
	c := newTxConfig(opts)
	if err := c.acquire(ctx, tx, c.keyID(key)); err != nil {
		return &ports.LockError{Op: "acquire", Key: key, Err: err}
	}
	return nil
}

// TryAcquireTx is AcquireTx without the wait: it returns false if someone else
// holds the key.
func TryAcquireTx(ctx context.Context, tx *sql.Tx, key string, opts ...TxOption) (bool, error) {
	c := newTxConfig(opts)
	acquired, err := c.try(ctx, tx, c.keyID(key))
	if err != nil {
		return false, &ports.LockError{Op: "try", Key: key, Err: err}
	}
	return acquired, nil
}

// TryDoTx runs fn in a transaction that holds the key, and commits it if fn
// returns nil; if someone else holds the key it returns false and no error, and
// fn does not run. If fn returns an error, panics or ends its goroutine, the
// transaction is rolled back. Whatever happens, the lock ends with it.
func TryDoTx(ctx context.Context, db *sql.DB, key string, fn func(ctx context.Context, tx *sql.Tx) error, opts ...TxOption) (ran bool, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if sqlState(err) == notSupported { // lib/pq asks for READ WRITE, which a standby refuses
		err = fmt.Errorf("%w (%w)", errRecovery, err)
	}
	if err != nil {
		return false, &ports.LockError{Op: "try", Key: key, Err: err}
	}
	defer tx.Rollback() // does nothing after a commit
	acquired, err := TryAcquireTx(ctx, tx, key, opts...)
	if err != nil || !acquired {
		return false, err
	}
	if err := fn(ctx, tx); err != nil {
		return true, err
	}
	return true, tx.Commit()
}

// try asks once.
func (c txConfig) try(ctx context.Context, tx *sql.Tx, id int64) (acquired bool, err error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	statement, _ := c.form.bind(exclusiveOr(c.mode, txTryExclusive, txTryShared), id)
	var answer int64
	err = detached(ctx, func() error {
		result, err := tx.ExecContext(ctx, statement)
		if err == nil {
			answer, err = result.RowsAffected()
		}
		return err
	})
	if err == nil && answer == 2 {
		err = errRecovery
	}
	return answer == 1 && err == nil, err
}

// acquire tries, and waits in slices if that is refused. An error would abort
// the transaction, so each slice runs behind a savepoint; going back to it also
// drops a lock that was granted in the moment of the error.
func (c txConfig) acquire(ctx context.Context, tx *sql.Tx, id int64) error {
	deadline, bounded := ctx.Deadline()
	if c.timeout >= 0 && (!bounded || time.Until(deadline) > c.timeout) {
		deadline, bounded = time.Now().Add(c.timeout), true
	}
	acquired, err := c.try(ctx, tx, id)
	if acquired || err != nil {
		return err
	}
	exec := func(statement string) error {
		return detached(ctx, func() error {
			driverCtx, cancel := withoutDeadline(ctx)
			defer cancel()
			_, err := tx.ExecContext(driverCtx, statement)
			return err
		})
	}
	if err := exec(txSavepoint); err != nil {
		return err
	}
	for {
		wait := txSlice
		if bounded {
			wait = min(wait, time.Until(deadline))
		}
		if wait <= 0 {
			err := context.Cause(ctx)
			if err == nil || !errors.Is(err, context.DeadlineExceeded) {
				err = errors.Join(context.DeadlineExceeded, err)
			}
			return errors.Join(fmt.Errorf("%w: %w", ports.ErrNotAcquired, err), exec(txRelease))
		}
		sent := time.Now()
		statement, _ := c.form.bind(exclusiveOr(c.mode, txWaitExclusive, txWaitShared), id, milliseconds(wait))
		err := exec(statement)
		if err == nil {
			return exec(txRelease)
		}
		if !waitEnded(err) {
			return err
		}
		if err := exec(txRollback); err != nil {
			return err
		}
		if early := wait/2 - time.Since(sent); early > 0 {
			// A statement_timeout that is far below a slice must not make this
			// loop spin.
			pause := time.NewTimer(min(early, 50*time.Millisecond))
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
			pause.Stop()
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return context.Cause(ctx)
		}
	}
}

// withoutDeadline derives a context that ends when ctx is cancelled, but not
// when its deadline passes: the server ends the wait then, which costs no
// connection. It ends closeGrace after the deadline if the server does not
// answer.
func withoutDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	driverCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cancel()
			return
		}
		late := time.AfterFunc(closeGrace, cancel)
		context.AfterFunc(driverCtx, func() { late.Stop() })
	})
	return driverCtx, func() { stop(); cancel() }
}

// detached runs one statement so that a driver that ignores its context cannot
// hang the caller: after the context has ended it waits no longer than
// 2 × closeGrace.
func detached(ctx context.Context, statement func() error) error {
	if ctx.Done() == nil {
		return statement()
	}
	done := make(chan error, 1)
	go func() { done <- statement() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(2 * closeGrace)
	defer grace.Stop()
	select {
	case err := <-done:
		return err
	case <-grace.C:
		return fmt.Errorf("the server does not answer: %w", context.Cause(ctx))
	}
}
