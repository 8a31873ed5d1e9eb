package mocklock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/DATA-DOG/go-sqlmock"

	"github.com/holdfast-go/holdfast/adapters/mocklock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

var bg = context.Background()

// matched runs a test with each of sqlmock's matchers, in virtual time, and
// checks at its end that everything that was expected has happened.
func matched(t *testing.T, test func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks)) {
	t.Helper()
	for name, matcher := range map[string]sqlmock.QueryMatcher{"default": nil, "regexp": sqlmock.QueryMatcherRegexp, "equal": sqlmock.QueryMatcherEqual} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db, mock, err := sqlmock.New(sqlmock.QueryMatcherOption(matcher))
				must(t, err)
				locks := mocklock.New(db, mock)
				test(t, db, mock, locks)
				must(t, locks.Close(bg))
				mock.ExpectClose()
				must(t, db.Close()) // one connection, whatever was locked
				must(t, mock.ExpectationsWereMet())
			})
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fails(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
}

func TestALockStandsAmongTheApplicationsQueries(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		mock.ExpectExec("INSERT INTO a").WillReturnResult(sqlmock.NewResult(0, 1))
		locks.ExpectAcquire("invoices (2026)*")
		mock.ExpectExec("INSERT INTO b").WillReturnResult(sqlmock.NewResult(0, 1))
		locks.ExpectRelease("invoices (2026)*")
		mock.ExpectExec("INSERT INTO c").WillReturnResult(sqlmock.NewResult(0, 1))

		exec := func(statement string) error { _, err := db.Exec(statement); return err }
		must(t, exec("INSERT INTO a"))
		must(t, pglock.Do(bg, locks, "invoices (2026)*", func(context.Context) error {
			time.Sleep(time.Hour) // no check, no keepalive
			return exec("INSERT INTO b")
		}))
		must(t, exec("INSERT INTO c"))
	})
}

func TestATryIsGrantedOrNotAsTheTestSays(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		locks.ExpectTryAcquire("k", false)
		locks.ExpectTryAcquire("k", true)
		locks.ExpectRelease("k")
		for _, want := range []bool{false, true} {
			ran, err := pglock.TryDo(bg, locks, "k", func(context.Context) error { return nil })
			if ran != want || err != nil {
				t.Errorf("ran %v, %v, want %v", ran, err, want)
			}
		}
	})
}

func TestAnAcquireThatTimesOutIsOneExpectation(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		for _, opts := range [][]ports.AcquireOption{
			{ports.WithTimeout(0)},
			{ports.WithTimeout(10 * time.Second)},
			{ports.WithTimeout(10 * time.Second), ports.WithPolling(time.Second)},
		} {
			locks.ExpectAcquireTimeout("k")
			if _, err := locks.Acquire(bg, "k", opts...); !errors.Is(err, ports.ErrNotAcquired) {
				t.Errorf("got %v, want ErrNotAcquired", err)
			}
		}
		locks.ExpectAcquire("k") // the rival of the last call is none of the next
		locks.ExpectRelease("k")
		must(t, pglock.Do(bg, locks, "k", func(context.Context) error { return nil }))
	})
}

func TestModesTokensAndServerProcesses(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		locks.ExpectAcquire("k", ports.WithShared())
		locks.ExpectAcquire("k", ports.WithShared(), ports.WithFencing())
		locks.ExpectRelease("k", ports.WithShared())
		locks.ExpectRelease("k", ports.WithShared())
		first, err := locks.Acquire(bg, "k", ports.WithShared())
		must(t, err)
		second, err := locks.Acquire(bg, "k", ports.WithShared(), ports.WithFencing())
		must(t, err)
		if a, b := first.Info(), second.Info(); a.PID == b.PID || a.Token != 0 || b.Token == 0 || b.Mode != ports.Shared || b.ID != pglock.SHA256Key("k") {
			t.Errorf("holds %+v and %+v", a, b)
		}
	})
}

