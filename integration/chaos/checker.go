package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// conflict is two holds that exclude each other, and overlapped; the rival heard
// of its grant later.
type conflict struct{ holder, rival hold }

func (c conflict) String() string {
	return fmt.Sprintf("%v for %v\n  holder: %v\n  rival:  %v", c.rival.key, c.length(), c.holder, c.rival)
}

// length is how long both were in.
func (c conflict) length() time.Duration { return min(c.holder.end, c.rival.end) - c.rival.start }

// gap is a conflict that had to be expected: the server had ended the session of
// one of the two, which was told, after this time.
type gap struct {
	conflict
	stale hold   // the one whose session had ended
	kind  string // of the fault, and what else was broken meanwhile
	took  time.Duration
	bound time.Duration
}

func (g gap) String() string {
	return fmt.Sprintf("%v of %v allowed, %s: %v", g.took, g.bound, g.kind, g.conflict)
}

// rules are what a history is judged by.
type rules struct {
	// notice is how long each driver may take to tell a holder that the server
	// has ended its session.
	notice map[string]time.Duration
	// silence is how long it may take where the network carries nothing.
	silence time.Duration
	// sessions: locks live on sessions, so that all are lost when those end.
	sessions bool
	// unasked is how old a hold may be that is passed on within its process when
	// it is released, which does not ask the server whether the lock is there; and
	// word how long before that the server must have answered.
	unasked, word time.Duration
}

// verdict is what check found.
type verdict struct {
	overlaps []conflict // not excused by anything
	gaps     []gap      // within their bounds, and those that are not
	untold   []hold     // lost, while the holder was told that all is well
	tokens   []conflict // a later hold whose token is not greater
}

// late returns the gaps that are longer than their bounds.
func (v verdict) late() []gap {
	return slices.DeleteFunc(slices.Clone(v.gaps), func(g gap) bool { return g.took <= g.bound })
}

// check judges a history. Holds may come in any order.
func check(holds []hold, faults []fault, r rules) verdict {
	byKey := make(map[string][]hold)
	for _, h := range holds {
		byKey[h.key] = append(byKey[h.key], h)
	}
	var v verdict
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		held := byKey[key]
		slices.SortStableFunc(held, func(a, b hold) int { return cmp.Compare(a.start, b.start) })
		for _, c := range conflicts(held) {
			if g, ok := r.expected(c, faults); ok {
				v.gaps = append(v.gaps, g)
			} else {
				v.overlaps = append(v.overlaps, c)
			}
		}
		v.tokens = append(v.tokens, disorder(held, faults)...)
	}
	if r.sessions {
		v.untold = r.untold(holds, faults)
	}
	return v
}

// conflicts finds the holds of one key, in the order of their starts, that
// overlap and may not.
func conflicts(held []hold) (found []conflict) {
	var active []hold
	for _, h := range held {
		active = slices.DeleteFunc(active, func(a hold) bool { return a.end <= h.start })
		for _, a := range active {
			if !a.shared || !h.shared {
				found = append(found, conflict{a, h})
			}
		}
		active = append(active, h)
	}
	return found
}

// expected reports whether a conflict is the gap between the end of a session
// and the holder's learning of it. That may be the rival's: its grant was under
// way when its session ended, and the other one got the lock first.
func (r rules) expected(c conflict, faults []fault) (gap, bool) {
	g, ok := r.gap(c, c.holder, c.rival, faults)
	if !ok {
		g, ok = r.gap(c, c.rival, c.holder, faults)
	}
	return g, ok
}

