//go:build linux

package faults

import (
	"database/sql"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// N locks were N connections. Here ten thousand are one, with nothing but some
// memory each.
func TestTenThousandLocksOnOneConnection(t *testing.T) {
	const workers = 500 // a goroutine leaves memory behind, which is not the locks'
	s := breakable(t, map[string]string{"max_locks_per_transaction": "256"})
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			db, err := sql.Open(d.driver, d.dsn(s.DSN()))
			must(t, err)
			defer db.Close()
			m := d.new(db, pglock.WithSharedSessions(1))
			defer m.Close(bg)
			_, err = m.Acquire(bg, "warm")
			must(t, err)
			heap := func() int64 {
				runtime.GC()
				runtime.GC()
				var stats runtime.MemStats
				runtime.ReadMemStats(&stats)
				return int64(stats.HeapAlloc)
			}
			for _, n := range []int{100, 1_000, 10_000} {
				keys, locks := make([]string, n), make([]ports.Lock, n)
				for i := range keys {
					keys[i] = fmt.Sprintf("key %d of %d", i, n)
				}
				before, goroutines := heap(), runtime.NumGoroutine()
				start := time.Now()
				var wg sync.WaitGroup
				for worker := range workers {
					wg.Go(func() {
						for i := worker; i < n; i += workers {
							lock, err := m.Acquire(bg, keys[i])
							if err != nil {
								t.Error(err)
								return
							}
							locks[i] = lock
						}
					})
				}
				wg.Wait()
				if t.Failed() {
					return
				}
				took := time.Since(start) / time.Duration(n)
				// A check may have its goroutine and its memory just now.
				eventually(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines })
				each := (heap() - before) / int64(n)
				t.Logf("%d locks: %d bytes and %v each", n, each, took)
				if n == 10_000 && each > 1024 {
					t.Errorf("%d bytes for each of %d locks", each, n)
				}
				if used := db.Stats().InUse; used != 1 || m.HeldCount() != n+1 {
					t.Errorf("%d connections for %d locks", used, m.HeldCount())
				}
				released, err := m.ReleaseAll(bg)
				must(t, err)
				if released != n+1 {
					t.Errorf("released %d", released)
				}
				_, err = m.Acquire(bg, "warm")
				must(t, err)
			}
		})
	}
}

// A lock table that is full fails everybody. A manager stays below the half of
// it, and says what to raise; also if others have filled it.
func TestTheLockTableIsNotFilled(t *testing.T) {
	s := breakable(t, map[string]string{"max_locks_per_transaction": "10", "max_connections": "20"})
	const most = 10 * 20 / 2
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			db, err := sql.Open(d.driver, d.dsn(s.DSN()))
			must(t, err)
			defer db.Close()
			m := d.new(db, pglock.WithSharedSessions(1))
			defer m.Close(bg)
			for i := range most {
				if _, err := m.Acquire(bg, fmt.Sprint(i)); err != nil {
					t.Fatalf("lock %d: %v", i, err)
				}
			}
			_, err = m.Acquire(bg, "one more")
			wraps(t, err, ports.ErrTooManyLocks)
			if !strings.Contains(err.Error(), "max_locks_per_transaction") {
				t.Error(err)
			}
			must(t, m.Release(bg, "0"))
			_, err = m.Acquire(bg, "one more")
			must(t, err)
			n, err := m.ReleaseAll(bg)
			must(t, err)
			if n != most {
				t.Errorf("released %d", n)
			}

			// Others fill it.
			conn := connect(t, s.DSN())
			for i := 0; err == nil; i++ {
				_, err = conn.Exec(bg, `SELECT pg_advisory_lock($1)`, i)
			}
			held, err := m.Acquire(bg, "held before")
			if err == nil { // there may be room for one
				for i := 0; err == nil && i < most; i++ {
					_, err = m.Acquire(bg, fmt.Sprint("beside ", i))
				}
				<-held.Done() // in doubt, all are given up
				wraps(t, held.Err(), ports.ErrLost)
			}
			wraps(t, err, ports.ErrTooManyLocks)
			if !strings.Contains(err.Error(), "max_locks_per_transaction") {
				t.Error(err)
			}
			conn.Close(bg)
			eventually(t, "there is room again", func() bool {
				lock, err := m.Acquire(bg, "after")
				return err == nil && lock.Release(bg) == nil
			})
		})
	}
}
