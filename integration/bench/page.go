package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/integration/peers"
	"github.com/holdfast-go/holdfast/integration/report"
)

var preamble = fmt.Sprintf(`# Benchmarks

Holdfast beside its floor and beside other lock libraries. `+"`make bench`"+` repeats
all of it and rewrites the figures and charts below; it needs PostgreSQL, takes
pgbench and redis-server along where they are installed, and lasts about six
minutes.

## Method

All contestants of a scenario are there at once and take turns. In each round
each is measured once, and each round another one begins. A figure is the median
over the rounds. A ratio is the median of the rounds' own ratios, so that whatever
slows the machine down for a while slows both sides of it and falls out. ± is half
the distance between the quartiles of the rounds: a difference below it means
nothing.

Times say more about the machine than about a library: client and server share
its processors, and a real network adds to every round trip. The ratios, the
connections and the statements are the point.

The floor, "raw SQL", is the fewest and fastest statements of a driver on pinned
connections: pg_advisory_lock and pg_advisory_unlock, prepared on each of them. It
checks nothing and notices nothing. pgbench runs the same two statements.

PostgreSQL has its default settings but for max_connections, with fsync on. Every
contestant has a database of its own, and a pool that keeps its connections.
Contestants have their default options, with these exceptions. Holdfast is told
that the pool is for locks alone where that is limited (WithMaxSessions). The
leases of cirello.io/pglock last %s instead of 20 s, because one that waits sleeps
for a whole lease. Those of redsync last a minute, and its waiters do not give up.
The peers on PostgreSQL use pgx, except cirello.io/pglock, which supports lib/pq
only. goose's locker is made for one migration at a time, not for traffic; it is
here because it is the other session lock that many use. redsync promises
something else, a lease on a Redis; its ratios are to raw SQL on pgx.
`, duration(leaseDuration))

// writePage writes the figures into the page at path.
func (f *figures) writePage(path string) error {
	return report.Write(path, "bench", preamble, f.page())
}

// page is all figures, as Markdown.
func (f *figures) page() string {
	b := f.b
	var p strings.Builder
	section := func(title, format string, args ...any) {
		fmt.Fprintf(&p, "\n## %s\n\n"+format+"\n\n", append([]any{title}, args...)...)
	}
	chart := func(c chart) { fmt.Fprintf(&p, "\n![%s](%s/%s)\n", c.title, chartDir, c.file()) }
	fmt.Fprintf(&p, "Measured on %s, in %d rounds.\n", f.machine, b.rounds)
	if b.redis == nil {
		p.WriteString("\nredis-server was not there: redsync is left out.\n")
	}

	section("Uncontended", "One goroutine takes and gives back a lock that nobody else wants. Each contestant\n"+
		"has processes of its own here, new ones in each round.")
	t := newTable("", "a pair, µs", "±", "× raw SQL of its driver")
	for _, s := range f.pairs {
		t.row(s.name, number(median(s.rounds)), percent(spread(s.rounds)), times(ratio(s.rounds, find(f.pairs, b.floorOf(s.name)))))
	}
	p.WriteString(t.String())
	chart(f.pairChart())

	section("Handover between processes", "From the moment at which one process gives a lock up to the moment at which\n"+
		"another, which waits for it, has it. Those that ask again instead of being woken\n"+
		"are given up to at any point of their pause. A contestant is measured for %s at most.", duration(b.handoverBudget))
	t = newTable("", "p50, µs", "p99, µs", "handovers", "p50 × raw SQL of its driver")
	p50 := f.handoverMedians()
	for i, o := range f.handovers {
		all := flat(o.rounds)
		p99 := "too few"
		if len(all) >= 100 {
			p99 = number(quantile(all, 0.99))
		}
		t.row(o.name, number(quantile(all, 0.5)), p99, fmt.Sprint(len(all)), times(ratio(p50[i].rounds, find(p50, b.floorOf(o.name)))))
	}
	p.WriteString(t.String())
	chart(f.handoverChart())

	section("Many goroutines, keys of their own", "%d goroutines, each of which takes and gives back a lock that no other one wants.", b.goroutines)
	t = newTable("", fmt.Sprintf("pairs/s on %d connections", b.connections), "±", "× go-pglock", "pairs/s on one", "±", "× go-pglock on "+fmt.Sprint(b.connections))
	peer := find(f.many, peers.GoPglock)
	for i, s := range f.many {
		one := f.manyOnOne[i]
		t.row(s.name, number(median(s.rounds)), percent(spread(s.rounds)), times(ratio(s.rounds, peer)),
			number(median(one.rounds)), percent(spread(one.rounds)), times(median(one.rounds)/median(peer)))
	}
	p.WriteString(t.String())
	chart(f.manyChart())

	section("Many goroutines, one key", "%d goroutines of one process all want the same lock; and then those of two processes\n"+
		"at once. Served is how many of the goroutines of one process had it at all within a\n"+
		"round of %s: whoever asks again after a pause leaves the lock to the one that has\n"+
		"just given it back. The share is that of the process that got less, in the median\n"+
		"round and in the worst. On shared sessions processes take turns of half a second,\n"+
		"and a round of two of them is %d times as long.", b.contenders, duration(b.contendSlot), turnSlots)
	t = newTable("", "pairs/s", "±", "× go-pglock", "served", "pairs/s in two processes", "share", "worst share")
	pairs := f.contendedPairs()
	for i, s := range pairs {
		both := column(f.twoProcesses, func(c [2]contention) float64 { return c[0].rate() + c[1].rate() })[i]
		share := column(f.twoProcesses, func(c [2]contention) float64 {
			return float64(min(c[0].pairs, c[1].pairs)) / float64(c[0].pairs+c[1].pairs)
		})[i]
		served := column(f.contended, func(c contention) float64 { return float64(c.served) })[i]
		t.row(s.name, number(median(s.rounds)), percent(spread(s.rounds)), times(ratio(s.rounds, find(pairs, peers.GoPglock))),
			fmt.Sprintf("%.0f of %d", median(served.rounds), b.contenders),
			number(median(both.rounds)), percent(median(share.rounds)), percent(quantile(share.rounds, 0)))
	}
	p.WriteString(t.String())
	chart(f.contendedChart())

	section("Locks held at once", "Taken one after the other by one goroutine, from a pool without a limit. Who needs a\n"+
		"connection for each is not asked for more than %d; each lease of cirello.io/pglock\n"+
		"has a heartbeat, and it is not asked for more than %d.", mostConnections, mostLeases)
	for _, m := range holdMetrics {
		p.WriteString(bySize(m.title, b.held, f.holds, m.of) + "\n")
	}
	chart(f.holdChart())

	section("Waiting", "Goroutines that wait for locks that somebody else keeps, with a pool of %d connections:\n"+
		"the statements that they send meanwhile (for Redis, commands), and the connections that\n"+
		"they occupy.", b.waiterPool)
	for _, m := range waitMetrics {
		p.WriteString(bySize(m.title+", all on one key", b.oneKey, f.oneKey, m.of) + "\n")
		p.WriteString(bySize(m.title+", each on a key of its own", b.manyKeys, f.manyKeys, m.of) + "\n")
	}
	chart(f.waitChart())
	return strings.TrimSpace(p.String()) + "\n"
}

