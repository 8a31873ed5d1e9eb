package sqllock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log"
	"time"

	sqlmock "github.com/DATA-DOG/go-sqlmock"
	"github.com/lib/pq"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/adapters/mocklock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/pglock/keys"
	"github.com/holdfast-go/holdfast/ports"
)

var (
	ctx   = context.Background()
	db    *sql.DB
	locks *pglock.Manager // sqllock.New(db), or that of another adapter
)

// instrument stands for what a tracing library wraps a driver with.
func instrument(c driver.Connector) driver.Connector { return c }

// A driver that is wrapped, so that its connections are not to be recognised
// any more.
func ExampleNew() {
	connector, err := pq.NewConnector("postgres://app@db.internal/app?sslmode=require")
	if err != nil {
		fmt.Println(err)
		return
	}
	db := sql.OpenDB(instrument(connector))
	defer db.Close()
	db.SetMaxOpenConns(10)

	locks := sqllock.New(db, pglock.WithHolderID("worker-1"))
	defer locks.Close(context.Background())
	fmt.Println(locks.Stats().MaxSessions, "of 10 connections may be pinned;", db.Stats().OpenConnections, "are open")
	// Output:
	// 9 of 10 connections may be pinned; 0 are open
}

// An adapter for one more driver says in what that differs; see the source of
// pqlock and pgxlock.
func ExampleNewPool() {
	pool := sqllock.NewPool(db, sqllock.Driver{
		Arguments: true, // the driver caches prepared statements
		Close: func(driverConn any) bool {
			conn, ok := driverConn.(driver.Conn)
			return ok && conn.Close() == nil
		},
	})
	locks := pglock.NewManager(pool)
	defer locks.Close(ctx)
}

// The zero value does for every driver, as New has it.
func ExampleDriver() {
	db, _, err := sqlmock.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	db.SetMaxOpenConns(10)
	inUse, limit := sqllock.NewPool(db, sqllock.Driver{}).Usage()
	fmt.Println(inUse, "of", limit)
	// Output:
	// 0 of 10
}

// The lock ends with the transaction, whether it commits or rolls back. This
// works behind a transaction pooler, too.
func ExampleAcquireTx() {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback() // does nothing after a commit

	err = sqllock.AcquireTx(ctx, tx, "account-42", sqllock.TxTimeout(2*time.Second))
	if errors.Is(err, ports.ErrNotAcquired) {
		log.Print("account-42 is busy; come back later") // tx can go on without it
		return
	}
	if err != nil {
		log.Print(err)
		return
	}
	if _, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance - 100 WHERE id = 42`); err != nil {
		log.Print(err)
		return
	}
	if err := tx.Commit(); err != nil {
		log.Print(err)
	}
}

func ExampleTryAcquireTx() {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()

	acquired, err := sqllock.TryAcquireTx(ctx, tx, "catalogue", sqllock.TxShared())
	switch {
	case err != nil:
		log.Print(err)
	case !acquired:
		log.Print("the catalogue is being rebuilt")
	default:
		log.Print("nobody rebuilds the catalogue before this transaction ends")
	}
}

// At most one replica sends a batch at a time, and a batch is marked as sent
// only in the transaction that has the lock.
func ExampleTryDoTx() {
	ran, err := sqllock.TryDoTx(ctx, db, "outbox", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE outbox SET sent = now() WHERE sent IS NULL`)
		return err
	})
	switch {
	case err != nil:
		log.Print(err)
	case !ran:
		log.Print("another replica is at it")
	}
}

// Options that every transaction of a service uses.
func ExampleTxOption() {
	opts := []sqllock.TxOption{sqllock.TxKeyID(locks.KeyID), sqllock.TxTimeout(2 * time.Second)}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback()
	if err := sqllock.AcquireTx(ctx, tx, "account-42", opts...); err != nil {
		log.Print(err)
	}
}

// A transaction's lock and a manager's exclude each other if their IDs are
// derived in one way.
func ExampleTxKeyID() {
	locks := sqllock.New(db, pglock.WithNamespace("billing:"))
	defer locks.Close(ctx)

	ran, err := sqllock.TryDoTx(ctx, db, "invoices", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM invoices WHERE expired`)
		return err
	}, sqllock.TxKeyID(locks.KeyID))
	if err != nil || !ran {
		log.Print(ran, err)
	}
}

// A transaction's lock in the space of two integers, beside a manager's.
func ExampleTxTwoIntegerKeys() {
	locks := sqllock.New(db, pglock.WithTwoIntegerKeys(keys.WithAdvisoryLock))
	defer locks.Close(ctx)

	ran, err := sqllock.TryDoTx(ctx, db, "invoices", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM invoices WHERE expired`)
		return err
	}, sqllock.TxTwoIntegerKeys(keys.WithAdvisoryLock))
	if err != nil || !ran {
		log.Print(ran, err)
	}
}

