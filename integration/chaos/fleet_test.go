//go:build linux

package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// slot is a place for one worker process at a time, with its own network.
type slot struct {
	fleet   *fleet
	index   int
	driver  string
	bounced bool // goes through pgbouncer
	cables  []*cable

	// lasting is held by the one fault that goes on for a while here.
	lasting sync.Mutex

	// guarded by fleet.mu:
	member *member
}

// member is one worker process.
type member struct {
	slot    *slot
	number  int
	process *process
	stdin   io.WriteCloser
	stderr  bytes.Buffer

	// guarded by fleet.mu:
	open     map[int64]*hold
	starts   [goroutines]instant // of the latest hold of each goroutine
	killedAt instant             // 0 if it was not
	drained  bool
	gone     bool
	left     string
}

// fleet is all worker processes of a run and what they have told.
type fleet struct {
	library library
	seed    uint64

	mu      sync.Mutex
	news    sync.Cond // for every line, and every end
	slots   []*slot
	members []*member
	holds   []hold // that are over
	counts  map[string]*counts
	crashes []string // processes that ended by themselves

	wg sync.WaitGroup
}

// counts are what the workers on one driver have told.
type counts struct {
	acquired, contended, failed int
	written, refused, stale     int
	denied                      int            // releases that knew nothing of the loss that had been told
	reasons                     map[string]int // of failures
}

// newFleet makes the slots; launch fills them.
func newFleet(c *cluster, l library, seed uint64) (*fleet, error) {
	f := &fleet{library: l, seed: seed, counts: map[string]*counts{pq: {reasons: map[string]int{}}, pgx: {reasons: map[string]int{}}}}
	f.news.L = &f.mu
	for i := range 6 {
		s := &slot{fleet: f, index: i, driver: []string{pq, pgx}[i%2], bounced: i >= 4 && c.bouncer != nil}
		targets := []func() string{c.nodes[0].address, c.nodes[1].address}
		if s.bounced {
			targets = []func() string{c.bouncer.address}
		}
		for _, target := range targets {
			cable, err := newCable(target)
			if err != nil {
				return nil, err
			}
			s.cables = append(s.cables, cable)
		}
		f.slots = append(f.slots, s)
	}
	return f, nil
}

// name is what a process is called at the server.
func name(number int) string { return fmt.Sprintf("chaos-%d", number) }

// launch starts a process in the slot.
func (s *slot) launch(c *cluster) error {
	f := s.fleet
	f.mu.Lock()
	m := &member{slot: s, number: len(f.members), open: make(map[int64]*hold)}
	f.members = append(f.members, m)
	f.mu.Unlock()

	var addresses []string
	for _, cable := range s.cables {
		addresses = append(addresses, cable.address())
	}
	dsn := c.dsn(name(m.number), addresses...)
	encoded, err := json.Marshal(order{Library: f.library.name, Driver: s.driver, DSN: dsn, Proc: m.number, Seed: f.seed})
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), orderVariable+"="+string(encoded))
	cmd.Stderr = &m.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	// Not cmd.StdoutPipe: Wait closes that, whether or not all was read.
	stdout, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout = theirs
	m.stdin = stdin
	m.process, err = start(cmd, syscall.SIGKILL)
	theirs.Close()
	if err != nil {
		stdout.Close()
		return err
	}
	f.mu.Lock()
	s.member = m
	f.mu.Unlock()
	f.wg.Go(func() {
		defer stdout.Close()
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var l line
			if err := json.Unmarshal(lines.Bytes(), &l); err == nil {
				f.hear(m, l)
			}
		}
		<-m.process.ended
		f.bury(m)
	})
	return nil
}

