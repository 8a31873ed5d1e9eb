// Package pqlock makes lock managers on a *sql.DB that uses lib/pq.
//
// It is sqllock with the two things that differ under lib/pq: numbers travel in
// the text of a statement, which saves the second round trip that an argument
// costs there; and a session that does not answer is ended by closing its
// socket, since lib/pq goes on reading after its context has ended. All else,
// what it promises and what it does not, is said in package sqllock, whose
// transaction locks, RunTx and RunConn serve here as well.
package pqlock

import (
	"database/sql"
	"database/sql/driver"

	// Registers the driver "postgres", so that importing this package is
	// enough to open a database.
	_ "github.com/lib/pq"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// New makes a lock manager on the connections of db; see sqllock.New.
func New(db *sql.DB, opts ...pglock.Option) *pglock.Manager {
	return pglock.NewManager(NewPool(db), opts...)
}

// NewPool makes the session pool of New.
func NewPool(db *sql.DB) ports.SessionPool {
	return sqllock.NewPool(db, sqllock.Driver{
		Interrupt: func(driverConn any) func() {
			if conn, ok := driverConn.(driver.Conn); ok {
				return func() { conn.Close() }
			}
			return nil
		},
		Close: closeConn,
	})
}

// closeConn closes a connection of lib/pq: it writes the Terminate message past
// its buffers and closes the socket, both of which are safe beside a statement
// that is stuck reading. A reading statement then returns.
func closeConn(driverConn any) bool {
	conn, ok := driverConn.(driver.Conn)
	if ok {
		conn.Close()
	}
	return ok
}
