package mocklock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/ports"
)

// ExpectAcquireTx expects sqllock.AcquireTx and grants the lock at once. Give it
// the options of the call: a key function counts here, since the lock's ID is in
// the statement.
func (l *Locks) ExpectAcquireTx(key string, opts ...sqllock.TxOption) *sqlmock.ExpectedExec {
	return l.expectTx(true, func(ctx context.Context, tx *sql.Tx) error {
		return sqllock.AcquireTx(ctx, tx, key, opts...)
	})
}

// ExpectAcquireTxTimeout expects sqllock.AcquireTx with sqllock.TxTimeout(0), and
// has someone else hold the lock.
func (l *Locks) ExpectAcquireTxTimeout(key string, opts ...sqllock.TxOption) *sqlmock.ExpectedExec {
	opts = append(opts[:len(opts):len(opts)], sqllock.TxTimeout(0))
	return l.expectTx(false, func(ctx context.Context, tx *sql.Tx) error {
		err := sqllock.AcquireTx(ctx, tx, key, opts...)
		if errors.Is(err, ports.ErrNotAcquired) {
			return nil
		}
		return fmt.Errorf("got %w, want ErrNotAcquired", err)
	})
}

// ExpectTryAcquireTx expects sqllock.TryAcquireTx, and says whether the lock is
// granted. Give it the options of the call.
func (l *Locks) ExpectTryAcquireTx(key string, granted bool, opts ...sqllock.TxOption) *sqlmock.ExpectedExec {
	return l.expectTx(granted, func(ctx context.Context, tx *sql.Tx) error {
		_, err := sqllock.TryAcquireTx(ctx, tx, key, opts...)
		return err
	})
}

// ExpectTryDoTx expects the begin of the transaction of sqllock.TryDoTx, and its
// try. If that is granted, expect then what the function does in the transaction,
// and the commit or rollback; if not, the rollback is expected already.
func (l *Locks) ExpectTryDoTx(key string, granted bool, opts ...sqllock.TxOption) *sqlmock.ExpectedExec {
	l.mock.ExpectBegin()
	e := l.ExpectTryAcquireTx(key, granted, opts...)
	if !granted {
		l.mock.ExpectRollback()
	}
	return e
}

// expectTx expects the statements that call sends in a transaction, and returns
// the first of them, which tells whether the lock is granted.
func (l *Locks) expectTx(granted bool, call func(context.Context, *sql.Tx) error) *sqlmock.ExpectedExec {
	var first *sqlmock.ExpectedExec
	rows := int64(0)
	if granted {
		rows = 1
	}
	for _, statement := range record(rows, call) {
		e := l.mock.ExpectExec(l.text(statement)).WillReturnResult(sqlmock.NewResult(0, rows))
		if first == nil {
			first = e
		}
	}
	return first
}

// record runs call on a transaction that answers every statement with a number of
// rows, and returns the statements. So what is expected is what sqllock sends,
// whatever that is.
func record(rows int64, call func(context.Context, *sql.Tx) error) []string {
	r := &recorder{rows: driver.RowsAffected(rows)}
	db := sql.OpenDB(r)
	defer db.Close()
	ctx := context.Background()
	tx, err := db.BeginTx(ctx, nil)
	if err == nil {
		err = errors.Join(call(ctx, tx), tx.Commit())
	}
	if err != nil || len(r.statements) == 0 {
		panic(fmt.Sprintf("mocklock: the statements of sqllock cannot be learned: %v", err))
	}
	return r.statements
}

// recorder is a database, a connection and a transaction that write down what
// they are sent.
type recorder struct {
	rows       driver.RowsAffected
	statements []string
}

// Connect implements driver.Connector.
func (r *recorder) Connect(context.Context) (driver.Conn, error) { return r, nil }

// Driver implements driver.Connector.
func (r *recorder) Driver() driver.Driver { return nil }

// Begin implements driver.Conn.
func (r *recorder) Begin() (driver.Tx, error) { return r, nil }

// ExecContext implements driver.ExecerContext.
func (r *recorder) ExecContext(_ context.Context, statement string, _ []driver.NamedValue) (driver.Result, error) {
	r.statements = append(r.statements, statement)
	return r.rows, nil
}

// Prepare implements driver.Conn.
func (r *recorder) Prepare(statement string) (driver.Stmt, error) {
	return nil, fmt.Errorf("a statement that is not a plain Exec: %s", statement)
}

// Commit implements driver.Tx.
func (r *recorder) Commit() error { return nil }

// Rollback implements driver.Tx.
func (r *recorder) Rollback() error { return nil }

// Close implements driver.Conn.
func (r *recorder) Close() error { return nil }