// metric is one figure of a scenario with sizes.
type metric[T any] struct {
	title string
	of    func(T) float64
}

var holdMetrics = []metric[hold]{
	{"Connections", func(h hold) float64 { return float64(h.connections) }},
	{"Time to take one, µs", func(h hold) float64 { return h.perLock }},
	{"Heap of the client for each, bytes", func(h hold) float64 { return h.heap }},
	{"Goroutines of the client, in all", func(h hold) float64 { return float64(h.goroutines) }},
}

var waitMetrics = []metric[waiting]{
	{"Statements per second", func(w waiting) float64 { return w.perSecond }},
	{"Connections", func(w waiting) float64 { return float64(w.connections) }},
}

// bySize is a table of one figure: a column for each size, of a row for each
// contestant that was there at the first.
func bySize[T any](title string, sizes []int, all map[int][]outcomes[T], of func(T) float64) string {
	head := []string{title}
	for _, n := range sizes {
		head = append(head, number(float64(n)))
	}
	t := newTable(head...)
	for _, o := range all[sizes[0]] {
		row := []string{o.name}
		for _, n := range sizes {
			row = append(row, number(median(find(column(all[n], of), o.name))))
		}
		t.row(row...)
	}
	return t.String()
}

// The columns that tables and charts share.

func (f *figures) handoverMedians() []series { return column(f.handovers, median) }

func (f *figures) contendedPairs() []series {
	return column(f.contended, contention.rate)
}

// find returns the rounds of one contestant; none if it was not there.
func find(all []series, name string) []float64 {
	for _, s := range all {
		if s.name == name {
			return s.rounds
		}
	}
	return nil
}

func flat(all [][]float64) (one []float64) {
	for _, values := range all {
		one = append(one, values...)
	}
	return one
}

// table is one of Markdown's.
type table struct{ strings.Builder }

func newTable(head ...string) *table {
	t := &table{}
	t.row(head...)
	t.row("---|" + strings.TrimSuffix(strings.Repeat("---:|", len(head)-1), "|"))
	return t
}

func (t *table) row(cells ...string) {
	t.WriteString("|" + strings.Join(cells, "|") + "|\n")
}

// number prints three digits that count, and a thousands separator.
func number(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	if v < 0 {
		return "-" + number(-v)
	}
	if v < 100 {
		text := fmt.Sprintf("%.*f", max(0, 2-digits(v)), v)
		if strings.Contains(text, ".") {
			text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
		}
		return text
	}
	unit := math.Pow(10, float64(max(0, digits(v)-3)))
	text := fmt.Sprintf("%.0f", math.Round(v/unit)*unit)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// digits is how many v has before the point.
func digits(v float64) int {
	if v < 1 {
		return 0
	}
	return int(math.Log10(v)) + 1
}

func duration(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

func percent(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}

func times(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.2f", v)
}
