//go:build faults && linux

package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// statements counts what has run in a database since it was made. Each statement
// of the library is a transaction of its own. A session reports what it has done
// at its end at the latest, so it counts when all of them are over.
func statements(t testing.TB, v view) int {
	t.Helper()
	eventually(t, "all sessions are over", func() bool {
		return scan[int](t, v.db, `SELECT count(*) FROM pg_stat_activity WHERE datid = $1`, v.oid) == 0
	})
	return scan[int](t, v.db, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datid = $1`, v.oid)
}

// busyServer is a server of the test's own, for many connections.
func busyServer(t *testing.T) func(t testing.TB, name string) (dsn string, v view) {
	s := breakable(t, map[string]string{"max_connections": "450", "autovacuum": "off"})
	u, err := url.Parse(s.DSN())
	must(t, err)
	u.Path = "/postgres"
	db := observer(t, u.String())
	return func(t testing.TB, name string) (string, view) {
		t.Helper()
		name = strings.ToLower(strings.ReplaceAll(name, " ", "_"))
		_, err := db.Exec(`CREATE DATABASE ` + name)
		must(t, err)
		mine := *u
		mine.Path = "/" + name
		return mine.String(), viewOf(t, db, name)
	}
}

// Contention burnt the database: every waiter polled it. Here, of those that
// want one key only one asks the server, in slices of half a second with two
// statements each: the wait, and what makes sure that it left nothing. Of those
// that want many keys, as many ask as there are sessions for.
func TestCase40WaitersDoNotBurnTheDatabase(t *testing.T) {
	t.Parallel()
	const (
		waiters = 200
		size    = 41 // so 40 sessions for locks
		waiting = 5 * time.Second
		slices  = int(waiting / (500 * time.Millisecond))
	)
	database := busyServer(t)
	t.Run("waiters", func(t *testing.T) {
		for _, s := range drivers {
			for _, keys := range []int{1, waiters} {
				t.Run(fmt.Sprintf("%s/%d keys", s.name, keys), func(t *testing.T) {
					t.Parallel()
					// wait has all waiters want a key that is held, and calls then when
					// they have waited for a while. It returns their errors.
					wait := func(name string, timeout time.Duration, then func(*pgx.Conn, *pglock.Manager)) (errs []error, v view) {
						dsn, v := database(t, fmt.Sprintf("%s_%s_%d", name, s.name, keys))
						conn := connect(t, dsn)
						for i := range keys {
							lockRaw(t, conn, fmt.Sprint(i))
						}
						db, err := sql.Open(s.driver, s.dsn(dsn))
						must(t, err)
						db.SetMaxOpenConns(size)
						db.SetMaxIdleConns(size)
						m := s.new(db)
						errs = make([]error, waiters)
						var wg sync.WaitGroup
						for i := range waiters {
							wg.Go(func() {
								var lock ports.Lock
								if lock, errs[i] = m.Acquire(bg, fmt.Sprint(i%keys), ports.WithTimeout(timeout)); errs[i] == nil {
									errs[i] = lock.Release(bg)
								}
							})
						}
						then(conn, m)
						wg.Wait()
						must(t, m.Close(bg))
						db.Close()
						conn.Close(bg)
						return errs, v
					}
					contending := min(keys, size-1)
					perSlice := 2
					if s.driver == "pgx" {
						// It forgets a prepared statement that has failed, as by lock_timeout, so
						// it deallocates and prepares it again for the next slice.
						perSlice = 4
					}

					errs, v := wait("in_vain", waiting, func(_ *pgx.Conn, m *pglock.Manager) {
						time.Sleep(waiting / 2)
						if stats := m.Stats(); stats.Waiting != waiters || stats.Sessions != contending {
							t.Errorf("%+v", stats)
						}
					})
					starved := 0
					for i, err := range errs {
						switch {
						case errors.Is(err, ports.ErrNotAcquired):
						case errors.Is(err, ports.ErrPoolExhausted) && keys > 1:
							starved++ // there was no session for it, which is said
						case errors.Is(err, context.DeadlineExceeded) && keys > 1:
							starved++ // it got one at the last moment, from another whose time was up
						default:
							t.Errorf("waiter %d: %v", i, err)
						}
					}
					if starved > waiters-contending && keys > 1 {
						t.Errorf("%d waiters had no session, with %d sessions", starved, contending)
					}
					// Not of the waiters: the start and the end of each session, the proof,
					// and the raw locks.
					others := 2*(size+1) + 50 + keys
					all := statements(t, v)
					// At the deadline, the slices are as short as the time that is left, until
					// the last waiter has been told that it is over; and sessions pass to those
					// that had none, for a try.
					atTheEnd := 200 + 3*keys
					bound := others + atTheEnd + 3*contending*perSlice*slices/2
					t.Logf("%d waiters on %d keys for %v: %d statements, of which up to %d are not theirs: about %d a second; bound %d",
						waiters, keys, waiting, all, others, max(all-keys, 0)/int(waiting.Seconds()), bound)
					if all > bound {
						t.Errorf("%d statements, more than %d", all, bound)
					}

					// Nobody starves: when the keys are free, all get what they want.
					errs, _ = wait("served", 2*patience, func(conn *pgx.Conn, m *pglock.Manager) {
						eventually(t, "all wait", func() bool { return m.Stats().Waiting == waiters })
						unlockRaw(t, conn)
					})
					for i, err := range errs {
						if err != nil {
							t.Errorf("waiter %d: %v", i, err)
						}
					}
				})
			}
		}
	})
}

// What a hold costs the server: a statement every fifth of the window.
func TestCase40HoldersCostLittle(t *testing.T) {
	t.Parallel()
	const (
		holders = 150
		window  = pglock.DefaultLivenessWindow
		held    = 13 * time.Second
	)
	database := busyServer(t)
	t.Run("holders", func(t *testing.T) {
		for _, s := range drivers {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				// count has holders hold for a time, and counts what that takes, and how
				// long all of them together have held.
				count := func(name string, d time.Duration) (n int, took, holding time.Duration) {
					dsn, v := database(t, name)
					db, err := sql.Open(s.driver, s.dsn(dsn))
					must(t, err)
					db.SetMaxOpenConns(holders + 1)
					db.SetMaxIdleConns(holders + 1)
					m := s.new(db)
					began := time.Now()
					for i := range holders {
						acquire(t, m, fmt.Sprint(i))
					}
					time.Sleep(d)
					if n := m.Stats(); n.Held != holders || n.Lost != 0 {
						t.Errorf("%+v", n)
					}
					for _, info := range m.Held() {
						holding += time.Since(info.AcquiredAt)
					}
					_, err = m.ReleaseAll(bg)
					must(t, err)
					took = time.Since(began)
					must(t, m.Close(bg))
					db.Close()
					return statements(t, v), took, holding
				}
				// What is not a check: the same holders, for no time.
				none, tookNone, holdingNone := count("none_"+s.name, 0)
				all, took, holding := count("all_"+s.name, held)
				checks := all - none
				if s.driver == "pgx" {
					checks -= 2 * holders // it prepares each of the two kinds of check once on a session
				}
				rate := float64(checks) / (holding - holdingNone).Seconds()
				t.Logf("%d holders at a window of %v: %.0f statements a second, %.3f a holder (one every W/5 is %.3f); so %.0f for 1,000 holders",
					holders, window, rate*holders, rate, 1/(window/5).Seconds(), 1000*rate)
				// To take and give back a lock, on a connection of its own.
				const overhead = 6*holders + 100
				beats := func(d time.Duration) int { return int(d / (window / 5)) }
				for d, n := range map[time.Duration]int{took: all, tookNone: none} {
					if most := overhead + holders*(beats(d)+1); n > most {
						t.Errorf("%d statements for %d holders in %v, more than %d", n, holders, d, most)
					}
				}
				if least := holders * (beats(held) - 1); all < least {
					t.Errorf("%d statements for %d holders in %v, fewer than %d: they are not checked", all, holders, took, least)
				}
			})
		}
	})
}
