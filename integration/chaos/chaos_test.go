//go:build linux

package chaos

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	pgxdriver "github.com/jackc/pgx/v5"
)

// slack is what a loaded machine may add to any time that is bounded here.
const slack = time.Second

// word is how old the server's last answer may be for a release that passes the
// lock on: 50 ms; the rest is for the machine.
const word = 150 * time.Millisecond

// notice is how long each driver may take to tell a holder that the server has
// ended its session: pgx sees it, lib/pq asks at every beat.
var notice = map[string]time.Duration{pgx: window / 10, pq: window/5 + slack}

func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes minutes")
	}
	seed := setting(t, "CHAOS_SEED", rand.Uint64N(1_000_000))
	seconds := setting(t, "CHAOS_SECONDS", 60)
	t.Logf("CHAOS_SEED=%d CHAOS_SECONDS=%d", seed, seconds)
	report := os.Getenv("CHAOS_REPORT")
	var results []*result
	goThrough := func(l library, seconds uint64, flawless bool) {
		t.Run(l.name, func(t *testing.T) {
			r := run(t, l, seed, time.Duration(seconds)*time.Second)
			t.Log("\n" + r.summary())
			if flawless {
				r.mustBeFlawless(t)
			}
			if results = append(results, r); report != "" {
				must(t, writeReport(report, results)) // whatever becomes of the others
			}
		})
	}
	goThrough(holdfast, seconds, true)
	goThrough(holdfastShared, seconds/2, true)
	if report != "" {
		peerSeconds := setting(t, "CHAOS_PEER_SECONDS", 180)
		goThrough(goPglock, peerSeconds, false)
		goThrough(cirello, peerSeconds, false)
	}
}

// setting reads a number from the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// result is what a run has shown.
type result struct {
	library library
	seed    uint64
	lasted  time.Duration
	verdict
	holds      []hold
	faults     []fault
	counts     map[string]*counts
	slots      []*slot
	stale      []write
	rows       int
	left       []string // held, connected or running at the end
	dead       []string // processes that never got a lock again
	stuck      []string // goroutines that never did
	crashes    []string
	breaking   []error // faults that could not be made
	recoveries []recovery
	// last is the time from the end of the last fault until every goroutine
	// had a lock again.
	last time.Duration
}

