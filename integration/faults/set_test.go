//go:build linux

package faults

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

func TestAcquireAllHoldsAllKeysOnOneSession(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m, rival := w.manager(t, db), w.manager(t, w.db(t, 4))
		keys := []string{"d", "a", "c", "b", "a", "d"}
		set, err := m.AcquireAll(bg, keys, ports.WithTimeout(patience))
		must(t, err)

		infos := set.Infos()
		if !slices.IsSortedFunc(infos, func(a, b ports.LockInfo) int { return cmp.Compare(a.ID, b.ID) }) {
			t.Errorf("not in the order of IDs: %+v", infos)
		}
		var names []string
		for _, i := range infos {
			names = append(names, i.Key)
			if i.ID != m.KeyID(i.Key) || i.PID != infos[0].PID || !m.IsHeld(i.Key) {
				t.Errorf("%+v", i)
			}
		}
		slices.Sort(names)
		if !slices.Equal(names, []string{"a", "b", "c", "d"}) {
			t.Errorf("holds %q", names)
		}
		if lockers := w.lockers(t); !slices.Equal(lockers, []int{infos[0].PID}) || w.locks(t) != 4 {
			t.Errorf("%d locks of the processes %v", w.locks(t), lockers)
		}
		if m.HeldCount() != 4 || len(m.Held()) != 4 || db.Stats().InUse != 1 {
			t.Errorf("%d held, %d listed, %d connections", m.HeldCount(), len(m.Held()), db.Stats().InUse)
		}
		for _, key := range keys {
			for _, other := range []*pglock.Manager{m, rival} {
				if _, acquired, err := other.TryAcquire(bg, key); acquired || err != nil {
					t.Errorf("%s beside the set: %v, %v", key, acquired, err)
				}
			}
		}

		must(t, set.Release(bg))
		must(t, set.Release(bg))
		if w.locks(t) != 0 || m.HeldCount() != 0 || set.Err() != ports.ErrReleased {
			t.Errorf("after the release: %d locks, %d held, %v", w.locks(t), m.HeldCount(), set.Err())
		}
		eventually(t, "the connection is back", func() bool { return db.Stats().InUse == 0 })
		if n := m.Stats().Destroyed; n != 0 {
			t.Errorf("%d sessions were burnt", n)
		}
		must(t, acquire(t, m, "a").Release(bg))
	})
}

func TestALossEndsAllOfASet(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		m := w.manager(t, w.db(t, 4), pglock.WithLivenessWindow(pglock.MinLivenessWindow))
		set, err := m.AcquireAll(bg, []string{"a", "b", "c"})
		must(t, err)
		w.kill(t, set.Info().PID)
		receive(t, "the loss", set.Done())
		wraps(t, set.Err(), ports.ErrLost)
		for _, key := range []string{"a", "b", "c"} {
			if m.IsHeld(key) {
				t.Errorf("%s is held still", key)
			}
		}
		wraps(t, set.Release(bg), ports.ErrLost)
		again, err := m.AcquireAll(bg, []string{"c", "b", "a"})
		must(t, err)
		must(t, again.Release(bg))
	})
}

