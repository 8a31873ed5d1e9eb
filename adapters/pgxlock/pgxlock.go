// Package pgxlock makes lock managers on a *sql.DB that uses pgx's stdlib
// driver, opened by name, by stdlib.OpenDB or by stdlib.OpenDBFromPool.
//
// It is sqllock with the three things that differ under pgx: numbers travel as
// arguments, so that its cache of prepared statements serves every key (but not
// the waits, which it would forget whenever one was in vain); the end of a session
// is noticed at once, without a query; and a session in doubt is ended for real,
// where the driver's own Close would hand it to the pgxpool. All else, what it
// promises and what it does not, is said in package sqllock, whose transaction
// locks, RunTx and RunConn serve here as well.
//
// A *sql.DB from stdlib.OpenDBFromPool does not know the size of its pgxpool:
// call db.SetMaxOpenConns(int(pool.Config().MaxConns)), or use
// pglock.WithMaxSessions, so that waiters cannot take every connection.
package pgxlock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

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
		Arguments:  true,
		Unprepared: pgx.QueryExecModeExec,
		Interrupt:  socketCloser,
		Close:      closeConn,
		Watch:      watch,
	})
}

// pgxConn finds pgx's own connection under a driver's, also in a wrapper that
// has the customary Raw method.
func pgxConn(driverConn any) *pgx.Conn {
	switch c := driverConn.(type) {
	case *stdlib.Conn:
		return c.Conn()
	case interface{ Raw() driver.Conn }:
		return pgxConn(c.Raw())
	}
	return nil
}

// socketCloser makes a command that is reading from the connection fail; pgx
// then closes the rest by itself.
func socketCloser(driverConn any) func() {
	conn := pgxConn(driverConn)
	if conn == nil {
		return nil
	}
	return func() { conn.PgConn().Conn().Close() }
}

// closeConn ends the session for good. A pgxpool that gets a closed connection
// back throws it away.
func closeConn(driverConn any) bool {
	conn := pgxConn(driverConn)
	if conn == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx) // the socket is closed whatever it returns
	return true
}

// watch waits for a notification that never comes: nothing is sent, the session
// stays idle at the server, and its end is noticed at once. An application that
// listens on a lock's session through RunConn gets what comes in while it has
// the session; what comes at other times goes to pgx's OnNotification handler
// if one is set, and is dropped if not.
func watch(ctx context.Context, driverConn any) error {
	conn := pgxConn(driverConn)
	if conn == nil { // wrapped beyond recognition: the manager's checks must do
		<-ctx.Done()
		return nil
	}
	for {
		_, err := conn.WaitForNotification(ctx)
		if err != nil && ctx.Err() != nil && !conn.IsClosed() {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
