// Package mocklock adds locks to a test that uses go-sqlmock: the expectations of
// the locks stand among those of the application's own queries, in one order.
//
//	db, mock, err := sqlmock.New()
//	locks := mocklock.New(db, mock)
//	locks.ExpectAcquire("invoices")
//	mock.ExpectExec("UPDATE invoices").WillReturnResult(sqlmock.NewResult(0, 3))
//	locks.ExpectRelease("invoices")
//
// What New returns is the application's lock manager for the test. Each acquire
// and each release is one statement to the mock and nothing else is: no proof of
// the setup, no checks, no settings. The statement is not SQL but says what
// happens and how to expect it, so that sqlmock's messages do; its argument is
// the key. Locks in transactions (sqllock.AcquireTx and the like) send the
// statements that they always send, and the expectations learn them from sqllock.
//
// It works with sqlmock's ordinary matcher of regular expressions and with
// sqlmock.QueryMatcherEqual, whichever the mock has.
//
// It excludes nobody: who gets a lock is what the test says. adapters/memlock is
// the better double wherever exclusion matters, or time, or several waiters, or
// where there is no sqlmock yet: its locks exclude within the process, its
// sessions can be ended by hand (memlock.Server.Kill), and tests need no
// expectations. sqllock.RunTx and RunConn say ports.ErrUnsupported here.
package mocklock

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// Locks is a lock manager whose every acquire and release has to be expected.
// Hand it, or the *pglock.Manager in it, to the code under test, and close it
// before mock.ExpectationsWereMet.
type Locks struct {
	*pglock.Manager
	pool  *pool
	mock  sqlmock.Sqlmock
	equal bool // the mock compares statements instead of matching patterns
}

// New makes locks on a mock and its database. Make them before the first
// expectation: New finds out with one of its own how the mock compares
// statements, and panics if other expectations are in the way, or if db or mock
// is nil or they do not belong together.
//
// Options are those of any manager. A key function and a namespace change
// nothing, since expectations are about keys.
func New(db *sql.DB, mock sqlmock.Sqlmock, opts ...pglock.Option) *Locks {
	if db == nil || mock == nil {
		panic("mocklock.New: nil; give it both results of sqlmock.New")
	}
	l := &Locks{pool: newPool(db), mock: mock, equal: comparesText(db, mock)}
	opts = append(opts[:len(opts):len(opts)], pglock.WithoutVerification(), pglock.WithObserver(pglock.Observer{Acquire: l.pool.acquiring}))
	l.Manager = pglock.NewManager(l.pool, opts...)
	return l
}

// comparesText reports whether the mock compares statements as they are. It asks
// with a pattern that matches another statement, but not itself.
func comparesText(db *sql.DB, mock sqlmock.Sqlmock) bool {
	const pattern, matched = `^mocklock.New.$`, `mocklock.New;`
	mock.ExpectExec(pattern).WillReturnResult(sqlmock.NewResult(0, 0))
	if _, err := db.Exec(pattern); err == nil {
		return true
	}
	if _, err := db.Exec(matched); err != nil {
		panic(fmt.Sprintf("mocklock.New: the mock does not answer; call New before the first expectation, with the db of the same mock, and use QueryMatcherRegexp or QueryMatcherEqual: %v", err))
	}
	return false
}

// text is a statement as the mock wants to be told it.
func (l *Locks) text(statement string) string {
	if l.equal {
		return statement
	}
	return "^" + regexp.QuoteMeta(statement) + "$"
}

// expect expects one of this package's statements and says what it answers.
func (l *Locks) expect(statement func(ports.Mode) string, key string, answer bool, opts []ports.AcquireOption) *sqlmock.ExpectedQuery {
	mode := ports.NewAcquireOptions(opts...).Mode
	return l.mock.ExpectQuery(l.text(statement(mode))).WithArgs(key).
		WillReturnRows(sqlmock.NewRows([]string{"answer"}).AddRow(answer))
}

// ExpectAcquire expects that the key is asked for, by Acquire, Do, TryAcquire or
// TryDo, and grants it. For AcquireAll, expect each of the keys, in the order of
// their KeyID. Of opts only WithShared matters.
//
// WillReturnError on what it returns makes the acquire fail, and WillDelayFor has
// it wait.
func (l *Locks) ExpectAcquire(key string, opts ...ports.AcquireOption) *sqlmock.ExpectedQuery {
	return l.expect(lockStatement, key, true, opts)
}

// ExpectTryAcquire expects that the key is asked for by TryAcquire or TryDo, and
// says whether it is granted.
func (l *Locks) ExpectTryAcquire(key string, granted bool, opts ...ports.AcquireOption) *sqlmock.ExpectedQuery {
	return l.expect(lockStatement, key, granted, opts)
}

// ExpectAcquireTimeout expects that the key is asked for by Acquire or Do, and
// has someone else keep it for the whole wait. The wait takes as long as the
// call's timeout or context allow, so keep it short, or use testing/synctest.
func (l *Locks) ExpectAcquireTimeout(key string, opts ...ports.AcquireOption) *sqlmock.ExpectedQuery {
	return l.expect(lockStatement, key, false, opts)
}

// ExpectRelease expects that the key is given back, by Release, ReleaseAll, Close
// or the end of Do. WillReturnError on what it returns is a release that cannot
// be confirmed. ReleaseAll and Close release several locks in any order: with
// those, a mock in order is met by chance.
func (l *Locks) ExpectRelease(key string, opts ...ports.AcquireOption) *sqlmock.ExpectedQuery {
	return l.expect(unlockStatement, key, true, opts)
}

// ExpectReleaseLost expects that the key is given back, and answers that the
// server no longer had the lock: the release returns ports.ErrLost.
func (l *Locks) ExpectReleaseLost(key string, opts ...ports.AcquireOption) *sqlmock.ExpectedQuery {
	return l.expect(unlockStatement, key, false, opts)
}

// Lose ends the sessions that hold key, as a server does that restarts. When it
// returns, the hold has ended with ports.ErrLost. It reports whether there was
// one. A lock that is lost is not given back: expect no release of it.
func (l *Locks) Lose(key string) bool { return l.pool.lose(key) }

// lockStatement and unlockStatement are what sessions send to the mock. They are
// for people to read in sqlmock's messages.
func lockStatement(mode ports.Mode) string {
	return "holdfast: acquire " + mode.String() + " lock, to be expected with ExpectAcquire, ExpectTryAcquire or ExpectAcquireTimeout"
}

func unlockStatement(mode ports.Mode) string {
	return "holdfast: release " + mode.String() + " lock, to be expected with ExpectRelease or ExpectReleaseLost"
}

// acquiring notes which key stands behind an ID, and forgets at the end of a call
// that it was refused.
func (p *pool) acquiring(ctx context.Context, a pglock.AcquireStart) (context.Context, func(pglock.AcquireEnd)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys[a.ID] = a.Key
	return ctx, func(pglock.AcquireEnd) {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.refused, a.ID)
	}
}
