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

// finishGrace is how long the statements that begin, prove and end a borrowed
// session's work may go on after the context has ended.
const finishGrace = 5 * time.Second

// RunTx runs fn in a transaction on the very session that holds lock. Its first
// statement asks the server whether the session still has the lock, and has the
// transaction hold it too; so nothing of a holder that was overtaken is ever
// written, and no fencing token is needed. When the session ends, nothing can
// commit any more.
//
// If fn returns an error, panics or ends its goroutine, the transaction is
// rolled back. The lock stays held, unless the session is in doubt; then it is
// lost, and the session is closed. The context that fn gets carries the lock,
// and ends when the lock is released or found to be lost. While fn has the
// session, the lock is looked for on another connection of the pool; if all are
// in use, a loss is noticed by fn's statements only. What fn has set on the
// session and committed stays until the release; then the connection is closed,
// not handed back to the pool.
//
// Within fn a result may be read as slowly as you like. In exchange, if the
// network breaks while an answer is on its way to fn, the server's kernel takes
// its own time to give up, which can be a quarter of an hour, and the lock stays
// taken until then.
//
// The session does one thing at a time: do not use RunTx or RunConn on the same
// lock within fn. A statement that is cancelled by its context costs the
// connection, and with it the lock.
//
// It returns ports.ErrUnsupported for a lock without a session of its own, and
// errors that wrap ports.ErrLost or ports.ErrReleased if the hold has ended. A
// nil error means that the transaction was committed.
func RunTx(ctx context.Context, lock ports.Lock, opts *sql.TxOptions, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return borrow(ctx, lock, func(held context.Context, s *session) (err error) {
		// The transaction does not end with the context by itself: that could
		// cost the connection, where a rollback does not.
		own := context.WithoutCancel(ctx)
		var tx *sql.Tx
		err = s.bounded(ctx, func() (err error) {
			tx, err = s.conn.BeginTx(own, opts)
			return s.note(err)
		})
		if err != nil {
			return err
		}
		defer func() { // unless it was committed
			rolledBack := s.bounded(ctx, func() error { return s.note(tx.Rollback()) })
			if rolledBack != nil && !errors.Is(rolledBack, sql.ErrTxDone) {
				err = errors.Join(err, rolledBack)
			}
		}()
		err = s.bounded(ctx, func() error {
			return s.verify(own, pinHeld, func(ctx context.Context, statement string, args []any, dest ...any) error {
				return s.note(tx.QueryRowContext(ctx, statement, args...).Scan(dest...))
			})
		})
		if err != nil {
			return err
		}
		if err := fn(held, tx); err != nil {
			return err
		}
		s.doubt = true // a SET that is committed stays on the session
		return s.bounded(ctx, func() error { return s.note(tx.Commit()) })
	})
}

// RunConn lends fn the session that holds lock, as it is, for what cannot run
// in a transaction, such as CREATE INDEX CONCURRENTLY. Leave the connection
// open, close the rows that you open and end the transactions that you begin;
// with the context that fn gets they end when fn does, which may cost the
// connection.
//
// When fn is done, an open transaction is rolled back, and the server is asked
// whether the session still has the lock; if not, or if the session is in
// doubt, the lock is lost. What RunTx says of settings, contexts, nesting and
// errors holds here, too.
func RunConn(ctx context.Context, lock ports.Lock, fn func(ctx context.Context, conn *sql.Conn) error) error {
	return borrow(ctx, lock, func(held context.Context, s *session) (err error) {
		s.doubt = true
		if err := s.bounded(ctx, func() error { return s.endure(context.WithoutCancel(ctx), 0) }); err != nil {
			return err
		}
		held, done := context.WithCancel(held)
		defer func() {
			done()
			if tidied := s.tidy(context.WithoutCancel(ctx)); tidied != nil {
				s.unfit = true
				err = errors.Join(err, tidied)
			}
		}()
		return fn(held, s.conn)
	})
}