// run has the workers of a library go through the faults of a seed.
func run(t *testing.T, l library, seed uint64, lasts time.Duration) *result {
	t.Helper()
	c := newCluster(t, func(dsn string) error { return prepare(l, dsn) })
	f, err := newFleet(c, l, seed)
	must(t, err)
	closed := false
	defer func() {
		if !closed {
			f.close()
		}
	}()
	began := now()
	for _, s := range f.slots {
		must(t, s.launch(c))
	}
	if not := f.await(patience, func(m *member) bool { return slices.Max(m.starts[:]) > 0 }); len(not) > 0 {
		t.Fatalf("%d processes do not get a lock even before the first fault: %s", len(not), f.reasons())
	}

	b := &breaker{cluster: c, fleet: f}
	b.breakThings(plan(seed, c), time.Now().Add(lasts))
	r := &result{library: l, seed: seed, faults: b.faults, breaking: b.errs, slots: f.slots, counts: f.counts}

	// Everybody recovers, with no restart of a program.
	whole := now()
	for _, m := range f.await(patience, func(m *member) bool { return slices.Min(m.starts[:]) > whole }) {
		f.mu.Lock()
		latest := slices.Max(m.starts[:])
		if latest <= whole {
			r.dead = append(r.dead, fmt.Sprintf("process %d (%s), since %v before the last fault was over", m.number, m.slot.driver, whole-latest))
		}
		for g, at := range m.starts {
			if at <= whole {
				r.stuck = append(r.stuck, fmt.Sprintf("process %d (%s), goroutine %d, since %v before the last fault was over", m.number, m.slot.driver, g, whole-at))
			}
		}
		f.mu.Unlock()
	}
	r.last = now() - whole
	r.lasted = now() - began

	// Nothing is left: first of the locks, then of the connections and
	// goroutines, and of what was written when.
	f.tell(drain)
	for _, m := range f.await(patience, func(m *member) bool { return m.drained }) {
		r.left = append(r.left, fmt.Sprintf("process %d (%s) does not come to an end with its holds", m.number, m.slot.driver))
	}
	admin, err := c.current().connect(bg)
	must(t, err)
	defer admin.Close(bg)
	r.left = append(r.left, f.ours(none(t, admin, `SELECT a.application_name || ' ' || l.mode || ' ' || l.objid FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE locktype = 'advisory'`), "an advisory lock")...)
	f.tell(leave)
	for _, m := range f.await(patience, func(m *member) bool { return m.gone }) {
		r.left = append(r.left, fmt.Sprintf("process %d (%s) does not end", m.number, m.slot.driver))
	}
	f.close()
	closed = true
	for _, s := range f.slots {
		if m := s.current(); m.left != "" {
			r.left = append(r.left, fmt.Sprintf("process %d (%s): %s", m.number, s.driver, m.left))
		}
	}
	if c.bouncer != nil { // which keeps connections to the server, by design
		must(t, c.bouncer.process.end(syscall.SIGTERM))
	}
	r.left = append(r.left, f.ours(none(t, admin, `SELECT application_name || ' ' || state || ' ' || query FROM pg_stat_activity WHERE application_name LIKE 'chaos-%'`), "a session")...)
	rows := written(t, admin)
	r.rows, r.stale = len(rows), stale(rows)

	r.holds, r.crashes = f.holds, f.crashes
	slices.SortFunc(r.holds, func(a, b hold) int { return cmp.Compare(a.start, b.start) })
	r.verdict = check(r.holds, r.faults, rules{notice: notice, silence: lostAfter + slack, sessions: l.sessions, unasked: l.unasked, word: word})
	r.recoveries = recoveries(r.holds, r.faults, f)
	return r
}

