package mocklock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/holdfast-go/holdfast/adapters/mocklock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// Billing is the application: in production its locks are pgxlock.New(db).
type Billing struct {
	db    *sql.DB
	locks ports.DistributedLock
}

// CloseMonth closes the books, on one replica.
func (b Billing) CloseMonth(ctx context.Context) (ran bool, err error) {
	var open int
	if err := b.db.QueryRowContext(ctx, "SELECT count(*) FROM invoices WHERE open").Scan(&open); err != nil || open == 0 {
		return false, err
	}
	return pglock.TryDo(ctx, b.locks, "close-month", func(ctx context.Context) error {
		_, err := b.db.ExecContext(ctx, "UPDATE invoices SET open = false WHERE open")
		return err
	})
}

// A test of an application: its own queries and its lock stand in one mock, in
// the order in which they must happen.
func Example() {
	db, mock, err := sqlmock.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	locks := mocklock.New(db, mock)
	mock.ExpectQuery("SELECT count").WillReturnRows(sqlmock.NewRows([]string{"count"}).AddRow(2))
	locks.ExpectTryAcquire("close-month", true)
	mock.ExpectExec("UPDATE invoices").WillReturnResult(sqlmock.NewResult(0, 2))
	locks.ExpectRelease("close-month")

	ran, err := Billing{db, locks}.CloseMonth(context.Background())
	fmt.Println(ran, err)
	fmt.Println(locks.Close(context.Background()), mock.ExpectationsWereMet())
	// Output:
	// true <nil>
	// <nil> <nil>
}

// The other branch: another replica has the lock, so nothing is written.
func ExampleLocks_ExpectTryAcquire() {
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	mock.ExpectQuery("SELECT count").WillReturnRows(sqlmock.NewRows([]string{"count"}).AddRow(2))
	locks.ExpectTryAcquire("close-month", false)

	ran, err := Billing{db, locks}.CloseMonth(context.Background())
	fmt.Println(ran, err)
	fmt.Println(mock.ExpectationsWereMet())
	// Output:
	// false <nil>
	// <nil>
}

// A mock that compares statements as they are works just as well.
func ExampleNew() {
	db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(sqlmock.QueryMatcherEqual))
	if err != nil {
		fmt.Println(err)
		return
	}
	locks := mocklock.New(db, mock, pglock.WithHolderID("replica-1"))
	locks.ExpectAcquire("invoices")
	locks.ExpectRelease("invoices")

	err = pglock.Do(context.Background(), locks, "invoices", func(ctx context.Context) error {
		lock, _ := pglock.FromContext(ctx)
		fmt.Println("held by", lock.Info().HolderID)
		return nil
	})
	fmt.Println(err, mock.ExpectationsWereMet())
	// Output:
	// held by replica-1
	// <nil> <nil>
}

// Code that wants a *pglock.Manager, for AcquireAll for example, gets the one
// inside.
func ExampleLocks() {
	ctx := context.Background()
	transfer := func(locks *pglock.Manager) error {
		set, err := locks.AcquireAll(ctx, []string{"account-1"})
		if err != nil {
			return err
		}
		return set.Release(ctx)
	}

	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	locks.ExpectAcquire("account-1")
	locks.ExpectRelease("account-1")
	fmt.Println(transfer(locks.Manager), mock.ExpectationsWereMet())
	// Output:
	// <nil> <nil>
}

// A database that does not answer is sqlmock's usual WillReturnError.
func ExampleLocks_ExpectAcquire() {
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	locks.ExpectAcquire("invoices").WillReturnError(errors.New("connection refused"))

	_, err := locks.Acquire(context.Background(), "invoices")
	fmt.Println(err)
	// Output:
	// acquire "invoices": connection refused
}

// Somebody else keeps the lock for longer than the code waits.
func ExampleLocks_ExpectAcquireTimeout() {
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	locks.ExpectAcquireTimeout("invoices")

	_, err := locks.Acquire(context.Background(), "invoices", ports.WithTimeout(0))
	fmt.Println(errors.Is(err, ports.ErrNotAcquired))
	// Output:
	// true
}

// What has not happened yet is named by ExpectationsWereMet.
func ExampleLocks_ExpectRelease() {
	ctx := context.Background()
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	locks.ExpectAcquire("invoices")
	locks.ExpectRelease("invoices")

	lock, err := locks.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("all met before the release:", mock.ExpectationsWereMet() == nil)
	fmt.Println(lock.Release(ctx), mock.ExpectationsWereMet())
	// Output:
	// all met before the release: false
	// <nil> <nil>
}

// The loss is found out at the end: was the work undone, or reported?
func ExampleLocks_ExpectReleaseLost() {
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	locks.ExpectAcquire("invoices")
	locks.ExpectReleaseLost("invoices")

	err := pglock.Do(context.Background(), locks, "invoices", func(context.Context) error { return nil })
	fmt.Println(errors.Is(err, ports.ErrLost))
	// Output:
	// true
}

// The lock is lost in the middle of the work, which must stop then.
func ExampleLocks_Lose() {
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	locks.ExpectAcquire("invoices")

	err := pglock.Do(context.Background(), locks, "invoices", func(ctx context.Context) error {
		locks.Lose("invoices")
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println(errors.Is(err, ports.ErrLost), mock.ExpectationsWereMet())
	// Output:
	// true <nil>
}

func ExampleLocks_ExpectAcquireTx() {
	ctx := context.Background()
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	mock.ExpectBegin()
	locks.ExpectAcquireTx("invoices")
	mock.ExpectCommit()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sqllock.AcquireTx(ctx, tx, "invoices"))
	fmt.Println(tx.Commit(), mock.ExpectationsWereMet())
	// Output:
	// <nil>
	// <nil> <nil>
}

func ExampleLocks_ExpectAcquireTxTimeout() {
	ctx := context.Background()
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	mock.ExpectBegin()
	locks.ExpectAcquireTxTimeout("invoices")
	mock.ExpectRollback()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = sqllock.AcquireTx(ctx, tx, "invoices", sqllock.TxTimeout(0))
	fmt.Println(errors.Is(err, ports.ErrNotAcquired))
	fmt.Println(tx.Rollback(), mock.ExpectationsWereMet())
	// Output:
	// true
	// <nil> <nil>
}

func ExampleLocks_ExpectTryAcquireTx() {
	ctx := context.Background()
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	mock.ExpectBegin()
	locks.ExpectTryAcquireTx("invoices", false, sqllock.TxShared())
	mock.ExpectRollback()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sqllock.TryAcquireTx(ctx, tx, "invoices", sqllock.TxShared()))
	fmt.Println(tx.Rollback(), mock.ExpectationsWereMet())
	// Output:
	// false <nil>
	// <nil> <nil>
}

// The work of a transaction that holds the lock stands between its try and its
// commit.
func ExampleLocks_ExpectTryDoTx() {
	ctx := context.Background()
	db, mock, _ := sqlmock.New()
	locks := mocklock.New(db, mock)
	locks.ExpectTryDoTx("invoices", true)
	mock.ExpectExec("UPDATE invoices").WillReturnResult(sqlmock.NewResult(0, 2))
	mock.ExpectCommit()

	ran, err := sqllock.TryDoTx(ctx, db, "invoices", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE invoices SET open = false")
		return err
	})
	fmt.Println(ran, err, mock.ExpectationsWereMet())
	// Output:
	// true <nil> <nil>
}
