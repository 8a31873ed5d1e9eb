package main

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// settling is how much later than it happened an event is printed, so that
// what is heard of late still stands in its place.
const settling = 100 * time.Millisecond

// event is something that happened to a worker, or at the server.
type event struct {
	at   time.Time
	who  string // a worker, "server", or "" for the heading of a chapter
	what string // the kind of event: "running", "done", …
	text string // all of it, for people
}

// timeline collects events, and prints them in the order of their times.
type timeline struct {
	out     io.Writer
	start   time.Time
	closing chan struct{}
	closed  chan struct{}

	mu      sync.Mutex
	events  []event
	changed chan struct{} // closed, and replaced, when something happens
}

func newTimeline(out io.Writer) *timeline {
	// Workers report the time of the wall clock, so that is what counts here.
	t := &timeline{
		out: out, start: time.Now().Round(0),
		closing: make(chan struct{}), closed: make(chan struct{}), changed: make(chan struct{}),
	}
	go t.print()
	return t
}

// add takes in an event.
func (t *timeline) add(e event) {
	e.at = e.at.Round(0)
	t.mu.Lock()
	t.events = append(t.events, e)
	t.mu.Unlock()
	t.touch()
}

// chapter starts a new part of the story.
func (t *timeline) chapter(title string) {
	t.add(event{at: time.Now(), what: "chapter", text: title})
}

// touch wakes whoever waits for news.
func (t *timeline) touch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
}

// news is closed when something happens from now on.
func (t *timeline) news() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// sorted returns all events in the order of their times.
func (t *timeline) sorted() []event {
	t.mu.Lock()
	defer t.mu.Unlock()
	events := slices.Clone(t.events)
	slices.SortStableFunc(events, func(a, b event) int { return a.at.Compare(b.at) })
	return events
}

// close prints what is left.
func (t *timeline) close() {
	close(t.closing)
	<-t.closed
}

// print prints events as soon as they have settled.
func (t *timeline) print() {
	defer close(t.closed)
	h := newHistory()
	tick := time.NewTicker(settling / 4)
	defer tick.Stop()
	printed := 0
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-t.closing:
			last = true
		}
		events := t.sorted()
		// An event that comes later than settling is printed late; the final
		// check replays all of them in order.
		for ; printed < len(events) && (last || time.Since(events[printed].at) > settling); printed++ {
			e := events[printed]
			if e.what == "chapter" {
				fmt.Fprintf(t.out, "\n%s\n", e.text)
				continue
			}
			fmt.Fprintf(t.out, "  %7.3fs  %-6s  %s%s\n", e.at.Sub(t.start).Seconds(), e.who, e.text, h.take(e))
		}
	}
}

// history is what follows from the events so far, taken in their order.
type history struct {
	holder    string // who runs the job; "" for nobody
	freed     event  // the end of the run before
	holders   []string
	handovers []handover
	overlaps  []error
	last      map[string]string // the last event of each worker
}

// handover is a change of the holder.
type handover struct {
	to, cause string
	took      time.Duration
}

func newHistory() *history { return &history{last: make(map[string]string)} }

// replay makes the history of events.
func replay(events []event) *history {
	h := newHistory()
	for _, e := range events {
		h.take(e)
	}
	return h
}

// take goes on with the next event, and returns a note on it.
//
// A run begins and ends while the lock is held, so two runs may not overlap. A
// worker that was killed ran until then.
func (h *history) take(e event) (note string) {
	h.last[e.who] = e.what
	switch e.what {
	case "running":
		if h.holder != "" {
			h.overlaps = append(h.overlaps, fmt.Errorf("%s began to run the job while %s was running it", e.who, h.holder))
			note = "  !!! while " + h.holder + " is running it"
		}
		if h.freed.who != "" {
			causes := map[string]string{
				"done":     h.freed.who + " had finished",
				"stopping": h.freed.who + " was told to stop",
				"killed":   "the kill -9 of " + h.freed.who,
			}
			took := e.at.Sub(h.freed.at)
			h.handovers = append(h.handovers, handover{to: e.who, cause: causes[h.freed.what], took: took})
			note += fmt.Sprintf("  <- %v after %s", took.Round(10*time.Microsecond), causes[h.freed.what])
		}
		h.holder = e.who
		h.holders = append(h.holders, e.who)
	case "done", "stopping", "killed":
		if h.holder == e.who {
			h.holder, h.freed = "", e
		}
	}
	return note
}