func TestASetIsExpectedKeyByKeyInTheOrderOfIDs(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, _ *mocklock.Locks) {
		locks := mocklock.New(db, mock, pglock.WithKeyFunc(func(key string) int64 { return int64(key[0]) }))
		locks.ExpectAcquire("a")
		locks.ExpectAcquire("b")
		locks.ExpectRelease("b")
		locks.ExpectRelease("a")
		set, err := locks.AcquireAll(bg, []string{"b", "a"})
		must(t, err)
		must(t, set.Release(bg))
		must(t, locks.Close(bg))
	})
}

func TestALossIsTheTestsToChoose(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		locks.ExpectAcquire("k") // and no release: there is nothing to give back
		err := pglock.Do(bg, locks, "k", func(ctx context.Context) error {
			if !locks.Lose("k") || locks.Lose("k") || locks.Lose("another") {
				t.Error("Lose does not say whether there was a hold")
			}
			if locks.IsHeld("k") {
				t.Error("a lost lock is held")
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, ports.ErrLost) {
			t.Errorf("got %v, want ErrLost", err)
		}

		locks.ExpectAcquire("k")
		locks.ExpectReleaseLost("k")
		if err := pglock.Do(bg, locks, "k", func(context.Context) error { return nil }); !errors.Is(err, ports.ErrLost) {
			t.Errorf("got %v, want ErrLost", err)
		}
	})
}

func TestErrorsAndDelaysAreSqlmocks(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		broken := errors.New("broken")
		locks.ExpectAcquire("k").WillReturnError(broken)
		if _, err := locks.Acquire(bg, "k"); !errors.Is(err, broken) {
			t.Error(err)
		}
		locks.ExpectAcquire("k").WillDelayFor(4 * time.Second)
		start := time.Now()
		lock, err := locks.Acquire(bg, "k")
		must(t, err)
		if waited := time.Since(start); waited != 4*time.Second {
			t.Errorf("waited %v", waited)
		}
		locks.ExpectRelease("k").WillReturnError(broken)
		if err := lock.Release(bg); !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}

func TestLocksInTransactions(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		mock.ExpectBegin()
		locks.ExpectAcquireTx("a")
		locks.ExpectTryAcquireTx("b", true, sqllock.TxShared())
		locks.ExpectTryAcquireTx("c", false, sqllock.TxKeyID(pglock.FNV1aKey))
		locks.ExpectAcquireTxTimeout("d")
		mock.ExpectCommit()
		tx, err := db.Begin()
		must(t, err)
		must(t, sqllock.AcquireTx(bg, tx, "a", sqllock.TxTimeout(time.Minute)))
		if ok, err := sqllock.TryAcquireTx(bg, tx, "b", sqllock.TxShared()); !ok || err != nil {
			t.Error(ok, err)
		}
		if ok, err := sqllock.TryAcquireTx(bg, tx, "c", sqllock.TxKeyID(pglock.FNV1aKey)); ok || err != nil {
			t.Error(ok, err)
		}
		if err := sqllock.AcquireTx(bg, tx, "d", sqllock.TxTimeout(0)); !errors.Is(err, ports.ErrNotAcquired) {
			t.Error(err)
		}
		must(t, tx.Commit())

		locks.ExpectTryDoTx("k", true)
		mock.ExpectExec("UPDATE x").WillReturnResult(sqlmock.NewResult(0, 1))
		mock.ExpectCommit()
		locks.ExpectTryDoTx("k", false)
		for _, want := range []bool{true, false} {
			ran, err := sqllock.TryDoTx(bg, db, "k", func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE x")
				return err
			})
			if ran != want || err != nil {
				t.Errorf("ran %v, %v, want %v", ran, err, want)
			}
		}
	})
}

func TestATransactionsLockOfAnotherKeyIsNotTheExpectedOne(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		mock.ExpectBegin()
		locks.ExpectTryAcquireTx("a", true)
		tx, err := db.Begin()
		must(t, err)
		if _, err := sqllock.TryAcquireTx(bg, tx, "b"); err == nil {
			t.Error("another key is granted")
		}
		fails(t, mock.ExpectationsWereMet(), "remaining expectation")
		if _, err := sqllock.TryAcquireTx(bg, tx, "a"); err != nil {
			t.Error(err)
		}
		mock.ExpectRollback()
		must(t, tx.Rollback())
	})
}

