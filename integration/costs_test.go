package integration

import (
	"database/sql"
	"testing"

	"github.com/holdfast-go/holdfast/integration/wire"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// What an operation may cost. Times are package bench's matter; these numbers
// are the same on every machine. What goes over the wire is exact, also from
// below: a number that falls is to be written down here. Allocations have a
// tenth of room, for versions of Go and of drivers and for the race detector.
var limits = []struct {
	operation operation
	driver    string
	wire      wire.Counts
	allocs    float64
}{
	{uncontended, wire.PQ, wire.Counts{Statements: 2, RoundTrips: 2}, 65},
	{uncontended, wire.PGX, wire.Counts{Statements: 2, RoundTrips: 2}, 57},
	{refusedByRival, wire.PQ, wire.Counts{Statements: 1, RoundTrips: 1}, 99},
	{refusedByRival, wire.PGX, wire.Counts{Statements: 1, RoundTrips: 1}, 93},
	{refusedHere, wire.PQ, wire.Counts{}, 6},
	{refusedHere, wire.PGX, wire.Counts{}, 6},
	{uncontendedOnShared, wire.PQ, wire.Counts{Statements: 2, RoundTrips: 2}, 112},
	{uncontendedOnShared, wire.PGX, wire.Counts{Statements: 2, RoundTrips: 2}, 115},
	{tenAtOnce, wire.PQ, wire.Counts{Statements: 21, RoundTrips: 21}, 689},
	{tenAtOnce, wire.PGX, wire.Counts{Statements: 21, RoundTrips: 21}, 742},
}

// operation is something that a program does over and over.
type operation struct {
	name string
	// prepare returns it, for a manager with the key "ours", while a rival holds
	// the key "theirs".
	prepare func(t *testing.T, m *pglock.Manager) (do func())
	opts    []pglock.Option
}

var (
	uncontended = operation{name: "acquire and release", prepare: func(t *testing.T, m *pglock.Manager) func() {
		return func() { must(t, acquire(t, m, "k").Release(bg)) }
	}}
	uncontendedOnShared = operation{"acquire and release on a shared session", uncontended.prepare, []pglock.Option{pglock.WithSharedSessions(1)}}
	refusedByRival      = operation{name: "try what a rival holds", prepare: func(t *testing.T, m *pglock.Manager) func() {
		return func() { mustNotGet(t, m, "theirs") }
	}}
	refusedHere = operation{name: "try what this manager holds", prepare: func(t *testing.T, m *pglock.Manager) func() {
		return func() { mustNotGet(t, m, "ours") }
	}}
	tenAtOnce = operation{name: "acquire and release ten keys at once", prepare: func(t *testing.T, m *pglock.Manager) func() {
		keys := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
		return func() {
			set, err := m.AcquireAll(bg, keys)
			must(t, err)
			must(t, set.Release(bg))
		}
	}}
)

func mustNotGet(t *testing.T, m *pglock.Manager, key string) {
	t.Helper()
	_, got, err := m.TryAcquire(bg, key)
	must(t, err)
	if got {
		t.Fatalf("%s was granted, although somebody holds it", key)
	}
}

// It does not run beside other tests, whose allocations would count.
func TestCostsStayWithinTheirLimits(t *testing.T) {
	for _, limit := range limits {
		t.Run(limit.driver+"/"+limit.operation.name, func(t *testing.T) {
			w := newWorld(t, setupOf(limit.driver))
			var counter wire.Counter
			m := counted(t, w, &counter, limit.driver, limit.operation.opts...)
			acquire(t, m, "ours")
			acquire(t, w.manager(t, w.db(t, 4)), "theirs")
			do := limit.operation.prepare(t, m)
			for range 10 {
				do() // opens connections, prepares statements
			}

			const times = 50
			before := counter.Counts()
			for range times {
				do()
			}
			got := counter.Counts().Sub(before)
			got = wire.Counts{
				Connections: once(got.Connections, times),
				Statements:  once(got.Statements, times),
				RoundTrips:  once(got.RoundTrips, times),
			}
			if got != limit.wire {
				t.Errorf("once costs %+v, want %+v", got, limit.wire)
			}
			allocs := testing.AllocsPerRun(times, do)
			t.Logf("%v allocations", allocs)
			if allocs > limit.allocs*1.1 {
				t.Errorf("once costs %v allocations, want %v and a tenth more at most", allocs, limit.allocs)
			}
		})
	}
}

// once is what one of several operations costs, rounded. So what happens now and
// then does not count: the ping of a driver after a second in which it was kept
// waiting, or one more connection because the last one was not yet back.
func once(all int64, operations int64) int64 { return (all + operations/2) / operations }

func TestAThousandWaitersForOneKeyHaveOneConnection(t *testing.T) {
	for _, driver := range []string{wire.PQ, wire.PGX} {
		t.Run(driver, func(t *testing.T) {
			w := newWorld(t, setupOf(driver))
			lock := acquire(t, w.manager(t, w.db(t, 4)), "k")
			var counter wire.Counter
			m := counted(t, w, &counter, driver)
			must(t, m.Verify(bg))
			before, sessions := counter.Counts(), w.sessions(t)
			var waiters []<-chan result
			for range 1000 {
				waiters = append(waiters, acquireLater(m, "k"))
			}
			eventually(t, "all wait", func() bool { return m.Stats().Waiting == 1000 && w.waiting(t, "k") == 1 })
			if s := m.Stats().Sessions; s != 1 {
				t.Errorf("%d sessions are pinned, want 1", s)
			}
			if now := counter.Counts().Sub(before); now.Connections > 1 || w.sessions(t) > sessions+1 {
				t.Errorf("%d more connections were opened, %d more are open; want 1 at most", now.Connections, w.sessions(t)-sessions)
			}
			must(t, m.Close(bg)) // answers them all
			for _, waiter := range waiters {
				wraps(t, receive(t, "an answer", waiter).err, ports.ErrClosed)
			}
			must(t, lock.Release(bg))
		})
	}
}

// BenchmarkPair is an uncontended acquire and release, beside the same two
// statements on a pinned connection.
func BenchmarkPair(b *testing.B) {
	for _, driver := range []string{wire.PQ, wire.PGX} {
		w := newWorld(b, setupOf(driver))
		b.Run(driver+"/Holdfast", func(b *testing.B) {
			m := w.manager(b, w.db(b, 4))
			b.ReportAllocs()
			for b.Loop() {
				must(b, acquire(b, m, "k").Release(bg))
			}
		})
		b.Run(driver+"/raw", func(b *testing.B) {
			conn, err := w.db(b, 1).Conn(bg)
			must(b, err)
			defer conn.Close()
			var pair [2]*sql.Stmt
			for i, function := range []string{"pg_advisory_lock", "pg_advisory_unlock"} {
				pair[i], err = conn.PrepareContext(bg, "SELECT "+function+"($1::bigint)")
				must(b, err)
			}
			b.ReportAllocs()
			for b.Loop() {
				for _, statement := range pair {
					_, err := statement.ExecContext(bg, 1)
					must(b, err)
				}
			}
		})
	}
}

// setupOf is the plain setup of a driver.
func setupOf(driver string) setup {
	if driver == wire.PQ {
		return drivers[0]
	}
	return drivers[1]
}

// counted makes a manager whose connections are counted.
func counted(t *testing.T, w world, c *wire.Counter, driver string, opts ...pglock.Option) *pglock.Manager {
	t.Helper()
	w.open = func(t testing.TB, dsn string, size int) *sql.DB {
		t.Helper()
		db, err := c.Open(driver, dsn)
		must(t, err)
		db.SetMaxIdleConns(size)
		return checked(t, db, size, func() {})
	}
	return w.manager(t, w.db(t, 8), opts...)
}
