package chaos

import (
	"fmt"
	"slices"
	"time"
)

// instant is a reading of the machine's monotonic clock, the same in all its
// processes.
type instant = time.Duration

// outcome says how a hold ended.
type outcome string

const (
	released    outcome = "released"    // the server confirmed the unlock
	lost        outcome = "lost"        // the holder was told that it had lost the lock
	unconfirmed outcome = "unconfirmed" // the holder was told that the unlock is not certain
	killed      outcome = "killed"      // the process was
	open        outcome = "open"        // nothing was heard of it any more
)

// hold is one hold of one key, as its holder saw it.
type hold struct {
	proc, slot, worker int // the process, its place in the fleet, the goroutine
	number             int64
	driver             string
	key                string
	shared             bool
	backend            int     // the server process, 0 if not known
	token              uint64  // 0 if there is none
	asked              instant // when the lock was asked for
	start, end         instant // when the holder heard that it had it, and that it was over
	outcome            outcome
}

func (h hold) String() string {
	mode := "exclusive"
	if h.shared {
		mode = "shared"
	}
	return fmt.Sprintf("%s %s by process %d (slot %d, %s, worker %d, backend %d, token %#x) hold %d: %v to %v, %s",
		h.key, mode, h.proc, h.slot, h.driver, h.worker, h.backend, h.token, h.number, h.start, h.end, h.outcome)
}

// fault is something that was broken, from before until after.
type fault struct {
	kind       string
	begin, end instant
	slots      []int // whom it concerned; nil for everybody
	backends   []int // the sessions that it ended; nil for all of those slots
	// ended: the server's side of the sessions is over, so rivals may enter
	// before the holders are told.
	ended bool
	// stopped, cut: the processes did not run, the network did not carry.
	stopped, cut bool
	// delay is by how much the network was late, each way.
	delay time.Duration
}

func (f fault) String() string {
	return fmt.Sprintf("%v to %v: %s, slots %v, backends %v", f.begin, f.end, f.kind, f.slots, f.backends)
}

// concerns reports whether f reached the process of h.
func (f fault) concerns(h hold) bool {
	return f.slots == nil || slices.Contains(f.slots, h.slot)
}

// orphaned reports whether f ended the session of h behind the holder's back:
// under the hold, or while the grant was on its way. The holder must not have
// been told that all went well.
func (f fault) orphaned(h hold) bool {
	return f.severed(h) && f.end >= h.asked && f.begin <= h.end && h.outcome != released && h.outcome != open
}

// severed reports whether f ended the session of h.
func (f fault) severed(h hold) bool {
	return f.ended && f.concerns(h) && (f.backends == nil || slices.Contains(f.backends, h.backend))
}