// hear takes in one line.
func (f *fleet) hear(m *member, l line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.news.Broadcast()
	c := f.counts[m.slot.driver]
	h := m.open[l.Hold]
	switch l.What {
	case isHeld:
		c.acquired++
		m.starts[l.Worker] = l.At
		m.open[l.Hold] = &hold{
			proc: m.number, slot: m.slot.index, worker: l.Worker, number: l.Hold, driver: m.slot.driver,
			key: l.Key, shared: l.Shared, backend: l.Backend, token: l.Token, asked: l.Asked, start: l.At,
		}
	case isEnding:
		h.end = l.At
	case isLost:
		h.end, h.outcome = l.At, lost
	case isOver:
		if h.outcome != lost {
			h.outcome = outcome(l.Text)
		} else if outcome(l.Text) == released {
			c.denied++
		}
		f.holds = append(f.holds, *h)
		delete(m.open, l.Hold)
	case isWritten:
		c.written++
	case isRefused:
		c.refused++
	case isStale:
		c.stale++
	case isContended:
		c.contended++
	case isFailed:
		c.failed++
		c.reasons[l.Text]++
	case isDrained:
		m.drained = true
	case isGone:
		m.gone, m.left = true, l.Text
	}
}

// bury settles the holds of a process that has ended.
func (f *fleet) bury(m *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer f.news.Broadcast()
	m.stdin.Close()
	if m.killedAt == 0 && !m.gone {
		f.crashes = append(f.crashes, fmt.Sprintf("process %d: %v: %s", m.number, m.process.err, m.stderr.Bytes()))
	}
	for _, h := range m.open {
		switch {
		case h.outcome == lost:
		case m.killedAt == 0:
			h.outcome = open
		default:
			h.outcome = killed
		}
		if h.end == 0 || h.outcome == killed && h.end > m.killedAt {
			h.end = max(m.killedAt, h.start)
		}
		f.holds = append(f.holds, *h)
	}
	m.open = nil
}

// kill kills the process of the slot, at the time that it returns.
func (s *slot) kill() (instant, error) {
	s.fleet.mu.Lock()
	m := s.member
	at := now()
	m.killedAt = at
	s.fleet.mu.Unlock()
	return at, m.process.end(syscall.SIGKILL)
}

// current returns the process of the slot.
func (s *slot) current() *member {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	return s.member
}

// backends are the server processes that hold locks of the slot's process now.
func (s *slot) backends() (pids []int) {
	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	for _, h := range s.member.open {
		if h.backend != 0 && h.outcome == "" && h.end == 0 {
			pids = append(pids, h.backend)
		}
	}
	slices.Sort(pids)
	return pids
}

// slotOf returns the slot of a process by its name at the server; -1 if it is
// not one of ours.
func (f *fleet) slotOf(app string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var number int
	if _, err := fmt.Sscanf(app, "chaos-%d", &number); err != nil || number >= len(f.members) {
		return -1
	}
	return f.members[number].slot.index
}

// await waits until it is so for every process that is alive, and returns those
// for which it is not.
func (f *fleet) await(limit time.Duration, so func(m *member) bool) (not []*member) {
	ctx, cancel := context.WithTimeout(bg, limit)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.news.Broadcast()
	})()
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		not = nil
		for _, s := range f.slots {
			if !so(s.member) {
				not = append(not, s.member)
			}
		}
		if len(not) == 0 || ctx.Err() != nil {
			return not
		}
		f.news.Wait()
	}
}

// tell gives every process an order.
func (f *fleet) tell(what string) {
	for _, s := range f.slots {
		// One that has died does not hear it, and is missed elsewhere.
		_, _ = io.WriteString(s.current().stdin, what+"\n")
	}
}

// close kills what still lives and waits until all was heard.
func (f *fleet) close() {
	for _, s := range f.slots {
		if m := s.current(); m != nil {
			m.process.end(syscall.SIGKILL)
		}
		for _, c := range s.cables {
			c.close()
		}
	}
	f.wg.Wait()
}

// ours says which driver's processes left what was found at the server.
func (f *fleet) ours(found []string, what string) []string {
	for i, text := range found {
		driver := "nobody's"
		if slot := f.slotOf(text); slot >= 0 {
			driver = f.slots[slot].driver
		}
		found[i] = fmt.Sprintf("%s (%s): %s", what, driver, text)
	}
	return found
}