// borrow runs use on the session of lock. Whether the session can be trusted
// afterwards is read off it, not off use's error, which may be anything.
func borrow(ctx context.Context, lock ports.Lock, use func(held context.Context, s *session) error) error {
	if lock == nil {
		return &ports.LockError{Op: "run", Err: fmt.Errorf("%w: the lock is nil; FromContext finds one only within Do, TryDo or Context", ports.ErrUnsupported)}
	}
	refuse := func(why string) error {
		return &ports.LockError{Op: "run", Key: lock.Info().Key, Err: fmt.Errorf("%w: %s", ports.ErrUnsupported, why)}
	}
	lender, ok := lock.(ports.SessionLender)
	if !ok {
		return refuse("this lock has no session of its own")
	}
	held, cancel := pglock.Context(ctx, lock)
	defer cancel()
	var err error
	lendErr := lender.LendSession(ctx, func(lent ports.Session) bool {
		s, ok := lent.(interface{ base() *session })
		if !ok {
			err = refuse("this lock is not held on a database/sql connection")
			return true
		}
		err = s.base().lend(held, use)
		if s.base().fit() {
			return true
		}
		if err == nil { // the work is done, and the session ended right after it
			return false
		}
		err = &ports.LockError{Op: "run", Key: lock.Info().Key, Err: fmt.Errorf("%w: %w", ports.ErrLost, err)}
		return false
	})
	if lendErr != nil {
		return lendErr
	}
	return err
}

// base gets the session out of what Open returned.
func (s *session) base() *session { return s }

// lend takes the session for as long as use runs.
func (s *session) lend(held context.Context, use func(context.Context, *session) error) error {
	_, end, err := s.begin(context.Background())
	if err != nil {
		return err
	}
	defer end()
	s.borrowed = true
	s.lent.Store(true)
	defer s.lent.Store(false)
	return use(held, s)
}

// fit reports whether the session can go on carrying its lock.
func (s *session) fit() bool {
	<-s.idle
	defer func() { s.idle <- struct{}{} }()
	return !s.over && !s.ended && !s.escaped && !s.unfit
}

// note is for the errors of statements that do not go through query: it keeps
// in mind whether the session is over. It returns err.
func (s *session) note(err error) error {
	if err != nil && !errors.Is(err, sql.ErrTxDone) && sessionEnded(err) {
		s.ended = true
	}
	return err
}

// bounded runs f, and ends the session if f still runs finishGrace after ctx
// has ended, which makes f return.
func (s *session) bounded(ctx context.Context, f func() error) error {
	running, done := context.WithCancel(context.Background())
	defer done()
	defer context.AfterFunc(ctx, func() {
		late := time.NewTimer(finishGrace)
		defer late.Stop()
		select {
		case <-running.Done():
		case <-late.C:
			s.Destroy()
		}
	})()
	return f()
}

// tidy leaves a session that a borrower has used with no open transaction, and
// proves that it still has its locks, within finishGrace: database/sql makes us
// wait for ever if the borrower has left rows open.
func (s *session) tidy(ctx context.Context) error {
	if errors.Is(s.conn.Raw(func(any) error { return nil }), sql.ErrConnDone) {
		s.escaped = true
		return errors.New("the connection was closed by the function that borrowed it, or broke")
	}
	done := make(chan error, 1)
	go func() { done <- s.endTransaction(ctx) }()
	grace := time.NewTimer(finishGrace)
	defer grace.Stop()
	select {
	case err := <-done:
		return err
	case <-grace.C:
		return errors.New("the session does not answer, or rows were left open on it")
	}
}

// endTransaction rolls back a transaction block that is open, and verifies the
// locks.
func (s *session) endTransaction(ctx context.Context) error {
	open, err := s.inTransaction(ctx)
	if err != nil {
		return err
	}
	if open {
		if _, err := s.conn.ExecContext(ctx, rollback); err != nil {
			return s.note(err)
		}
	}
	if err := s.endure(ctx, s.liveness); err != nil {
		return err
	}
	return s.verify(ctx, countHeld, s.query)
}

// endure sets how long the server endures data that the client does not take; 0
// for as long as its kernel likes.
func (s *session) endure(ctx context.Context, d time.Duration) error {
	if s.liveness == 0 {
		return nil
	}
	return s.queryUnbound(ctx, patient, []any{milliseconds(d)}, new(sql.NullString))
}

// inTransaction reports whether a transaction block is open on the session.
func (s *session) inTransaction(ctx context.Context) (bool, error) {
	var before, after string
	for _, name := range []*string{&before, &after} {
		switch err := s.query(ctx, whichTransaction, nil, name); {
		case sqlState(err) == inFailedTransaction:
			return true, nil
		case err != nil:
			return false, err
		}
	}
	return before == after, nil
}
