// Package peers uses other lock libraries as their authors mean them to be used,
// for the suites that compare them with Holdfast.
package peers

import (
	"context"
	"database/sql"
	"errors"

	advisory "github.com/allisson/go-pglock/v3"
)

// The libraries, as reports name them.
const (
	GoPglock = "allisson/go-pglock v3.2.0"
	Cirello  = "cirello.io/pglock v1.16.1"
)

// AdvisoryLock is a lock of GoPglock: a session lock on a connection of its own.
type AdvisoryLock struct {
	lock   advisory.Lock
	shared bool
}

// LockAdvisory takes the lock of an ID. With try, it returns nil and no error if
// somebody else has it; otherwise it waits.
func LockAdvisory(ctx context.Context, db *sql.DB, id int64, shared, try bool) (*AdvisoryLock, error) {
	lock, err := advisory.NewLock(ctx, id, db)
	if err != nil {
		return nil, err
	}
	ok := true
	switch {
	case try && shared:
		ok, err = lock.RLock(ctx)
	case try:
		ok, err = lock.Lock(ctx)
	case shared:
		err = lock.WaitAndRLock(ctx)
	default:
		err = lock.WaitAndLock(ctx)
	}
	if err != nil || !ok {
		_ = lock.Close()
		return nil, err
	}
	return &AdvisoryLock{lock, shared}, nil
}

// Unlock gives the lock and its connection back.
func (l *AdvisoryLock) Unlock(ctx context.Context) error {
	unlock := l.lock.Unlock
	if l.shared {
		unlock = l.lock.RUnlock
	}
	return errors.Join(unlock(ctx), l.lock.Close())
}
