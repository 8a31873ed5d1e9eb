//go:build linux

package faults

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
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
func busyServer(t *testing.T, connections int) func(t testing.TB, name string) (dsn string, v view) {
	s := breakable(t, map[string]string{"max_connections": strconv.Itoa(connections), "autovacuum": "off"})
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
	database := busyServer(t, 450)
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
					const perSlice = 2

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
func TestCase40AThousandHoldersCostLittle(t *testing.T) {
	t.Parallel()
	const (
		holders = 1000
		window  = pglock.DefaultLivenessWindow
		beat    = window / 5
		held    = 4 * beat
		// A session tells the server's statistics of what it has done within a
		// second, or ten if it does nothing more.
		slow = 10 * time.Second
	)
	database := busyServer(t, holders+50)
	for _, s := range drivers {
		t.Run(s.name, func(t *testing.T) {
			dsn, v := database(t, "holders_"+s.name)
			db, err := sql.Open(s.driver, s.dsn(dsn))
			must(t, err)
			defer db.Close()
			db.SetMaxOpenConns(holders + 1)
			db.SetMaxIdleConns(holders + 1)
			m := s.manager(t, db)
			var wg sync.WaitGroup
			for worker := range 4 {
				wg.Go(func() {
					for i := worker; i < holders; i += 4 {
						if _, err := m.Acquire(bg, fmt.Sprint(i)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			time.Sleep(slow)

			transactions := func() int {
				return scan[int](t, v.db, `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datid = $1`, v.oid)
			}
			before, cpuBefore, began := transactions(), serverTime(t, v), time.Now()
			time.Sleep(held)
			n, cpu, took := transactions()-before, serverTime(t, v)-cpuBefore, time.Since(began)
			perSecond := float64(n) / took.Seconds()
			t.Logf("%d holders at a window of %v: %.0f statements a second (one each W/5 is %.0f), %.1f%% of one processor for the server",
				holders, window, perSecond, holders/beat.Seconds(), 100*cpu.Seconds()/took.Seconds())
			if one := holders / beat.Seconds(); perSecond < one/2 || perSecond > 2*one {
				t.Errorf("%.0f statements a second instead of %.0f", perSecond, one)
			}
			if cpu > took {
				t.Errorf("the server needs %v of processor time in %v", cpu, took)
			}
			if stats := m.Stats(); stats.Held != holders || stats.Lost != 0 {
				t.Errorf("%+v", stats)
			}
			_, err = m.ReleaseAll(bg)
			must(t, err)
		})
	}
}

// serverTime is the processor time that the sessions of a database have used.
func serverTime(t testing.TB, v view) time.Duration {
	t.Helper()
	rows, err := v.db.Query(`SELECT pid FROM pg_stat_activity WHERE datid = $1`, v.oid)
	must(t, err)
	defer rows.Close()
	const tick = 10 * time.Millisecond // USER_HZ of Linux, see proc(5)
	var sum time.Duration
	for rows.Next() {
		var pid int
		must(t, rows.Scan(&pid))
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		must(t, err)
		// The name, in parentheses, may have spaces in it; utime and stime are
		// the 14th and 15th field.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		for _, field := range fields[11:13] {
			ticks, err := strconv.ParseInt(field, 10, 64)
			must(t, err)
			sum += time.Duration(ticks) * tick
		}
	}
	must(t, rows.Err())
	return sum
}
