//go:build linux

package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/integration/report"
)

// driverNames are the drivers as people call them.
var driverNames = []struct{ driver, name string }{{pq, "lib/pq"}, {pgx, "pgx"}}

// on returns those of all that belong to a driver.
func on[T any](all []T, driver string, of func(T) string) (found []T) {
	for _, one := range all {
		if of(one) == driver {
			found = append(found, one)
		}
	}
	return found
}

func conflictDriver(c conflict) string { return c.holder.driver }
func gapDriver(g gap) string           { return g.stale.driver }
func holdDriver(h hold) string         { return h.driver }

// faultsOn counts the faults that reached processes on a driver, by kind.
func (r *result) faultsOn(driver string) map[string]int {
	byKind := make(map[string]int)
	for _, f := range r.faults {
		if f.slots == nil || slices.ContainsFunc(f.slots, func(i int) bool { return i >= 0 && r.slots[i].driver == driver }) {
			byKind[f.kind]++
		}
	}
	return byKind
}

func sum(byKind map[string]int) (n int) {
	for _, m := range byKind {
		n += m
	}
	return n
}

// about counts the texts that name a driver.
func about(texts []string, driver string) (n int) {
	for _, text := range texts {
		if strings.Contains(text, "("+driver+")") {
			n++
		}
	}
	return n
}

// figures is the main table: a row for each library and driver.
func figures(results []*result) string {
	var text strings.Builder
	text.WriteString("| library, driver | lasted | acquisitions | faults | overlaps | gaps (too long) | longest gap | losses told | not told | stale commits | left at the end | processes not recovered | slowest recovery |\n")
	text.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		staleRows := staleByDriver(r)
		for _, d := range driverNames {
			c := r.counts[d.driver]
			gaps := on(r.gaps, d.driver, gapDriver)
			late := on(r.late(), d.driver, gapDriver)
			told := 0
			for _, h := range on(r.holds, d.driver, holdDriver) {
				if h.outcome == lost || h.outcome == unconfirmed {
					told++
				}
			}
			var slowest time.Duration
			for _, rec := range r.recoveries {
				if rec.driver == d.driver {
					slowest = max(slowest, rec.took)
				}
			}
			untold := "–" // a lease outlives every session
			if r.library.sessions {
				untold = fmt.Sprint(len(on(r.untold, d.driver, holdDriver)))
			}
			fmt.Fprintf(&text, "| %s, %s | %v | %d | %d | %d | %d (%d) | %s | %d | %s | %d | %d | %d | %s |\n",
				r.library.name, d.name, r.lasted.Round(time.Second), c.acquired, sum(r.faultsOn(d.driver)),
				len(on(r.overlaps, d.driver, conflictDriver)), len(gaps), len(late), longest(gaps), told, untold,
				c.stale+staleRows[d.driver], about(r.left, d.driver), about(r.dead, d.driver), short(slowest))
		}
	}
	return text.String()
}

// staleByDriver counts the stale rows by the driver that wrote them.
func staleByDriver(r *result) map[string]int {
	drivers := make(map[string]string)
	for _, h := range r.holds {
		drivers[fmt.Sprintf("%d/%d", h.proc, h.number)] = h.driver
	}
	n := make(map[string]int)
	for _, w := range r.stale {
		n[drivers[w.hold]]++
	}
	return n
}

func longest(gaps []gap) string {
	if len(gaps) == 0 {
		return "–"
	}
	var most time.Duration
	for _, g := range gaps {
		most = max(most, g.took)
	}
	return short(most)
}

// short prints a time so that tables stay readable.
func short(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// byFault is the table of one run: a row for each kind of fault.
func (r *result) byFault() string {
	var text strings.Builder
	text.WriteString("| fault | lib/pq | pgx | longest gap, lib/pq | longest gap, pgx | slowest recovery |\n|---|---|---|---|---|---|\n")
	counts := map[string]map[string]int{pq: r.faultsOn(pq), pgx: r.faultsOn(pgx)}
	kinds := make(map[string]bool)
	for _, byKind := range counts {
		for kind := range byKind {
			kinds[kind] = true
		}
	}
	for _, g := range r.gaps {
		kinds[g.kind] = true
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		of := func(driver string) string {
			return longest(slices.DeleteFunc(on(r.gaps, driver, gapDriver), func(g gap) bool { return g.kind != kind }))
		}
		recovered := "–"
		var slowest time.Duration
		for _, rec := range r.recoveries {
			if rec.kind == kind {
				slowest = max(slowest, rec.took)
				recovered = short(slowest)
			}
		}
		fmt.Fprintf(&text, "| %s | %d | %d | %s | %s | %s |\n", kind, counts[pq][kind], counts[pgx][kind], of(pq), of(pgx), recovered)
	}
	return text.String()
}

// summary is a run for people who read its log.
func (r *result) summary() string {
	text := figures([]*result{r}) + "\n" + r.byFault() + "\n"
	for _, d := range driverNames {
		c := r.counts[d.driver]
		text += fmt.Sprintf("%s: contended %d, failed %d, committed %d, refused after a loss %d\n", d.name, c.contended, c.failed, c.written, c.refused)
		text += topReasons(d.name, c)
	}
	return text + fmt.Sprintf("%d rows written; every goroutine had a lock again %v after the last fault\n", r.rows, r.last.Round(time.Millisecond))
}

var preamble = fmt.Sprintf(`# Chaos

What the suite in integration/chaos has measured: worker processes that compete
for a few keys while everything around them breaks. `+"`make chaos`"+` repeats it
and rewrites the figures below.

An overlap is two holds of a key that exclude each other, at the same time. A gap
is the one overlap that a lock on sessions cannot avoid: the server has ended the
holder's session, a rival is in, and the holder has not been told yet. Its length
counts from the rival's start to the moment that the holder was told; the time in
which the holder's process was stopped does not count. Who passes its lock on to
another goroutine of its process, which asks nothing of the server for 50 ms, may be
gone before it could be told: its gap ends with its release. A gap that is longer
than its bound is too long. A stale commit is a row in the database that a holder
wrote after its successor had written. A recovery is the time from the end of a fault
until a process that it concerned got its next lock. A process has not recovered
if none of its goroutines got a lock within %v after the last fault.

Acquisitions are not a measure of speed: what limits them is how long the faults
keep the keys. All libraries go through the faults of the same seed, with the same
bounds on their waits; one that ends such a wait by closing a connection pays for
it behind pgbouncer, which opens connections one by one, and one that polls once
in a lease gets few locks.
`, patience)

// writeReport puts the figures of all runs into the file.
func writeReport(path string, results []*result) error {
	ours := results[0]
	text := fmt.Sprintf("Seed %d, liveness window %v (for the leases of cirello.io/pglock, too), six processes of %d goroutines on %d keys,\n"+
		"three of them on each driver, one of each through pgbouncer. Gaps may be %v on pgx and %v on lib/pq, both with\n"+
		"what a loaded machine may add, and %v for a holder that is also cut off.\n\n",
		ours.seed, window, goroutines, len(quickKeys)+len(slowKeys), notice[pgx], notice[pq], lostAfter+slack)
	text += figures(results) + "\nHoldfast, by fault: how many reached processes on each driver, and what they led to.\n\n" + ours.byFault()
	return report.Write(path, "chaos", preamble, text)
}