func TestAcquireAllThatFailsGivesBackWhatItTook(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		db := w.db(t, 4)
		m := w.manager(t, db)
		keys := []string{"a", "b", "c"}
		slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(m.KeyID(a), m.KeyID(b)) })
		conn := w.raw(t)
		empty := func(what string) {
			t.Helper()
			if held := m.HeldCount(); held != 0 {
				t.Errorf("%s: %d held", what, held)
			}
			eventually(t, what+": only the rival's lock is left, and no connection is in use", func() bool {
				return w.locks(t) == 1 && db.Stats().InUse == 0
			})
		}
		for i, taken := range keys {
			lockRaw(t, conn, taken)

			burnt := m.Stats().Destroyed
			began := time.Now()
			_, err := m.AcquireAll(bg, keys, ports.WithTimeout(700*time.Millisecond))
			wraps(t, err, ports.ErrNotAcquired, context.DeadlineExceeded)
			var typed *ports.LockError
			if !errors.As(err, &typed) || typed.Key != taken {
				t.Errorf("%s is taken, and the error names another key: %v", taken, err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("a timeout of 700ms took %v", took)
			}
			empty(fmt.Sprintf("timeout on key %d", i))
			if n := m.Stats().Destroyed; n != burnt {
				t.Errorf("timeout on key %d: %d sessions were burnt", i, n-burnt)
			}

			_, err = m.AcquireAll(bg, keys, ports.WithTimeout(0))
			wraps(t, err, ports.ErrNotAcquired)
			empty(fmt.Sprintf("one attempt on key %d", i))

			ctx, cancel := context.WithCancelCause(bg)
			why := errors.New("no longer wanted")
			done := make(chan error, 1)
			go func() {
				_, err := m.AcquireAll(ctx, keys)
				done <- err
			}()
			eventually(t, "it waits for the key", func() bool { return w.waiting(t, taken) == 1 })
			cancel(why)
			wraps(t, receive(t, "the error", done), context.Canceled, why)
			empty(fmt.Sprintf("cancelled on key %d", i))

			go func() {
				_, err := m.AcquireAll(bg, keys)
				done <- err
			}()
			eventually(t, "it waits for the key", func() bool { return w.waiting(t, taken) == 1 })
			waiter := scan[int](t, outside, `SELECT pid `+advisory+` AND NOT granted`, w.oid, m.KeyID(taken))
			if i > 0 { // it holds the first key
				w.kill(t, waiter)
				if err := receive(t, "the error", done); !errors.Is(err, ports.ErrLost) && !errors.Is(err, ports.ErrSessionEnded) {
					t.Errorf("killed on key %d: %v", i, err)
				}
				empty(fmt.Sprintf("killed on key %d", i))
				unlockRaw(t, conn)
				continue
			}
			unlockRaw(t, conn)
			must(t, receive(t, "all keys", done))
			_, err = m.ReleaseAll(bg)
			must(t, err)
		}
	})
}

// ABBA: the victim of 40P01 kept its first lock. And sorted locks that still
// deadlocked (case 25): they were sorted by name and locked by a hash.
func TestCase23AcquireAllCannotDeadlock(t *testing.T) {
	collide := func(key string) int64 { return int64(len(key)*7919%5) - 2 }
	for name, opts := range map[string][]pglock.Option{
		"hashed":                 nil,
		"colliding (of case 25)": {pglock.WithKeyFunc(collide)},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, drivers, func(t *testing.T, w world) {
				const goroutines, rounds = 6, 12
				ctx, cancel := context.WithTimeout(bg, 2*patience)
				defer cancel()
				pool := []string{"a", "bb", "ccc", "dddd", "eeeee", "ffffff", "a7", "bb8", "ccc9"}
				var wg sync.WaitGroup
				var mu sync.Mutex
				holder := make(map[int64]int)
				for p := range 2 { // two processes
					m := w.manager(t, w.db(t, 10), opts...)
					for g := range goroutines {
						wg.Go(func() {
							for range rounds {
								keys := slices.Clone(pool)
								rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
								keys = keys[:2+rand.IntN(4)]
								if rand.IntN(2) == 0 {
									keys = []string{"a", "bb"} // 1 then 2
									if g%2 == 0 {
										keys = []string{"bb", "a"} // 2 then 1
									}
								}
								set, err := m.AcquireAll(ctx, keys)
								if err != nil {
									t.Errorf("%q: %v", keys, err)
									return
								}
								mu.Lock()
								for _, key := range keys {
									if other := holder[m.KeyID(key)]; other != 0 && other != 1+p*goroutines+g {
										t.Errorf("two owners of %s", key)
									}
									holder[m.KeyID(key)] = 1 + p*goroutines + g
								}
								mu.Unlock()
								time.Sleep(rand.N(3 * time.Millisecond))
								mu.Lock()
								for _, key := range keys {
									delete(holder, m.KeyID(key))
								}
								mu.Unlock()
								if err := set.Release(bg); err != nil {
									t.Errorf("%q: %v", keys, err)
								}
							}
						})
					}
				}
				wg.Wait()
				if n := w.locks(t); n != 0 {
					t.Errorf("%d locks are left", n)
				}
				if n := scan[int](t, outside, `SELECT deadlocks FROM pg_stat_database WHERE datid = $1`, w.oid); n != 0 {
					t.Errorf("the server has seen %d deadlocks", n)
				}
			})
		})
	}
}

