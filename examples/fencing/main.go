// Fencing shows what to do where two writers at once would do real harm. A
// process that is suspended for long enough loses its lock without knowing; when
// it wakes up, it goes on where it was, beside its successor. Two ways keep it
// from writing:
//
//   - A fencing token: each hold has a greater one than all before it. The
//     resource remembers the greatest that it has seen and refuses any smaller
//     one. Here the resource is a row and the check is part of the UPDATE; any
//     store that can compare a number will do.
//   - sqllock.RunTx, if the resource is the database that has the lock: the
//     transaction runs on the lock's own session, so it cannot commit once that
//     is gone. No token is needed.
//
// The program plays both processes. It has the server end the first one's
// session, which is what happens to a process that sleeps for too long, and then
// has that stale holder write nevertheless.
//
//	DATABASE_URL=postgres://… go run ./examples/fencing
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

var dsn = flag.String("dsn", "", "address of the database (default $DATABASE_URL)")

const key = "invoice-export"

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fencing:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	db, err := sql.Open("pgx", cmp.Or(*dsn, os.Getenv("DATABASE_URL")))
	if err != nil {
		return err
	}
	defer db.Close()
	// The resource: what was exported last, and the token of whoever did it.
	if _, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS fencing_example (id int PRIMARY KEY, exported_by text, token bigint)`); err != nil {
		return err
	}
	defer db.ExecContext(context.WithoutCancel(ctx), `DROP TABLE fencing_example`)
	if _, err := db.ExecContext(ctx, `INSERT INTO fencing_example VALUES (1, 'nobody', 0)`); err != nil {
		return err
	}

	first := pgxlock.New(db, pglock.WithHolderID("first"))
	defer first.Close(context.Background())
	second := pgxlock.New(db, pglock.WithHolderID("second"))
	defer second.Close(context.Background())

	stale, err := first.Acquire(ctx, key, ports.WithFencing())
	if err != nil {
		return err
	}
	if err := write(ctx, db, stale); err != nil {
		return err
	}
	// The first process falls asleep, and the server gives up on it.
	if _, err := second.Evict(ctx, key); err != nil {
		return err
	}
	lock, err := second.Acquire(ctx, key, ports.WithFencing())
	if err != nil {
		return err
	}
	if err := write(ctx, db, lock); err != nil {
		return err
	}

	// The first process wakes up and goes on.
	if err := write(ctx, db, stale); !errors.Is(err, errStale) {
		return fmt.Errorf("a stale holder has written: %v", err)
	}
	fmt.Println("first is refused by its token")
	err = sqllock.RunTx(ctx, stale, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE fencing_example SET exported_by = 'first'`)
		return err
	})
	if !errors.Is(err, ports.ErrLost) {
		return fmt.Errorf("a stale holder has written: %v", err)
	}
	fmt.Println("first is refused by RunTx, without a token")

	err = sqllock.RunTx(ctx, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE fencing_example SET exported_by = 'second, again'`)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Println("second writes through RunTx")
	return lock.Release(ctx)
}

var errStale = errors.New("a later holder has written already")

// write is a write that a stale holder cannot do: the row takes it only from a
// token that is not smaller than the last one.
func write(ctx context.Context, db *sql.DB, lock ports.Lock) error {
	info := lock.Info()
	result, err := db.ExecContext(ctx, `UPDATE fencing_example SET exported_by = $1, token = $2 WHERE id = 1 AND token <= $2`,
		info.HolderID, int64(info.Token))
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, errStale)
	}
	fmt.Printf("%s writes with token %d\n", info.HolderID, info.Token)
	return nil
}
