package chaos

import (
	"math/rand/v2"
	"testing"
	"time"
)

const (
	ms = time.Millisecond
	s  = time.Second
)

// forged makes a hold of the key "k" with the driver "d"; change makes it what
// it is in the case.
func forged(slot int, start, end instant, change ...func(*hold)) hold {
	h := hold{proc: slot, slot: slot, driver: "d", key: "k", backend: 100 + slot, asked: start, start: start, end: end, outcome: released}
	for _, c := range change {
		c(&h)
	}
	return h
}

func as(o outcome) func(*hold)       { return func(h *hold) { h.outcome = o } }
func asked(at instant) func(*hold)   { return func(h *hold) { h.asked = at } }
func of(key string) func(*hold)      { return func(h *hold) { h.key = key } }
func token(token uint64) func(*hold) { return func(h *hold) { h.token = token } }
func sharing(h *hold)                { h.shared = true }
func terminated(at instant, slot int) fault {
	return fault{kind: "terminate", begin: at, end: at + ms, slots: []int{slot}, backends: []int{100 + slot}, ended: true}
}

// random is a source of numbers that follow from the seeds.
func random(seeds ...uint64) *rand.Rand {
	var mixed uint64
	for _, s := range seeds {
		mixed = rand.New(rand.NewPCG(mixed, s)).Uint64()
	}
	return rand.New(rand.NewPCG(mixed, 0))
}