func TestWhatIsNotExpectedSaysHowToExpectIt(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		_, err := locks.Acquire(bg, "k")
		fails(t, err, "ExpectAcquire", "not expected", `"k"`)

		mock.ExpectExec("UPDATE x").WillReturnResult(sqlmock.NewResult(0, 1))
		_, _, err = locks.TryAcquire(bg, "k")
		fails(t, err, "ExpectTryAcquire", "next expectation is", "UPDATE x")
		_, err = db.Exec("UPDATE x")
		must(t, err)

		locks.ExpectAcquire("another")
		_, err = locks.Acquire(bg, "k")
		fails(t, err, "another", "k", "argument")
		fails(t, mock.ExpectationsWereMet(), "remaining", "ExpectAcquire", "another")
		lock, err := locks.Acquire(bg, "another")
		must(t, err)
		fails(t, lock.Release(bg), "ExpectRelease", "not expected")

		locks.ExpectAcquire("k", ports.WithShared())
		_, err = locks.Acquire(bg, "k")
		fails(t, err, "exclusive", "shared")
		lock, err = locks.Acquire(bg, "k", ports.WithShared())
		must(t, err)
		locks.ExpectRelease("k", ports.WithShared())
		must(t, lock.Release(bg))
	})
}

func TestWhatTheMockCannotDoIsSaid(t *testing.T) {
	matched(t, func(t *testing.T, db *sql.DB, mock sqlmock.Sqlmock, locks *mocklock.Locks) {
		locks.ExpectAcquire("k")
		lock, err := locks.Acquire(bg, "k")
		must(t, err)
		if err := sqllock.RunTx(bg, lock, nil, nil); !errors.Is(err, ports.ErrUnsupported) {
			t.Error(err)
		}
		if _, err := locks.Inspect(bg, "k"); !errors.Is(err, ports.ErrUnsupported) {
			t.Error(err)
		}
		if _, err := locks.InspectAll(bg); !errors.Is(err, ports.ErrUnsupported) {
			t.Error(err)
		}
		locks.ExpectRelease("k")
	})
}

func TestMisusePanicsWithASentence(t *testing.T) {
	db, mock, err := sqlmock.New()
	must(t, err)
	for what, misuse := range map[string]func(){
		"no db":                 func() { mocklock.New(nil, mock) },
		"no mock":               func() { mocklock.New(db, nil) },
		"pending expectations":  func() { mock.ExpectBegin(); mocklock.New(db, mock) },
		"a negative timeout":    func() { mocklock.New(db, mock).ExpectAcquire("k", ports.WithTimeout(-1)) },
		"the db of another one": func() { _, other, _ := sqlmock.New(); mocklock.New(db, other) },
	} {
		func() {
			defer func() {
				if s, ok := recover().(string); !ok || len(strings.Fields(s)) < 4 {
					t.Errorf("%s: panicked with %v", what, s)
				}
			}()
			misuse()
			t.Errorf("%s is accepted", what)
		}()
	}
}

// To the mock, a lock of two integers is a key like any other.
func TestPairsAreExpectedByTheirKeys(t *testing.T) {
	db, mock, err := sqlmock.New()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	locks := mocklock.New(db, mock, pglock.WithTwoIntegerKeys(func(string) (int32, int32) { return 7, 42 }))
	locks.ExpectAcquire("invoices")
	locks.ExpectRelease("invoices")
	err = pglock.Do(t.Context(), locks, "invoices", func(ctx context.Context) error {
		if lock, ok := pglock.FromContext(ctx); !ok || lock.Info().ID != ports.PairID(7, 42) {
			t.Error("the lock is not that of the pair")
		}
		return nil
	})
	if err := errors.Join(err, locks.Close(t.Context()), mock.ExpectationsWereMet()); err != nil {
		t.Error(err)
	}
}
