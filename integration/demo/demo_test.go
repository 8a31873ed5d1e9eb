package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// story makes events that are a millisecond apart out of "anna running".
func story(lines ...string) (events []event) {
	for i, line := range lines {
		who, what, _ := strings.Cut(line, " ")
		events = append(events, event{at: noon.Add(time.Duration(i) * time.Millisecond), who: who, what: what})
	}
	return events
}

func TestTheHistoryFindsOverlappingRuns(t *testing.T) {
	for name, test := range map[string]struct {
		events   []event
		overlaps int
	}{
		"one after the other":        {story("anna running", "anna done", "ben running", "ben stopping", "cleo running", "cleo done"), 0},
		"side by side":               {story("anna running", "ben running", "anna done", "ben done"), 1},
		"before the kill":            {story("anna running", "ben running", "anna killed", "ben done"), 1},
		"after the kill":             {story("anna running", "anna killed", "ben running", "ben done"), 0},
		"the end of somebody else":   {story("anna running", "cleo done", "ben running"), 1},
		"after being told, not done": {story("anna running", "anna told", "ben running"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			if h := replay(test.events); len(h.overlaps) != test.overlaps {
				t.Errorf("found %v, want %d", h.overlaps, test.overlaps)
			}
		})
	}
}

func TestTheHistoryMeasuresHandovers(t *testing.T) {
	h := replay(story("anna running", "anna killed", "server seen", "ben running", "ben done", "cleo running"))
	want := []handover{
		{to: "ben", cause: "the kill -9 of anna", took: 2 * time.Millisecond},
		{to: "cleo", cause: "ben had finished", took: time.Millisecond},
	}
	if !slices.Equal(h.handovers, want) {
		t.Errorf("got %+v, want %+v", h.handovers, want)
	}
}

func TestTheWatcherNotesTwoHoldersAtOnce(t *testing.T) {
	tl := newTimeline(io.Discard)
	defer tl.close()
	w := &watcher{timeline: tl, seen: seen{holders: make(map[string]bool)}}
	w.take([]string{"anna"}, 1)
	if s := w.summary(); len(s.violations) != 0 || !w.holds("anna") || w.waiting() != 1 {
		t.Errorf("after one holder: %+v", s)
	}
	w.take([]string{"anna", "ben"}, 0)
	if s := w.summary(); len(s.violations) != 1 || s.looks != 2 || !s.holders["ben"] {
		t.Errorf("after two holders at once: %+v", s)
	}
	w.take(nil, 0)
	if !w.free() {
		t.Error("the lock is free, and is not seen to be")
	}
}

func TestTheTimelinePrintsInOrder(t *testing.T) {
	var out strings.Builder
	tl := newTimeline(&out)
	tl.add(event{at: tl.start.Add(2 * time.Millisecond), who: "ben", what: "running", text: "running"})
	tl.add(event{at: tl.start.Add(time.Millisecond), who: "anna", what: "done", text: "done"})
	tl.close()
	if want := "    0.001s  anna    done\n    0.002s  ben     running\n"; out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func TestALineOfAWorkerIsRead(t *testing.T) {
	e, err := parse("2026-01-01T12:00:00.5Z anna running: on process 7")
	want := event{at: noon.Add(500 * time.Millisecond), who: "anna", what: "running", text: "running: on process 7"}
	if err != nil || e != want {
		t.Errorf("got %+v and %v, want %+v", e, err, want)
	}
	if _, err := parse("panic: oh no"); err == nil {
		t.Error("a line without a time is taken for an event")
	}
}

func TestTheVerdictNamesWhatIsWrong(t *testing.T) {
	good := func() *demo {
		tl := newTimeline(io.Discard)
		for _, e := range story("ben skipped", "anna running", "anna killed", "dora running", "dora done", "gina running", "gina stopping", "finn running", "gina cancelled", "finn done") {
			tl.add(e)
		}
		tl.close()
		return &demo{
			timeline: tl,
			watcher:  &watcher{seen: seen{holders: map[string]bool{"anna": true, "dora": true, "gina": true, "finn": true}}},
			ends:     map[string]error{"ben": nil, "dora": nil, "finn": nil},
		}
	}
	if err := good().judge(); err != nil {
		t.Errorf("a good run: %v", err)
	}
	for name, spoil := range map[string]func(*demo){
		"seen in pg_locks":          func(d *demo) { d.watcher.seen.violations = []error{fmt.Errorf("two at once")} },
		"not seen in pg_locks":      func(d *demo) { delete(d.watcher.seen.holders, "gina") },
		"overlapping runs":          func(d *demo) { d.timeline.add(story("emil running")[0]) },
		"a worker that failed":      func(d *demo) { d.ends["dora"] = fmt.Errorf("exit status 1") },
		"a worker that was no end":  func(d *demo) { d.ends["gina"] = nil },
		"a worker that was silent":  func(d *demo) { d.ends["hugo"] = nil },
		"fewer handovers than told": func(d *demo) { d.timeline.events = d.timeline.events[:5] },
	} {
		t.Run(name, func(t *testing.T) {
			d := good()
			spoil(d)
			if err := d.judge(); err == nil {
				t.Error("the demo passes")
			}
		})
	}
}