// gap is the conflict as a gap of the one holder, if it did learn of the end of
// its session, or was over before it could, and a fault before the other's start
// explains it.
func (r rules) gap(c conflict, stale, other hold, faults []fault) (gap, bool) {
	var cause *fault
	var also []string
	g := gap{conflict: c, stale: stale, took: stale.end - c.rival.start, bound: r.notice[stale.driver]}
	for i, f := range faults {
		if (f.orphaned(stale) || r.passedOn(f, stale)) && f.begin <= other.start && (cause == nil || f.begin > cause.begin) {
			cause = &faults[i]
		}
		if !f.concerns(stale) || f.begin >= stale.end || f.end <= c.rival.start {
			continue
		}
		switch {
		case f.stopped:
			// The holder could not learn of anything while it did not run.
			also = append(also, "stopped")
			g.took -= min(f.end, stale.end) - max(f.begin, c.rival.start)
		case f.cut:
			also = append(also, "cut off")
			g.bound = max(g.bound, r.silence)
		case f.delay > 0:
			also = append(also, "on a slow network")
			g.bound = max(g.bound, min(g.bound+4*f.delay, r.silence))
		}
	}
	if cause == nil {
		return gap{}, false
	}
	if cause.stopped {
		also = slices.DeleteFunc(also, func(what string) bool { return what == "stopped" })
	}
	slices.Sort(also)
	g.kind = strings.Join(append([]string{cause.kind}, slices.Compact(also)...), ", ")
	return g, true
}

// disorder finds holds of one key whose token is not greater than that of a
// hold that was over before, or that equals the token of another one. Two shared
// holds may have theirs in any order: they may have overlapped at the server. So
// may a hold whose session had ended when its holder heard of the grant: it is
// the one that its token keeps from writing.
func disorder(held []hold, faults []fault) (found []conflict) {
	held = slices.DeleteFunc(slices.Clone(held), func(h hold) bool { return h.token == 0 })
	ended := slices.Clone(held)
	slices.SortStableFunc(ended, func(a, b hold) int { return cmp.Compare(a.end, b.end) })
	seen := make(map[uint64]hold)
	var greatest, greatestExclusive hold
	for _, h := range held {
		for len(ended) > 0 && ended[0].end <= h.start {
			e := ended[0]
			if e.token > greatest.token {
				greatest = e
			}
			if !e.shared && e.token > greatestExclusive.token {
				greatestExclusive = e
			}
			ended = ended[1:]
		}
		before := greatest
		if h.shared {
			before = greatestExclusive
		}
		if twin, ok := seen[h.token]; ok {
			found = append(found, conflict{twin, h})
		} else if h.token <= before.token && !bornLate(h, faults) {
			found = append(found, conflict{before, h})
		}
		seen[h.token] = h
	}
	return found
}

// bornLate reports whether the session of h had ended, or may have, when its
// holder heard of the grant.
func bornLate(h hold, faults []fault) bool {
	return slices.ContainsFunc(faults, func(f fault) bool { return f.orphaned(h) && f.begin <= h.start })
}

// untold finds holds that a fault must have ended, of which the holder was told
// that the server had them until the release.
func (r rules) untold(holds []hold, faults []fault) (found []hold) {
	for _, h := range holds {
		if h.outcome == released && slices.ContainsFunc(faults, func(f fault) bool {
			return f.severed(h) && h.start < f.begin && f.end < h.end && !r.passedOn(f, h)
		}) {
			found = append(found, h)
		}
	}
	return found
}

// passedOn reports whether f may have ended the session of h when h was passed on
// within its process: the release does not tell then.
func (r rules) passedOn(f fault, h hold) bool {
	return h.outcome == released && h.end-h.start <= r.unasked &&
		f.severed(h) && f.end >= h.asked && f.begin <= h.end && h.end <= f.end+r.word
}

// write is a row that a holder's transaction has left in the database.
type write struct {
	key   string
	seq   int64
	hold  string
	token uint64
}

// stale finds the rows that a holder wrote when another one had written
// already: per key the rows of each hold must be in one piece, and tokens must
// not fall. The rows come in the order of their sequence numbers.
func stale(rows []write) (found []write) {
	type end struct {
		hold  string
		token uint64
		over  map[string]bool
	}
	ends := make(map[string]*end)
	for _, row := range rows {
		e := ends[row.key]
		if e == nil {
			e = &end{hold: row.hold, over: make(map[string]bool)}
			ends[row.key] = e
		}
		if row.hold != e.hold {
			e.over[e.hold] = true
			e.hold = row.hold
		}
		if e.over[row.hold] || row.token != 0 && row.token < e.token {
			found = append(found, row)
		}
		e.token = max(e.token, row.token)
	}
	return found
}
