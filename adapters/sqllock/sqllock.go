// Package sqllock makes lock managers on any database/sql driver for
// PostgreSQL, including drivers that are wrapped for instrumentation.
//
// Each hold, and each wait, pins one connection of the *sql.DB with db.Conn, so
// that the session that has the lock is the session that is asked to unlock.
// A connection goes back to the pool only if it is known to hold nothing, with
// every setting as it was found; in any doubt it is closed. The package also
// has locks that live in the caller's transaction ([AcquireTx], [TryDoTx]), and
// transactions on the session that holds a lock ([RunTx]).
//
// With lib/pq use adapters/pqlock and with pgx adapters/pgxlock instead: they
// add what only one driver can do, and share everything else with this package.
//
// It does not lock anything across databases, and it does not work behind a
// pooler in transaction mode, except for the locks in transactions.
package sqllock

import (
	"context"
	"database/sql"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// New makes a lock manager on the connections of db. It opens nothing, and
// never closes db. It panics if db is nil.
//
// The manager pins at most one connection less than db.SetMaxOpenConns allows,
// or what pglock.WithMaxSessions says.
func New(db *sql.DB, opts ...pglock.Option) *pglock.Manager {
	return pglock.NewManager(NewPool(db, Driver{}), opts...)
}

// Driver says in what a database/sql driver differs from any other. The zero
// value works with every driver for PostgreSQL. Adapters for one driver set its
// fields; users do not need it.
type Driver struct {
	// Arguments has statements carry their numbers as arguments rather than in
	// the text. It is for drivers that cache prepared statements; with others
	// an argument costs a second round trip.
	Arguments bool

	// Unprepared, if not nil, goes before the arguments of a statement that is
	// expected to fail, so that the driver does not prepare it: one that drops a
	// prepared statement at an error would prepare each wait anew, in a round
	// trip more.
	Unprepared any

	// Interrupt returns a function that makes a command that is running on a
	// driver's connection return at once, by closing its socket. That is called
	// concurrently with the command. Without it, or where it returns nil,
	// commands are interrupted through their context.
	Interrupt func(driverConn any) (interrupt func())

	// Close ends a connection, with no command running, so that the server
	// ends the session; and reports whether it could. Without it, the session
	// is asked to end itself first, since the driver's own Close might hand it
	// to a pool.
	Close func(driverConn any) bool

	// Watch blocks until the server has ended the session, and returns why, or
	// until ctx ends, and leaves the connection usable. Without it, the end of
	// a session is noticed by the manager's checks.
	Watch func(ctx context.Context, driverConn any) error
}

// NewPool makes the session pool of New, for a driver with differences. It
// panics if db is nil.
func NewPool(db *sql.DB, d Driver) ports.SessionPool {
	if db == nil {
		panic("sqllock: nil *sql.DB; open one with sql.Open or sql.OpenDB first")
	}
	p := &pool{db: db, driver: d, form: inText}
	if d.Arguments {
		p.form = asArguments
	}
	return p
}