// prepare makes the tables of a run.
func prepare(l library, dsn string) error {
	db, err := sql.Open(pgx, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(`
		CREATE TABLE chaos_keys (key text PRIMARY KEY, seq bigint NOT NULL);
		CREATE TABLE chaos_writes (key text, seq bigint, hold text NOT NULL, token bigint NOT NULL, PRIMARY KEY (key, seq))`); err != nil {
		return err
	}
	if _, err := db.Exec(`INSERT INTO chaos_keys SELECT key, 0 FROM unnest($1::text[]) key`, slices.Concat(quickKeys, slowKeys)); err != nil {
		return err
	}
	return l.prepare(db)
}

// none waits until a query finds nothing, and returns what it goes on to find.
func none(t *testing.T, conn *pgxdriver.Conn, query string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(bg, window)
	defer cancel()
	for {
		rows, err := conn.Query(bg, query)
		must(t, err)
		found, err := pgxdriver.CollectRows(rows, pgxdriver.RowTo[string])
		must(t, err)
		if len(found) == 0 || ctx.Err() != nil {
			return found
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// written returns what the holders' transactions have left.
func written(t *testing.T, conn *pgxdriver.Conn) []write {
	t.Helper()
	rows, err := conn.Query(bg, `SELECT key, seq, hold, token FROM chaos_writes ORDER BY key, seq`)
	must(t, err)
	found, err := pgxdriver.CollectRows(rows, func(row pgxdriver.CollectableRow) (w write, err error) {
		var token int64
		err = row.Scan(&w.key, &w.seq, &w.hold, &token)
		w.token = uint64(token)
		return w, err
	})
	must(t, err)
	return found
}

// recovery is the time from the end of a fault until a process that it had
// concerned got its next lock.
type recovery struct {
	kind, driver string
	took         time.Duration
}

// recoveries measures them where no other fault came in between. The holds are
// in the order of their starts.
func recoveries(holds []hold, faults []fault, f *fleet) (found []recovery) {
	starts := make(map[int][]instant) // by process
	for _, h := range holds {
		starts[h.proc] = append(starts[h.proc], h.start)
	}
	for _, m := range f.members {
		for i, cause := range faults {
			h := hold{slot: m.slot.index}
			if !cause.concerns(h) || !(cause.cut || cause.stopped || cause.ended && cause.backends == nil) {
				continue
			}
			own := starts[m.number]
			next, _ := slices.BinarySearch(own, cause.end)
			if len(own) == 0 || next == len(own) || own[0] > cause.begin {
				continue // it ended before, or began later
			}
			disturbed := false
			for j, other := range faults {
				disturbed = disturbed || j != i && other.concerns(h) && other.backends == nil && other.begin < own[next] && other.end > cause.end
			}
			if !disturbed {
				found = append(found, recovery{cause.kind, m.slot.driver, own[next] - cause.end})
			}
		}
	}
	return found
}

// mustBeFlawless fails the test for whatever the library must not do, with what
// it takes to see why.
func (r *result) mustBeFlawless(t *testing.T) {
	t.Helper()
	for _, err := range r.breaking {
		t.Errorf("a fault could not be made: %v", err)
	}
	for _, c := range head(r.overlaps) {
		t.Errorf("OVERLAP of %v\n%s", c, r.excerpt(c))
	}
	for _, g := range head(r.late()) {
		t.Errorf("a gap is too long: %v\n%s", g, r.excerpt(g.conflict))
	}
	for _, c := range head(r.tokens) {
		t.Errorf("a token has not grown: %v", c)
	}
	for _, h := range head(r.untold) {
		t.Errorf("a loss was not told: %v\n%s", h, r.excerpt(conflict{h, h}))
	}
	for _, w := range head(r.stale) {
		t.Errorf("a stale holder's row is in the database: %+v", w)
	}
	for driver, c := range r.counts {
		if c.stale > 0 {
			t.Errorf("%s: %d transactions were committed after the loss had been told", driver, c.stale)
		}
		if c.denied > 0 {
			t.Errorf("%s: %d releases returned nil after the loss had been told", driver, c.denied)
		}
	}
	for what, found := range map[string][]string{"left at the end": r.left, "has not recovered": r.stuck, "a process has crashed": r.crashes} {
		for _, text := range head(found) {
			t.Errorf("%s: %s", what, text)
		}
	}
	if t.Failed() {
		t.Logf("CHAOS_SEED=%d repeats the faults", r.seed)
	}
}

// head returns the first few.
func head[T any](all []T) []T { return all[:min(len(all), 5)] }

// excerpt shows what else happened around a conflict.
func (r *result) excerpt(c conflict) string {
	from, to := c.rival.start-200*time.Millisecond, c.holder.end+200*time.Millisecond
	text := ""
	for _, f := range r.faults {
		if f.end > from-window && f.begin < to {
			text += fmt.Sprintf("  fault: %v\n", f)
		}
	}
	lines := 0
	for _, h := range r.holds {
		if h.key == c.holder.key && h.end > from && h.start < to && lines < 30 {
			text += fmt.Sprintf("  hold:  %v\n", h)
			lines++
		}
	}
	return text
}

// reasons lists why acquisitions failed, the most frequent first.
func (f *fleet) reasons() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := ""
	for driver, c := range f.counts {
		text += topReasons(driver, c)
	}
	return text
}

func topReasons(driver string, c *counts) string {
	text := ""
	names := slices.SortedFunc(maps.Keys(c.reasons), func(a, b string) int { return c.reasons[b] - c.reasons[a] })
	for _, name := range names[:min(len(names), 8)] {
		text += fmt.Sprintf("  %s, %d times: %s\n", driver, c.reasons[name], name)
	}
	return text
}