// Readers in transactions, beside each other. In a test they have a double of the
// database.
func ExampleTxShared() {
	db, mock, _ := sqlmock.New()
	double := mocklock.New(db, mock)
	double.ExpectTryDoTx("catalogue", true, sqllock.TxShared())
	mock.ExpectExec("INSERT INTO prices").WillReturnResult(sqlmock.NewResult(0, 12))
	mock.ExpectCommit()

	ran, err := sqllock.TryDoTx(ctx, db, "catalogue", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO prices SELECT * FROM catalogue`)
		return err
	}, sqllock.TxShared())
	fmt.Println("no writer has it:", ran, err)
	fmt.Println(mock.ExpectationsWereMet())
	// Output:
	// no writer has it: true <nil>
	// <nil>
}

// After a wait that ran out, the transaction goes on without the lock.
func ExampleTxTimeout() {
	db, mock, _ := sqlmock.New()
	double := mocklock.New(db, mock)
	mock.ExpectBegin()
	double.ExpectAcquireTxTimeout("account-42")
	mock.ExpectExec("INSERT INTO retries").WillReturnResult(sqlmock.NewResult(0, 1))
	mock.ExpectCommit()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tx.Rollback() // does nothing after a commit

	err = sqllock.AcquireTx(ctx, tx, "account-42", sqllock.TxTimeout(0)) // or some seconds
	if errors.Is(err, ports.ErrNotAcquired) {
		fmt.Println("busy; noted for later")
		_, err = tx.ExecContext(ctx, `INSERT INTO retries (account) VALUES (42)`)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tx.Commit(), mock.ExpectationsWereMet())
	// Output:
	// busy; noted for later
	// <nil> <nil>
}

// Long work under one lock, and its writes in transactions that can commit only
// while that lock is held.
func ExampleRunTx() {
	err := pglock.Do(ctx, locks, "cutover:tenant-42", func(ctx context.Context) error {
		// ... copy the data, with any connection ...

		lock, _ := pglock.FromContext(ctx)
		return sqllock.RunTx(ctx, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE tenants SET home = 'new' WHERE id = 42`)
			return err
		})
	})
	if errors.Is(err, ports.ErrLost) {
		log.Print("overtaken, and nothing was switched over")
	} else if err != nil {
		log.Print(err)
	}
}

// A lock in memory has no database session to run anything on.
func ExampleRunTx_unsupported() {
	locks := memlock.New(memlock.NewServer())
	defer locks.Close(ctx)
	lock, err := locks.Acquire(ctx, "cutover:tenant-42")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Release(ctx)

	err = sqllock.RunTx(ctx, lock, nil, func(ctx context.Context, tx *sql.Tx) error { return nil })
	fmt.Println(errors.Is(err, ports.ErrUnsupported))
	// Output:
	// true
}

// What cannot run in a transaction runs on the session itself.
func ExampleRunConn() {
	lock, err := locks.Acquire(ctx, "schema")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)

	err = sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, `CREATE INDEX CONCURRENTLY IF NOT EXISTS orders_by_day ON orders (day)`)
		return err
	})
	if err != nil {
		log.Print(err)
	}
}

// How long does the server take to free the lock of this host, if it vanishes?
func ExampleExamine() {
	err := pglock.Do(ctx, locks, "nightly-report", func(ctx context.Context) error {
		lock, _ := pglock.FromContext(ctx)
		return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) error {
			server, err := sqllock.Examine(ctx, conn)
			if err != nil {
				return err
			}
			fmt.Println("PostgreSQL", server.Version, "frees it after", server.KeepaliveBound)
			fmt.Println(server.Locks, "of", server.LockSlots, "locks are taken")
			return nil
		})
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A program that looks at its server before it relies on it.
func ExampleServerInfo() {
	advise := func(server sqllock.ServerInfo) {
		switch free := server.LockSlots - server.Locks; {
		case server.InRecovery:
			fmt.Println("a standby; connect to the primary")
		case server.Network && server.KeepaliveBound > time.Minute:
			fmt.Println("a vanished host keeps its locks for", server.KeepaliveBound)
		case free < 1000:
			fmt.Println("room for", free, "locks; raise max_locks_per_transaction")
		}
	}
	advise(sqllock.ServerInfo{InRecovery: true})
	advise(sqllock.ServerInfo{Network: true, KeepaliveBound: 2 * time.Hour})
	advise(sqllock.ServerInfo{LockSlots: 6400, Locks: 6000})
	// Output:
	// a standby; connect to the primary
	// a vanished host keeps its locks for 2h0m0s
	// room for 400 locks; raise max_locks_per_transaction
}

// Whatever runs a query can be examined: any connection, one of them, or the one
// of a transaction.
func ExampleQueryer() {
	for _, q := range []any{new(sql.DB), new(sql.Conn), new(sql.Tx)} {
		_, ok := q.(sqllock.Queryer)
		fmt.Printf("%T: %t\n", q, ok)
	}
	// Output:
	// *sql.DB: true
	// *sql.Conn: true
	// *sql.Tx: true
}
