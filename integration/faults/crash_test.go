//go:build linux

package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// slowToWrite are the settings of a server that keeps its log in memory for as
// long as it may, and loses what is there in a crash. What it has handed to the
// kernel survives, since the machine does not crash; so fsync may be off.
var slowToWrite = map[string]string{
	"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "wal_buffers": "64MB",
	"autovacuum": "off", "checkpoint_timeout": "1h",
}

// Tokens grow over a crash that comes in the midst of the grants, on a server
// that does not write its log in time. Bare transaction numbers do not.
func TestTokensGrowOverACrash(t *testing.T) {
	t.Parallel()
	const rounds, workers, before, after = 8, 2, 25, 5
	s := breakable(t, slowToWrite)
	var managers []*pglock.Manager
	for _, d := range drivers {
		managers = append(managers, d.manager(t, d.open(t, s.DSN(), 8)))
	}
	var greatest ports.Token
	var tokens, repeated int
	for round := range rounds {
		// Each worker takes its tokens until the server is gone.
		var granted atomic.Int32
		enough := make(chan struct{})
		reached := sync.OnceFunc(func() { close(enough) })
		var mu sync.Mutex
		epoch := greatest
		collect := func(n int) {
			var wg sync.WaitGroup
			for i, m := range managers {
				for k := range workers {
					key := fmt.Sprintf("%d %d", i, k)
					wg.Go(func() {
						var last ports.Token
						for range n {
							lock, err := m.Acquire(bg, key, ports.WithTimeout(patience), ports.WithFencing())
							if err != nil {
								return // the server is gone
							}
							token := lock.Info().Token
							mu.Lock()
							if token <= epoch || token <= last {
								t.Errorf("round %d: token %x of %s after %x, and %x before the crash", round, token, key, last, epoch)
							}
							last = token
							greatest, tokens = max(greatest, token), tokens+1
							mu.Unlock()
							if granted.Add(1) >= before {
								reached()
							}
							lock.Release(bg)
						}
						reached()
					})
				}
			}
			wg.Wait()
		}
		var burst sync.WaitGroup
		burst.Go(func() { collect(1 << 20) })
		receive(t, "some tokens", enough)

		must(t, s.StopMode("immediate"))
		burst.Wait()
		must(t, s.Start())
		epoch = greatest
		collect(after)
		if t.Failed() {
			return
		}
	}

	// The control: bare numbers do repeat, so the crashes were real.
	for range 3 {
		conn := connect(t, s.DSN())
		var last, first int64
		for range 20 {
			must(t, conn.QueryRow(bg, `SELECT pg_current_xact_id()::text::bigint`).Scan(&last))
		}
		must(t, s.StopMode("immediate"))
		must(t, s.Start())
		must(t, connect(t, s.DSN()).QueryRow(bg, `SELECT pg_current_xact_id()::text::bigint`).Scan(&first))
		if first <= last {
			repeated++
		}
	}
	if repeated == 0 {
		t.Error("no bare transaction number was repeated, so these crashes show nothing of tokens")
	}
	t.Logf("%d tokens over %d crashes, all greater; bare transaction numbers repeated after %d of 3 crashes", tokens, rounds, repeated)
}

// The leader was wedged after a failover: it has to step down, to campaign
// again, and to lead again, with the same manager on the same pool.
func TestCase38LeadersRecoverWithoutARestartOfTheProgram(t *testing.T) {
	t.Parallel()
	s := breakable(t, nil)
	for _, b := range []struct {
		name string
		do   func(t *testing.T, s *postgres.Server)
	}{
		{"a fast restart", func(t *testing.T, s *postgres.Server) { must(t, s.Restart("fast")) }},
		{"an immediate restart", func(t *testing.T, s *postgres.Server) { must(t, s.Restart("immediate")) }},
		{"kill -9 of an unrelated session's process", func(t *testing.T, s *postgres.Server) {
			conn := connect(t, s.DSN())
			if err := syscall.Kill(int(conn.PgConn().PID()), syscall.SIGKILL); err != nil {
				t.Skipf("the server's processes are not ours to kill: %v", err)
			}
		}},
	} {
		t.Run(b.name, func(t *testing.T) {
			terms := make(map[string]chan *term)
			ctx, cancel := context.WithCancel(bg)
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			for _, d := range drivers {
				led := make(chan *term, 100)
				terms[d.name] = led
				for range 2 {
					m := d.manager(t, d.open(t, s.DSN(), 4), pglock.WithLivenessWindow(pglock.MinLivenessWindow))
					wg.Go(func() { campaign(ctx, m, d.name, led) })
				}
			}
			for range 2 {
				leaders := make(map[string]*term)
				for _, d := range drivers {
					leaders[d.name] = leaderSince(t, terms[d.name], time.Time{})
				}
				broken := time.Now()
				b.do(t, s)
				for _, d := range drivers {
					leader := leaders[d.name]
					receive(t, "the end of the term of "+d.name, leader.lock.Done())
					told := time.Since(broken)
					wraps(t, leader.lock.Err(), ports.ErrLost)
					next := leaderSince(t, terms[d.name], broken)
					t.Logf("%s: told after at most %v, led again after %v", d.name, told.Round(time.Millisecond), next.began.Sub(broken).Round(time.Millisecond))
					terms[d.name] <- next // it is the leader of the next round
				}
				// A manager that has not had a lock yet proves its setup now, with
				// a lock of its own for a moment.
				eventually(t, "each key is held by one session", func() bool { return slices.Equal(heldBy(t, s), []int{1, 1}) })
			}
		})
	}
}

// term is one hold of a leader.
type term struct {
	lock  ports.Lock
	began time.Time
}

// leaderSince returns the first term that began after since and lasts. A server
// that is going down may have granted some that did not.
func leaderSince(t *testing.T, terms <-chan *term, since time.Time) *term {
	t.Helper()
	for {
		if next := receive(t, "a leader", terms); !next.began.Before(since) && next.lock.Err() == nil {
			return next
		}
	}
}

// campaign leads whenever it can until ctx ends.
func campaign(ctx context.Context, m *pglock.Manager, key string, terms chan<- *term) {
	for ctx.Err() == nil {
		lock, err := m.Acquire(ctx, key)
		if err != nil { // the server is away
			time.Sleep(20 * time.Millisecond)
			continue
		}
		terms <- &term{lock, time.Now()}
		select {
		case <-lock.Done():
		case <-ctx.Done():
			lock.Release(bg)
		}
	}
}

// heldBy counts the sessions that hold each advisory lock of a server.
func heldBy(t testing.TB, s *postgres.Server) (counts []int) {
	t.Helper()
	conn := connect(t, s.DSN())
	rows, err := conn.Query(bg, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted GROUP BY classid, objid`)
	must(t, err)
	for rows.Next() {
		var n int
		must(t, rows.Scan(&n))
		counts = append(counts, n)
	}
	must(t, rows.Err())
	return counts
}