func TestTheCheckerTellsForgedHistoriesApart(t *testing.T) {
	r := rules{notice: map[string]time.Duration{"d": 500 * ms}, silence: 4 * s, sessions: true, unasked: 800 * ms, word: 200 * ms}
	restart := fault{kind: "restart", begin: 1 * s, end: 2 * s, ended: true}
	type want struct{ overlaps, gaps, late, untold, tokens int }
	for _, c := range []struct {
		name   string
		holds  []hold
		faults []fault
		want   want
	}{
		{"nothing", nil, nil, want{}},
		{"one after the other", []hold{forged(1, 0, 1*s), forged(2, 1*s, 2*s)}, nil, want{}},
		{"in any order", []hold{forged(2, 1*s, 2*s), forged(1, 0, 1*s)}, nil, want{}},
		{"two at once", []hold{forged(1, 0, 1*s), forged(2, 1*s-1, 2*s)}, nil, want{overlaps: 1}},
		{"one within the other", []hold{forged(1, 0, 3*s), forged(2, 1*s, 2*s)}, nil, want{overlaps: 1}},
		{"one beside two", []hold{forged(1, 0, 3*s), forged(2, 1*s, 2*s), forged(3, 2*s, 4*s)}, nil, want{overlaps: 2}},
		{"a long one hides behind a short one", []hold{forged(1, 0, 9*s), forged(2, 1*s, 2*s, of("other")), forged(3, 8*s, 9*s)}, nil, want{overlaps: 1}},
		{"two keys", []hold{forged(1, 0, 3*s), forged(2, 1*s, 2*s, of("other"))}, nil, want{}},
		{"one process twice", []hold{forged(1, 0, 3*s), forged(1, 1*s, 2*s)}, nil, want{overlaps: 1}},
		{"two shared", []hold{forged(1, 0, 3*s, sharing), forged(2, 1*s, 2*s, sharing)}, nil, want{}},
		{"exclusive beside shared", []hold{forged(1, 0, 3*s, sharing), forged(2, 1*s, 2*s)}, nil, want{overlaps: 1}},
		{"shared beside exclusive", []hold{forged(1, 0, 3*s), forged(2, 1*s, 2*s, sharing)}, nil, want{overlaps: 1}},
		{"exclusive beside the second shared", []hold{forged(1, 0, 1*s, sharing), forged(2, 0, 3*s, sharing), forged(3, 2*s, 4*s)}, nil, want{overlaps: 1}},

		{"an allowed gap", []hold{forged(1, 0, 1200*ms, as(lost)), forged(2, 1100*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{gaps: 1}},
		{"a gap of one who was told by the release", []hold{forged(1, 0, 1200*ms, as(unconfirmed)), forged(2, 1100*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{gaps: 1}},
		{"a gap that is too long", []hold{forged(1, 0, 1700*ms, as(lost)), forged(2, 1100*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{gaps: 1, late: 1}},
		{"a loss without a fault", []hold{forged(1, 0, 1200*ms, as(lost)), forged(2, 1100*ms, 2*s)}, nil, want{overlaps: 1}},
		{"a rival before the fault", []hold{forged(1, 0, 1200*ms, as(lost)), forged(2, 900*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{overlaps: 1}},
		{"a fault before the hold", []hold{forged(1, 500*ms, 1200*ms, as(lost)), forged(2, 1100*ms, 2*s)}, []fault{terminated(100*ms, 1)}, want{overlaps: 1}},
		{"somebody else's fault", []hold{forged(1, 0, 1200*ms, as(lost)), forged(2, 1100*ms, 2*s)}, []fault{terminated(1*s, 2)}, want{overlaps: 1}},
		{"a fault of everybody", []hold{forged(1, 0, 2100*ms, as(lost)), forged(2, 2*s, 3*s)}, []fault{restart}, want{gaps: 1}},
		{"a killed holder", []hold{forged(1, 0, 1100*ms, as(killed)), forged(2, 1*s, 2*s)}, nil, want{overlaps: 1}},
		{"a holder killed in its gap", []hold{forged(1, 0, 1200*ms, as(killed)), forged(2, 1100*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{gaps: 1}},
		{"nothing was heard of it", []hold{forged(1, 0, 1200*ms, as(open)), forged(2, 1100*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{overlaps: 1}},

		{"a grant that came late", []hold{forged(2, 1100*ms, 2*s), forged(1, 1200*ms, 1300*ms, as(lost), asked(500*ms))}, []fault{terminated(1*s, 1)}, want{gaps: 1}},
		{"a grant that came late, and first", []hold{forged(1, 1050*ms, 1300*ms, as(lost), asked(500*ms)), forged(2, 1100*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{gaps: 1}},
		{"a grant that came late, and was kept for too long", []hold{forged(2, 1100*ms, 2*s), forged(1, 1200*ms, 1800*ms, as(lost), asked(500*ms))}, []fault{terminated(1*s, 1)}, want{gaps: 1, late: 1}},
		{"a grant that came late, and was not told", []hold{forged(2, 1100*ms, 2*s), forged(1, 1200*ms, 1300*ms, asked(500*ms))}, []fault{terminated(1*s, 1)}, want{overlaps: 1}},
		{"a grant that was asked for after the fault", []hold{forged(2, 1100*ms, 2*s), forged(1, 1200*ms, 1300*ms, as(lost), asked(1100*ms))}, []fault{terminated(1*s, 1)}, want{overlaps: 1}},
		{"a grant beside one from before the fault", []hold{forged(2, 900*ms, 2*s), forged(1, 1200*ms, 1300*ms, as(lost), asked(500*ms))}, []fault{terminated(1*s, 1)}, want{overlaps: 1}},

		{"a cut excuses nobody", []hold{forged(1, 0, 6*s, as(lost)), forged(2, 5900*ms, 7*s)},
			[]fault{{kind: "cut", begin: 1 * s, end: 8 * s, slots: []int{1}, cut: true}}, want{overlaps: 1}},
		{"a cut holder of a session that the server ended", []hold{forged(1, 0, 3*s, as(lost)), forged(2, 1100*ms, 7*s)},
			[]fault{terminated(1*s, 1), {kind: "cut", begin: 500 * ms, end: 8 * s, slots: []int{1}, cut: true}}, want{gaps: 1}},
		{"a stopped holder is told when it goes on", []hold{forged(1, 0, 7100*ms, as(lost)), forged(2, 1500*ms, 2*s)},
			[]fault{terminated(1200*ms, 1), {kind: "stop", begin: 1 * s, end: 7 * s, slots: []int{1}, stopped: true}}, want{gaps: 1}},
		{"a stopped holder goes on for too long", []hold{forged(1, 0, 8*s, as(lost)), forged(2, 1500*ms, 2*s)},
			[]fault{terminated(1200*ms, 1), {kind: "stop", begin: 1 * s, end: 7 * s, slots: []int{1}, stopped: true}}, want{gaps: 1, late: 1}},
		{"one fault stops a holder and ends its session", []hold{forged(1, 0, 7100*ms, as(lost)), forged(2, 1500*ms, 2*s)},
			[]fault{{kind: "both", begin: 1 * s, end: 7 * s, slots: []int{1}, backends: []int{101}, ended: true, stopped: true}}, want{gaps: 1}},
		{"another one was stopped", []hold{forged(1, 0, 7100*ms, as(lost)), forged(2, 1500*ms, 2*s)},
			[]fault{terminated(1200*ms, 1), {kind: "stop", begin: 1 * s, end: 7 * s, slots: []int{3}, stopped: true}}, want{gaps: 1, late: 1}},
		{"a slow network takes longer", []hold{forged(1, 0, 1900*ms, as(lost)), forged(2, 1100*ms, 2*s)},
			[]fault{terminated(1*s, 1), {kind: "slow", begin: 0, end: 8 * s, slots: []int{1}, delay: 100 * ms}}, want{gaps: 1}},

		{"a loss that was not told", []hold{forged(1, 0, 3*s)}, []fault{restart}, want{untold: 1}},
		{"a loss that was not told, and was used", []hold{forged(1, 0, 3*s), forged(2, 2*s, 4*s)}, []fault{restart}, want{untold: 1, overlaps: 1}},
		{"a loss that was told", []hold{forged(1, 0, 3*s, as(lost))}, []fault{restart}, want{}},
		{"a hold that began meanwhile", []hold{forged(1, 1500*ms, 3*s)}, []fault{restart}, want{}},
		{"a fault that ends no session", []hold{forged(1, 0, 3*s)}, []fault{{kind: "slow", begin: 1 * s, end: 2 * s}}, want{}},

		{"a loss of one that was passed on", []hold{forged(1, 900*ms, 1100*ms)}, []fault{terminated(1*s, 1)}, want{}},
		{"a rival of one that was passed on", []hold{forged(1, 900*ms, 1100*ms), forged(2, 1050*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{gaps: 1}},
		{"a rival of one that was passed on too late", []hold{forged(1, 900*ms, 1300*ms), forged(2, 1050*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{untold: 1, overlaps: 1}},
		{"a rival of one that was passed on, and too old", []hold{forged(1, 100*ms, 1100*ms), forged(2, 1050*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{untold: 1, overlaps: 1}},
		{"a rival before the loss of one that was passed on", []hold{forged(1, 900*ms, 1100*ms), forged(2, 950*ms, 2*s)}, []fault{terminated(1*s, 1)}, want{overlaps: 1}},
		{"a loss of one that was passed on in spite of all", []hold{forged(1, 900*ms, 1600*ms)}, []fault{terminated(1*s, 1)}, want{untold: 1}},
		{"a loss of one that was too old to be passed on", []hold{forged(1, 100*ms, 1100*ms)}, []fault{terminated(1*s, 1)}, want{untold: 1}},

		{"tokens grow", []hold{forged(1, 0, 1*s, token(5)), forged(2, 1*s, 2*s, token(6))}, nil, want{}},
		{"a token is repeated", []hold{forged(1, 0, 1*s, token(5)), forged(2, 1*s, 2*s, token(5))}, nil, want{tokens: 1}},
		{"a token falls", []hold{forged(1, 0, 1*s, token(7)), forged(2, 1*s, 2*s, token(5))}, nil, want{tokens: 1}},
		{"a token falls behind one without", []hold{forged(1, 0, 1*s, token(7)), forged(2, 1*s, 2*s), forged(3, 2*s, 3*s, token(6))}, nil, want{tokens: 1}},
		{"a shared token falls behind an exclusive one", []hold{forged(1, 0, 1*s, token(7)), forged(2, 1*s, 2*s, token(5), sharing)}, nil, want{tokens: 1}},
		{"an exclusive token falls behind a shared one", []hold{forged(1, 0, 1*s, token(7), sharing), forged(2, 1*s, 2*s, token(5))}, nil, want{tokens: 1}},
		{"a later shared hold may have the smaller token", []hold{forged(1, 0, 1*s, token(7), sharing), forged(2, 1*s, 2*s, token(5), sharing)}, nil, want{}},
		{"two shared holds may have their tokens in any order", []hold{forged(1, 0, 2*s, token(7), sharing), forged(2, 1*s, 3*s, token(6), sharing)}, nil, want{}},
		{"tokens of two keys", []hold{forged(1, 0, 1*s, token(7)), forged(2, 1*s, 2*s, token(5), of("other"))}, nil, want{}},
		{"a token of a grant that came late", []hold{forged(2, 1100*ms, 1150*ms, token(6)), forged(1, 1200*ms, 1300*ms, as(lost), asked(500*ms), token(5))}, []fault{terminated(1*s, 1)}, want{}},
		{"a token of a grant that came late, and was not told", []hold{forged(2, 1100*ms, 1150*ms, token(6)), forged(1, 1200*ms, 1300*ms, asked(500*ms), token(5))}, []fault{terminated(1*s, 1)}, want{tokens: 1}},
		{"a token of a session that ended later", []hold{forged(2, 1100*ms, 1150*ms, token(6)), forged(1, 1200*ms, 1600*ms, as(lost), asked(500*ms), token(5))}, []fault{terminated(1500*ms, 1)}, want{tokens: 1}},
		{"one token in a gap", []hold{forged(1, 0, 1200*ms, as(lost), token(5)), forged(2, 1100*ms, 2*s, token(5))}, []fault{terminated(1*s, 1)}, want{gaps: 1, tokens: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := check(c.holds, c.faults, r)
			got := want{len(v.overlaps), len(v.gaps), len(v.late()), len(v.untold), len(v.tokens)}
			if got != c.want {
				t.Errorf("found %+v, want %+v; %v", got, c.want, v)
			}
		})
	}
}

// TestConflictsAreThoseOfAComparisonOfAllPairs checks the sweep against the
// definition, on random histories.
func TestConflictsAreThoseOfAComparisonOfAllPairs(t *testing.T) {
	for seed := range uint64(300) {
		rng := random(seed)
		var holds []hold
		for i := range 40 {
			start := instant(rng.IntN(1000))
			holds = append(holds, forged(i, start, start+instant(1+rng.IntN(60)), func(h *hold) { h.shared = rng.IntN(2) == 0 }))
		}
		pairs := 0
		for i, a := range holds {
			for _, b := range holds[i+1:] {
				if a.start < b.end && b.start < a.end && !(a.shared && b.shared) {
					pairs++
				}
			}
		}
		if v := check(holds, nil, rules{}); len(v.overlaps) != pairs {
			t.Fatalf("seed %d: found %d conflicts of %d", seed, len(v.overlaps), pairs)
		}
	}
}

func TestStaleRowsAreThoseOutOfOrder(t *testing.T) {
	row := func(key, hold string, token uint64) write { return write{key: key, hold: hold, token: token} }
	for _, c := range []struct {
		name string
		rows []write
		want int
	}{
		{"none", nil, 0},
		{"in pieces", []write{row("k", "a", 0), row("k", "a", 0), row("k", "b", 0)}, 0},
		{"a holder comes back", []write{row("k", "a", 0), row("k", "b", 0), row("k", "a", 0)}, 1},
		{"the first of a hold comes late", []write{row("k", "a", 2), row("k", "b", 1)}, 1},
		{"two keys", []write{row("k", "a", 2), row("l", "b", 1), row("k", "a", 2)}, 0},
		{"both write on", []write{row("k", "a", 0), row("k", "b", 0), row("k", "a", 0), row("k", "b", 0)}, 2},
	} {
		if got := len(stale(c.rows)); got != c.want {
			t.Errorf("%s: found %d, want %d", c.name, got, c.want)
		}
	}
}
