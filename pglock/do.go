package pglock

import (
	"context"
	"errors"

	"github.com/holdfast-go/holdfast/ports"
)

// Do waits for the key, runs fn while it is held, and releases it, whether fn
// returns, panics or ends its goroutine. The context that fn gets ends with
// the hold and carries the lock (see Context); a fn that stops when it ends
// does not work on beside a rival for longer than the manager takes to notice
// a loss.
//
// It returns the error of the wait, or fn's error joined with what the release
// could not confirm: after a loss that is an error that wraps ports.ErrLost,
// although fn itself returned nil.
func Do(ctx context.Context, locks ports.DistributedLock, key string, fn func(ctx context.Context) error, opts ...ports.AcquireOption) error {
	lock, err := locks.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	return run(ctx, lock, fn)
}

// TryDo is Do without the wait: if someone else holds the key it returns false
// and no error, and fn does not run. It is the "at most one replica does this
// now" of cron jobs.
func TryDo(ctx context.Context, locks ports.DistributedLock, key string, fn func(ctx context.Context) error, opts ...ports.AcquireOption) (ran bool, err error) {
	lock, acquired, err := locks.TryAcquire(ctx, key, opts...)
	if err != nil || !acquired {
		return false, err
	}
	return true, run(ctx, lock, fn)
}

// run calls fn under lock and releases it in every way that fn can end.
func run(ctx context.Context, lock ports.Lock, fn func(context.Context) error) (err error) {
	held, cancel := Context(ctx, lock)
	defer cancel()
	defer func() {
		if released := lock.Release(ctx); released != nil {
			err = errors.Join(err, released)
		}
	}()
	return fn(held)
}

type lockKey struct{}

// Context derives a context that ends with the hold: its cause is then
// lock.Err(), which is ports.ErrReleased or wraps ports.ErrLost. It carries
// the lock for FromContext. The returned function frees what the context
// needs; call it, as always, when the work is done. It does not release the
// lock.
func Context(parent context.Context, lock ports.Lock) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, lockKey{}, lock))
	if err := lock.Err(); err != nil {
		cancel(err)
		return ctx, func() {}
	}
	if h, ok := lock.(interface {
		whenEnded(func(error)) (never func())
	}); ok {
		never := h.whenEnded(cancel)
		return ctx, func() { never(); cancel(context.Canceled) }
	}
	go func() {
		select {
		case <-lock.Done():
			cancel(lock.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// FromContext returns the lock that Do, TryDo or Context put into ctx: to
// assert that one is held, to read its token, or to run a transaction on its
// session.
func FromContext(ctx context.Context) (ports.Lock, bool) {
	lock, ok := ctx.Value(lockKey{}).(ports.Lock)
	return lock, ok
}