// The same keys one by one, in both orders: nobody can see that cycle but a
// timeout, and the error path releases what it took.
func TestCase23AnABBADeadlockEndsWithTheTimeoutAndLeavesNothing(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		both := make(chan struct{})
		var first, done sync.WaitGroup
		first.Add(2)
		go func() { first.Wait(); close(both) }()
		errs := make([]error, 2)
		for i, keys := range [][]string{{"1", "2"}, {"2", "1"}} {
			m := w.manager(t, w.db(t, 4))
			done.Go(func() {
				errs[i] = pglock.Do(bg, m, keys[0], func(ctx context.Context) error {
					first.Done()
					<-both
					return pglock.Do(ctx, m, keys[1], func(context.Context) error { return nil }, ports.WithTimeout(time.Duration(i+1)*1500*time.Millisecond))
				})
			})
		}
		done.Wait()
		wraps(t, errs[0], ports.ErrNotAcquired)
		must(t, errs[1]) // the victim gave up its first key
		if n := w.locks(t); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

// querier is what a transaction and a connection have in common.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// readSlowly reads n rows of about a kilobyte, with a pause after the first one.
func readSlowly(ctx context.Context, q querier, n int, pause time.Duration) error {
	rows, err := q.QueryContext(ctx, fmt.Sprintf(`SELECT i, repeat('x', 1000) FROM generate_series(1, %d) AS i`, n))
	if err != nil {
		return err
	}
	defer rows.Close()
	read := 0
	for ; rows.Next(); read++ {
		if read == 0 {
			time.Sleep(pause)
		}
	}
	if rows.Err() == nil && read != n {
		return fmt.Errorf("%d rows of %d", read, n)
	}
	return rows.Err()
}

// The heartbeat killed the lock: monitor and user shared one connection. And the
// settings that have the server find a client that is gone must not mistake one
// for it that is slow to read what it asked for.
func TestCase41AHolderThatUsesItsSessionIsNotLost(t *testing.T) {
	const window, longer = pglock.MinLivenessWindow, pglock.MinLivenessWindow + pglock.MinLivenessWindow/2
	t.Parallel()
	for name, work := range map[string]func(context.Context, querier) error{
		"few rows held open": func(ctx context.Context, q querier) error { return readSlowly(ctx, q, 20, longer) },
		// 20 megabytes are more than the kernels between here and the server keep.
		"many rows held open": func(ctx context.Context, q querier) error { return readSlowly(ctx, q, 20000, longer) },
		"a long statement": func(ctx context.Context, q querier) error {
			rows, err := q.QueryContext(ctx, fmt.Sprintf(`SELECT pg_sleep(%f)`, longer.Seconds()))
			if err != nil {
				return err
			}
			rows.Next()
			return rows.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, drivers, func(t *testing.T, w world) {
				m := w.manager(t, w.db(t, 4), pglock.WithLivenessWindow(window))
				var wg sync.WaitGroup
				for _, in := range []string{"RunTx", "RunConn"} {
					lock := acquire(t, m, in)
					wg.Go(func() {
						var err error
						if in == "RunTx" {
							err = sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error { return work(ctx, tx) })
						} else {
							err = sqllock.RunConn(bg, lock, func(ctx context.Context, conn *sql.Conn) error { return work(ctx, conn) })
						}
						if err != nil || lock.Err() != nil {
							t.Errorf("%s: %v; the hold: %v", in, err, lock.Err())
						}
						time.Sleep(window) // the checks go on
						if lock.Err() != nil {
							t.Errorf("%s: lost afterwards: %v", in, lock.Err())
						}
						if err := lock.Release(bg); err != nil {
							t.Errorf("%s: %v", in, err)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}
