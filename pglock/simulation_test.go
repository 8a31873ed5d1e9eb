package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

const (
	// simulations is how many seeds a run tries, and simulationTime the real
	// time after which it stops sooner, on a machine that is slow or has the
	// race detector on.
	simulations    = 3000
	simulationTime = 8 * time.Second

	// lastSim is far beyond the end of any simulation that makes progress.
	lastSim = time.Hour
)

// TestSimulation runs managers against a server that fails them in every way
// that it can, in virtual time; see simulation.
//
//	SIM_SEED=17 go test ./pglock -run TestSimulation -count 100   # seed 17, again and again
//	SIM_SEEDS=1000000 go test ./pglock -run TestSimulation -timeout 0
//
// A seed decides what the callers and the faults do, and when. What happens at
// one instant of virtual time, and the jitter of a manager's pauses, remain the
// runtime's: a failure may need some runs of its seed to come again.
func TestSimulation(t *testing.T) {
	first, count, budget := uint64(1), uint64(simulations), simulationTime
	if s := os.Getenv("SIM_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		count, budget = n, 1<<62
	}
	if s := os.Getenv("SIM_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first = n
		if os.Getenv("SIM_SEEDS") == "" {
			count = 1
		}
	}
	start, workers := time.Now(), uint64(runtime.GOMAXPROCS(0))
	for worker := range workers {
		t.Run(fmt.Sprint("worker", worker), func(t *testing.T) {
			t.Parallel()
			ran := 0
			var sum simStats
			for seed := first + worker; seed < first+count && time.Since(start) < budget && !t.Failed(); seed += workers {
				sum.add(simulate(t, seed))
				ran++
			}
			t.Logf("%d simulations: %+v", ran, sum)
		})
	}
}

// simStats counts what has happened in simulations, to see that they exercise
// what they are meant to.
type simStats struct {
	Holds, Sets, Refused, TimedOut, Failed int
	Kills, Drops, Hangs, Errors, LostAns   int
	Lost, Overtaken, Unconfirmed           int
}

func (a *simStats) add(b simStats) {
	a.Holds += b.Holds
	a.Sets += b.Sets
	a.Refused += b.Refused
	a.TimedOut += b.TimedOut
	a.Failed += b.Failed
	a.Kills += b.Kills
	a.Drops += b.Drops
	a.Hangs += b.Hangs
	a.Errors += b.Errors
	a.LostAns += b.LostAns
	a.Lost += b.Lost
	a.Overtaken += b.Overtaken
	a.Unconfirmed += b.Unconfirmed
}

// simulate runs one seed in a bubble.
func simulate(t *testing.T, seed uint64) (stats simStats) {
	again := fmt.Sprintf("to repeat it: SIM_SEED=%d go test ./pglock -run 'TestSimulation$' -count 100 -failfast", seed)
	defer func() {
		if r := recover(); r != nil {
			panic(fmt.Sprintf("%v\n%s", r, again))
		}
	}()
	failed := t.Failed()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, seed)
		sim.run()
		stats = sim.stats
		if t.Failed() && !failed {
			sim.mu.Lock()
			defer sim.mu.Unlock()
			for _, e := range sim.events {
				t.Logf("%12v  "+e.format, append([]any{e.at}, e.args...)...)
			}
			t.Log(again)
		}
	})
	return stats
}

var (
	errSimBefore = errors.New("sim: the command was not sent")
	errSimAfter  = errors.New("sim: the answer was lost")
	errSimOpen   = errors.New("sim: no connection")
)

// simulation is one seeded run: some managers on one server, their callers, and
// faults for a while. All of it is checked as it goes:
//
//   - The server never has two holders of an ID that exclude each other.
//   - Nor are there two callers whose holds are open, save for a hold that the
//     server has ended, for as long as it may take to tell its owner.
//   - Every call returns within its bound, and with one of its errors.
//   - Every loss is told: by Done within its bound, by Err, and by Release.
//   - Of two holds of one ID the later has the greater token.
//   - When the faults have ended, every key can be had; when the managers are
//     closed, no session is in use, no lock is at the server, and no goroutine
//     is left.
type simulation struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand // of the set-up; everyone else has one of their own
	server *memlock.Server
	start  time.Time
	nodes  []*simNode
	storm  float64 // how often things fail
	slow   time.Duration
	tasks  sync.WaitGroup

	mu       sync.Mutex
	calm     bool // the faults are over
	commands map[int]int
	running  map[int]int // commands under way, by PID
	trouble  map[int]int // commands that failed, hung or were slow, by PID
	killed   map[int]time.Time
	dropped  map[int]bool
	holds    []*simHold
	tokens   map[int64]simTokens
	events   []simEvent
	stats    simStats
}

// simNode is a manager with its pool.
type simNode struct {
	sim      *simulation
	name     string
	pool     *memlock.Pool
	m        *pglock.Manager
	window   time.Duration
	blind    bool
	warm     bool
	verifies bool
	limit    int
	shared   bool // has its holds on shared sessions
	closed   bool // guarded by simulation.mu
}

// simHold is one lock in the hands of a caller.
type simHold struct {
	node    *simNode
	lock    ports.Lock
	info    ports.LockInfo
	atLeast time.Duration
	// guarded by simulation.mu:
	vanished time.Time // when the server's side of it ended under the open hold
	others   bool      // somebody else may be the one that releases it
}

// simTokens are the greatest tokens of one ID.
type simTokens struct{ exclusive, any ports.Token }

type simEvent struct {
	at     time.Duration
	format string
	args   []any
}

// simPool is a pool whose opening may fail, too.
type simPool struct {
	*memlock.Pool
	node *simNode
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	sim := &simulation{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), server: memlock.NewServer(), start: time.Now(),
		commands: make(map[int]int), running: make(map[int]int), trouble: make(map[int]int),
		killed: make(map[int]time.Time), dropped: make(map[int]bool), tokens: make(map[int64]simTokens),
	}
	r := sim.rng
	sim.storm = []float64{0, 0.3, 1, 3}[r.IntN(4)]
	sim.slow = []time.Duration{time.Microsecond, 5 * time.Millisecond, 100 * time.Millisecond}[r.IntN(3)]
	sim.server.Intercept(sim.intercept)
	for i := range 2 + r.IntN(2) {
		n := &simNode{
			sim: sim, name: string(rune('A' + i)),
			window:   pglock.MinLivenessWindow + time.Duration(r.IntN(3))*5*time.Second,
			blind:    r.IntN(2) == 0,
			verifies: r.IntN(2) == 0,
			limit:    []int{0, 0, 1, 2, 3, 5}[r.IntN(6)],
		}
		poolOpts := []memlock.PoolOption{memlock.WithLimit(n.limit)}
		if n.blind {
			poolOpts = append(poolOpts, memlock.WithoutWatch())
		}
		n.pool = sim.server.Pool(poolOpts...)
		opts := []pglock.Option{pglock.WithKeyFunc(simID), pglock.WithLivenessWindow(n.window), pglock.WithHolderID(n.name)}
		if !n.verifies {
			opts = append(opts, pglock.WithoutVerification())
		}
		if n.limit == 1 || r.IntN(4) == 0 {
			opts = append(opts, pglock.WithMaxSessions(1+r.IntN(3)))
		}
		if n.shared = r.IntN(2) == 0; n.shared {
			opts = append(opts, pglock.WithSharedSessions(1+r.IntN(3)))
		}
		n.m = pglock.NewManager(simPool{n.pool, n}, opts...)
		if n.warm = r.IntN(2) == 0; n.warm {
			pglock.KeepWarm(n.m, 0, time.Duration(r.IntN(5000))*time.Millisecond)
		}
		sim.nodes = append(sim.nodes, n)
	}
	return sim
}

// simKeys are few, so that everybody is in everybody's way; some have one ID.
var simKeys = []string{"a", "b", "c", "d", "e", "f"}

func simID(key string) int64 { return int64(key[0]-'a') % 4 }

func (sim *simulation) since() time.Duration { return time.Since(sim.start) }

// logf notes what happens, for a run that fails. The caller holds sim.mu.
func (sim *simulation) logf(format string, args ...any) {
	sim.events = append(sim.events, simEvent{sim.since(), format, args})
}

func (sim *simulation) note(format string, args ...any) {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.logf(format, args...)
}

// failf fails the test, and has it in the list of events. The caller holds
// sim.mu.
func (sim *simulation) failf(format string, args ...any) {
	sim.t.Helper()
	sim.logf("FAULT: "+format, args...)
	sim.t.Errorf("seed %d at %v: "+format, append([]any{sim.seed, sim.since()}, args...)...)
}

func (sim *simulation) fail(format string, args ...any) {
	sim.t.Helper()
	sim.mu.Lock()
	defer sim.mu.Unlock()
	sim.failf(format, args...)
}

// run is a simulation from the first call to the last check.
func (sim *simulation) run() {
	callers := 3 + sim.rng.IntN(6)
	for i := range callers {
		n := sim.nodes[i%len(sim.nodes)]
		c := &simCaller{node: n, rng: rand.New(rand.NewPCG(sim.seed, 1+uint64(i))), name: fmt.Sprint(n.name, i)}
		sim.tasks.Go(c.run)
	}
	sim.tasks.Go(sim.terrorise)
	for _, n := range sim.nodes {
		if n.limit > 1 && sim.rng.IntN(2) == 0 {
			sim.tasks.Go(n.query)
		}
	}
	sim.await("the callers", &sim.tasks)

	sim.mu.Lock()
	sim.calm = true
	sim.logf("calm")
	sim.mu.Unlock()
	time.Sleep(pglock.DefaultLivenessWindow) // by then, what hangs was given up
	sim.recover()
	sim.closeAll()
	sim.bothSides()
}

// await waits for tasks. If they never end, nothing that could be done here
// would end them, so the program ends.
func (sim *simulation) await(what string, tasks *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { tasks.Wait(); close(done) }()
	limit := time.NewTimer(lastSim)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
		sim.mu.Lock()
		for _, e := range sim.events {
			fmt.Fprintf(os.Stderr, "%12v  "+e.format+"\n", append([]any{e.at}, e.args...)...)
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		panic(fmt.Sprintf("seed %d: %s never end\n%s", sim.seed, what, stacks))
	}
}

// chance reports true in p of 1000 cases, more in a storm, none in the calm.
func (sim *simulation) chance(r *rand.Rand, p float64) bool {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	return !sim.calm && r.Float64()*1000 < p*sim.storm
}

// intercept is what happens to one command on its way. It depends on the seed,
// on the session, and on how many commands that has had.
func (sim *simulation) intercept(ctx context.Context, c memlock.Command) error {
	sim.mu.Lock()
	if !c.Done {
		sim.commands[c.PID]++
		sim.running[c.PID]++
	}
	nth := uint64(sim.commands[c.PID])*2 + map[bool]uint64{true: 1}[c.Done]
	sim.mu.Unlock()
	r := rand.New(rand.NewPCG(sim.seed, uint64(c.PID)<<32|nth))
	for id := range int64(4) {
		sim.checkServer(id)
	}

	err := sim.happen(ctx, r, c)
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if err != nil {
		sim.trouble[c.PID]++
		sim.logf("%d: %s of %d fails (done: %v): %v", c.PID, c.Op, c.ID, c.Done, err)
	}
	if c.Done || err != nil {
		sim.running[c.PID]--
	}
	return err
}

// happen delays the command, and may have it fail or hang.
func (sim *simulation) happen(ctx context.Context, r *rand.Rand, c memlock.Command) error {
	delay := 1 + below(r, sim.slow)
	if sim.chance(r, 40) {
		delay += below(r, 2*time.Second)
		sim.mu.Lock()
		sim.trouble[c.PID]++
		sim.mu.Unlock()
	}
	if sim.chance(r, 10) {
		sim.mu.Lock()
		sim.stats.Hangs++
		sim.trouble[c.PID]++
		sim.logf("%d: %s of %d hangs (done: %v)", c.PID, c.Op, c.ID, c.Done)
		sim.mu.Unlock()
		<-ctx.Done()
		return fmt.Errorf("%w: %w", ports.ErrSessionEnded, ctx.Err())
	}
	if !pause(ctx, delay) {
		return fmt.Errorf("%w: %w", ports.ErrSessionEnded, ctx.Err())
	}
	if sim.chance(r, 20) {
		sim.mu.Lock()
		defer sim.mu.Unlock()
		if c.Done {
			sim.stats.LostAns++
			return errSimAfter
		}
		sim.stats.Errors++
		return errSimBefore
	}
	return nil
}

// pause sleeps for d, or until ctx ends; then it returns false.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Open implements ports.SessionPool.
func (p simPool) Open(ctx context.Context) (ports.Session, error) {
	sim := p.node.sim
	sim.mu.Lock()
	sim.commands[0]++
	r := rand.New(rand.NewPCG(sim.seed, 1<<63|uint64(sim.commands[0])))
	sim.mu.Unlock()
	if sim.chance(r, 5) {
		sim.note("%s: the opening of a session hangs", p.node.name)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if !pause(ctx, 1+below(r, sim.slow)) {
		return nil, ctx.Err()
	}
	if sim.chance(r, 10) {
		return nil, errSimOpen
	}
	return p.Pool.Open(ctx)
}

// query is the rest of the program, which uses the pool as well.
func (n *simNode) query() {
	sim, r := n.sim, rand.New(rand.NewPCG(n.sim.seed, 500+uint64(n.name[0])))
	for range 1 + r.IntN(5) {
		time.Sleep(1 + below(r, 5*time.Second))
		var sessions []ports.Session
		for range 1 + r.IntN(n.limit) {
			ctx, cancel := context.WithTimeout(bg, below(r, time.Second))
			if s, err := n.pool.Open(ctx); err == nil {
				sessions = append(sessions, s)
			}
			cancel()
		}
		sim.note("%s: %d sessions are in use for queries", n.name, len(sessions))
		time.Sleep(1 + below(r, 3*time.Second))
		for _, s := range sessions {
			s.Recycle(bg)
		}
	}
}

// terrorise ends sessions and takes locks away.
func (sim *simulation) terrorise() {
	r := rand.New(rand.NewPCG(sim.seed, 1000))
	if sim.storm == 0 {
		return
	}
	for range 1 + r.IntN(20) {
		time.Sleep(1 + below(r, 4*time.Second))
		sim.mu.Lock()
		var pids []int
		for pid := range sim.commands {
			if pid > 0 && sim.killed[pid].IsZero() {
				pids = append(pids, pid)
			}
		}
		if len(pids) == 0 {
			sim.mu.Unlock()
			continue
		}
		slices.Sort(pids)
		pid := pids[r.IntN(len(pids))]
		if open := sim.open(); len(open) > 0 && r.IntN(3) > 0 {
			pid = open[r.IntN(len(open))].info.PID
		}
		if r.IntN(4) > 0 {
			sim.stats.Kills++
			sim.killed[pid] = time.Now()
			sim.logf("session %d is killed", pid)
			sim.vanish(func(h *simHold) bool { return h.info.PID == pid })
			sim.server.Kill(pid)
		} else {
			sim.stats.Drops++
			sim.dropped[pid] = true
			sim.logf("session %d has its locks taken away", pid)
			sim.vanish(func(h *simHold) bool { return h.info.PID == pid })
			sim.server.DropLocks(pid)
		}
		sim.mu.Unlock()
	}
}

// isOpen reports whether the owner of a hold is to believe in it.
func isOpen(lock ports.Lock) bool {
	select {
	case <-lock.Done():
		return false
	default:
		return true
	}
}

// open returns the open holds. The caller holds sim.mu.
func (sim *simulation) open() (open []*simHold) {
	sim.holds = slices.DeleteFunc(sim.holds, func(h *simHold) bool { return !isOpen(h.lock) })
	return slices.Clone(sim.holds)
}

// vanish notes which open holds are about to end, or were found to have ended,
// at the server, and sees to it that their owners are told in time. The caller
// holds sim.mu.
func (sim *simulation) vanish(which func(*simHold) bool) {
	for _, h := range sim.open() {
		if which(h) && h.vanished.IsZero() {
			h.vanished = time.Now()
			sim.stats.Lost++
			trouble := sim.trouble[h.info.PID] - sim.running[h.info.PID]
			bound := h.node.lossBound(h.info.PID)
			sim.tasks.Go(func() { sim.awaitLoss(h, bound, trouble) })
		}
	}
}

// lossBound is how long the owner of a hold may be left in its belief after
// the server has ended the hold. The caller holds sim.mu.
func (n *simNode) lossBound(pid int) time.Duration {
	switch {
	case n.sim.killed[pid].IsZero():
		// Its locks were dropped: only a look at the locks can tell.
		return n.window
	case n.blind || n.sim.running[pid] > 0:
		return 3*n.window/5 + 1
	case n.warm:
		return 10*time.Millisecond + 1 // a hold has no keeper at first
	default:
		return 1 // the next tick of the virtual clock
	}
}

// awaitLoss fails the test if a loss is not told in time. A check that would
// find that locks were dropped may itself fail or be slow; for each that does
// there is some more time.
func (sim *simulation) awaitLoss(h *simHold, bound time.Duration, trouble int) {
	for {
		timer := time.NewTimer(bound)
		defer timer.Stop()
		select {
		case <-h.lock.Done():
			return
		case <-timer.C:
		}
		sim.mu.Lock()
		more := sim.trouble[h.info.PID] - trouble
		trouble += more
		killed := sim.killed[h.info.PID]
		switch {
		case killed.After(h.vanished): // after its locks were dropped
			bound = 3*h.node.window/5 - time.Since(killed)
		case killed.IsZero():
			bound = time.Duration(more) * 3 * h.node.window / 5
		default:
			bound = 0
		}
		late := bound <= 0 && isOpen(h.lock)
		if late {
			sim.failf("%s has not been told for %v that the server has ended its hold of %q (session %d)", h.node.name, time.Since(h.vanished), h.info.Key, h.info.PID)
		}
		sim.mu.Unlock()
		if late || !isOpen(h.lock) {
			return
		}
	}
}

// checkServer fails the test if the server has holders of id that exclude each
// other.
func (sim *simulation) checkServer(id int64) {
	holders := sim.server.Holders(id)
	for i, a := range holders {
		for _, b := range holders[i+1:] {
			if a.PID != b.PID && (a.Mode == ports.Exclusive || b.Mode == ports.Exclusive) {
				sim.fail("the server has both %+v and %+v of %d", a, b, id)
			}
		}
	}
}

// bothSides checks that nothing is left.
func (sim *simulation) bothSides() {
	for _, n := range sim.nodes {
		if inUse, _ := n.pool.Usage(); inUse != 0 {
			sim.fail("%s has %d sessions in use after all", n.name, inUse)
		}
		if s := n.m.Stats(); s.Held != 0 || s.Waiting != 0 || s.Sessions != 0 {
			sim.fail("%s is closed, and has %+v", n.name, s)
		}
	}
	if locks := sim.server.Locks(); locks != 0 {
		sim.fail("%d locks are left at the server", locks)
	}
	for id := range int64(4) {
		if n := sim.server.Waiters(id); n != 0 {
			sim.fail("%d waiters are left at the server", n)
		}
	}
}

// recover checks that every manager goes on working after the faults, and that
// callers who want several keys and few sessions do not block each other.
func (sim *simulation) recover() {
	var tasks sync.WaitGroup
	for i, n := range sim.nodes {
		if n.isClosed() {
			continue
		}
		// What was not released so far may end with an error.
		n.others(func(*simHold) bool { return true })
		_, _ = n.m.ReleaseAll(bg)
		for j := range 3 {
			r := rand.New(rand.NewPCG(sim.seed, uint64(2000+10*i+j)))
			tasks.Go(func() {
				keys := slices.Clone(simKeys)
				r.Shuffle(len(keys), func(a, b int) { keys[a], keys[b] = keys[b], keys[a] })
				if j > 0 {
					keys = keys[:1+r.IntN(len(keys))]
				}
				time.Sleep(below(r, time.Second))
				start := time.Now()
				set, err := n.m.AcquireAll(bg, keys, ports.WithTimeout(lastSim/2))
				if err != nil {
					sim.fail("%s cannot have %q although the faults are over, after %v: %v", n.name, keys, time.Since(start), err)
					return
				}
				time.Sleep(below(r, time.Second))
				if err := set.Release(bg); err != nil {
					sim.fail("%s cannot release %q although the faults are over: %v", n.name, keys, err)
				}
			})
		}
	}
	sim.await("the acquisitions after the faults", &tasks)
}

// closeAll closes the managers.
func (sim *simulation) closeAll() {
	var tasks sync.WaitGroup
	for _, n := range sim.nodes {
		tasks.Go(func() {
			if err := n.close(bg); err != nil {
				sim.fail("%s does not close cleanly: %v", n.name, err)
			}
		})
	}
	sim.await("closes", &tasks)
}

func (n *simNode) isClosed() bool {
	n.sim.mu.Lock()
	defer n.sim.mu.Unlock()
	return n.closed
}

// close closes the manager, within its bound.
func (n *simNode) close(ctx context.Context) error {
	n.sim.mu.Lock()
	n.closed = true
	n.sim.logf("%s closes", n.name)
	n.sim.mu.Unlock()
	n.others(func(*simHold) bool { return true })
	return n.within(n.window/3, "close", func() error { return n.m.Close(ctx) })
}

// others notes holds that somebody else releases than their callers.
func (n *simNode) others(which func(*simHold) bool) {
	n.sim.mu.Lock()
	defer n.sim.mu.Unlock()
	open := n.sim.open()
	for _, h := range open {
		if h.node == n && which(h) {
			for _, part := range open {
				part.others = part.others || part.lock == h.lock
			}
		}
	}
}

// within runs a call that has to return within bound.
func (n *simNode) within(bound time.Duration, what string, call func() error) error {
	start := time.Now()
	err := call()
	n.sim.mu.Lock()
	defer n.sim.mu.Unlock()
	took := time.Since(start)
	n.sim.logf("%s: %s took %v: %v", n.name, what, took, err)
	if took > bound {
		n.sim.failf("%s: %s took %v, its bound is %v: %v", n.name, what, took, bound, err)
	}
	return err
}

// simCaller is a goroutine that takes locks and gives them back.
type simCaller struct {
	node *simNode
	rng  *rand.Rand
	name string
}

func (c *simCaller) run() {
	n, r, sim := c.node, c.rng, c.node.sim
	for range 1 + r.IntN(6) {
		time.Sleep(1 + below(r, 2*time.Second))
		switch p := r.IntN(100); {
		case p < 2:
			if err := n.close(bg); err != nil && !sim.expected(err) {
				sim.fail("%s: close: %v", c.name, err)
			}
		case p < 5:
			n.others(func(*simHold) bool { return true })
			_ = n.within(n.window/3, c.name+" ReleaseAll", func() error {
				_, err := n.m.ReleaseAll(bg)
				return err
			})
		case p < 7:
			key := simKeys[r.IntN(len(simKeys))]
			n.others(func(h *simHold) bool { return h.info.Key == key })
			_ = n.within(n.window/3, c.name+" Release "+key, func() error { return n.m.Release(bg, key) })
		default:
			c.work()
		}
	}
}

// work takes one lock or several, holds them for a while and gives them back.
func (c *simCaller) work() {
	n, r, sim := c.node, c.rng, c.node.sim
	var opts []ports.AcquireOption
	var atLeast time.Duration
	fencing, shared := r.IntN(5) < 2, r.IntN(3) == 0
	if fencing {
		opts = append(opts, ports.WithFencing())
	}
	if shared {
		opts = append(opts, ports.WithShared())
	}
	polling := time.Duration(0)
	if r.IntN(6) == 0 {
		polling = 1 + below(r, 2*time.Second)
		opts = append(opts, ports.WithPolling(polling))
	}
	if r.IntN(8) == 0 {
		atLeast = below(r, 5*time.Second)
		opts = append(opts, ports.WithHoldAtLeast(atLeast))
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()

	// A call that is given time has to return grace after its end.
	const grace = 250*time.Millisecond + 2
	patience := 1 + below(r, 8*time.Second)
	bound := patience + grace
	if n.warm {
		bound += c.node.sim.slow // its own command may have to come back first
	}
	switch r.IntN(3) {
	case 0:
		opts = append(opts, ports.WithTimeout(patience))
	case 1:
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, patience)
		defer stop()
	case 2:
		// One that is cancelled has to return at once, unless it asks by itself.
		if !n.warm {
			bound = patience + 1
		}
		defer time.AfterFunc(patience, cancel).Stop()
	}

	key := simKeys[r.IntN(len(simKeys))]
	var lock ports.Lock
	var infos []ports.LockInfo
	var err error
	what := ""
	switch p := r.IntN(10); {
	case p < 2: // a try
		what = fmt.Sprintf("%s tries %s", c.name, key)
		tryCtx := ctx
		if r.IntN(2) == 0 {
			// Nothing but the manager bounds this one: the wait for a session,
			// the proof, a first session that is dead, and a server that does
			// not answer.
			what += " without a bound"
			tryCtx, bound = bg, 4*n.window
			opts = slices.DeleteFunc(opts, func(o ports.AcquireOption) bool {
				return ports.NewAcquireOptions(o).Timeout >= 0
			})
		}
		ok := false
		err = n.within(bound, what, func() (err error) {
			lock, ok, err = n.m.TryAcquire(tryCtx, key, opts...)
			return err
		})
		if ok != (lock != nil) || ok && err != nil || err != nil && errors.Is(err, ports.ErrNotAcquired) {
			sim.fail("%s: a try says %v, %v, %v", c.name, lock, ok, err)
		}
		if err == nil && !ok {
			sim.mu.Lock()
			sim.stats.Refused++
			sim.mu.Unlock()
			return
		}
	case p < 5: // a set
		var keys []string
		for range 1 + r.IntN(4) {
			keys = append(keys, simKeys[r.IntN(len(simKeys))])
		}
		what = fmt.Sprintf("%s acquires all of %v", c.name, keys)
		var set *pglock.LockSet
		err = n.within(bound+n.window/3, what, func() (err error) {
			set, err = n.m.AcquireAll(ctx, keys, opts...)
			return err
		})
		if err == nil {
			lock, infos = set, set.Infos()
			c.checkSet(keys, infos)
		}
	default:
		what = fmt.Sprintf("%s acquires %s", c.name, key)
		err = n.within(bound, what, func() (err error) {
			lock, err = n.m.Acquire(ctx, key, opts...)
			return err
		})
	}
	if err != nil {
		var lockErr *ports.LockError
		if !errors.As(err, &lockErr) || !sim.expected(err) {
			sim.fail("%s: %v", what, err)
		}
		sim.mu.Lock()
		if errors.Is(err, ports.ErrNotAcquired) {
			sim.stats.TimedOut++
		} else {
			sim.stats.Failed++
		}
		sim.mu.Unlock()
		return
	}
	if infos == nil {
		infos = []ports.LockInfo{lock.Info()}
	}
	var holds []*simHold
	for _, info := range infos {
		if info.HolderID != n.name || (info.Mode == ports.Shared) != shared || (info.Token > 0) != fencing {
			sim.fail("%s: %+v", what, info)
		}
		holds = append(holds, sim.believe(n, lock, info, atLeast))
	}

	hold := below(r, 3*time.Second)
	if r.IntN(8) == 0 {
		hold = below(r, 2*n.window)
	}
	if r.IntN(5) == 0 {
		c.borrow(lock, hold)
	} else {
		timer := time.NewTimer(hold)
		defer timer.Stop()
		select {
		case <-lock.Done():
		case <-timer.C:
		}
	}
	if r.IntN(20) > 0 {
		c.release(lock, holds)
	} // else it is left to whoever comes by
}

// borrow uses the session of a lock for a while.
func (c *simCaller) borrow(lock ports.Lock, d time.Duration) {
	sim, pid := c.node.sim, lock.Info().PID
	err := lock.(ports.SessionLender).LendSession(bg, func(s ports.Session) bool {
		sim.mu.Lock()
		sim.running[pid]++ // nobody watches the session meanwhile
		sim.logf("%s borrows session %d", c.name, pid)
		sim.mu.Unlock()
		time.Sleep(min(d, time.Second))
		sim.mu.Lock()
		sim.running[pid]--
		sim.mu.Unlock()
		return c.rng.IntN(2) == 0
	})
	if c.node.shared != errors.Is(err, ports.ErrUnsupported) {
		sim.fail("%s borrows session %d, which is shared (%v): %v", c.name, pid, c.node.shared, err)
	}
}

// checkSet checks that a set has each ID of its keys once, in order.
func (c *simCaller) checkSet(keys []string, infos []ports.LockInfo) {
	var want, got []int64
	for _, key := range keys {
		want = append(want, simID(key))
	}
	slices.Sort(want)
	want = slices.Compact(want)
	for _, info := range infos {
		got = append(got, info.ID)
		if !slices.Contains(keys, info.Key) || simID(info.Key) != info.ID || info.PID != infos[0].PID && !c.node.shared {
			c.node.sim.fail("a set of %v has %+v", keys, info)
		}
	}
	if !slices.Equal(want, got) {
		c.node.sim.fail("a set of %v has the IDs %v", keys, got)
	}
}

// believe registers a hold that a caller has been given, and checks that it is
// alone.
func (sim *simulation) believe(n *simNode, lock ports.Lock, info ports.LockInfo, atLeast time.Duration) *simHold {
	sim.mu.Lock()
	defer sim.mu.Unlock()
	h := &simHold{node: n, lock: lock, info: info, atLeast: atLeast}
	sim.stats.Holds++
	if _, ok := lock.(*pglock.LockSet); ok {
		sim.stats.Sets++
	}
	sim.logf("%s holds %s (%d, %s, session %d, token %d)", n.name, info.Key, info.ID, info.Mode, info.PID, info.Token)
	if !isOpen(lock) {
		h.others = true // it has ended already
		return h
	}
	legit := slices.Contains(sim.server.Holders(info.ID), memlock.Holder{PID: info.PID, Mode: info.Mode})
	for _, other := range sim.open() {
		if other.info.ID != info.ID || other.info.Mode == ports.Shared && info.Mode == ports.Shared || other.lock == lock {
			continue
		}
		if other.vanished.IsZero() && legit {
			sim.failf("%s was given %d (session %d) beside %s (session %d)", n.name, info.ID, info.PID, other.node.name, other.info.PID)
		}
		sim.stats.Overtaken++
	}
	sim.holds = append(sim.holds, h)
	if !legit {
		// The server has ended it while its grant was on its way.
		if sim.killed[info.PID].IsZero() && !sim.dropped[info.PID] {
			sim.failf("%s was given %d, which session %d does not hold", n.name, info.ID, info.PID)
		}
		sim.vanish(func(other *simHold) bool { return other == h })
		return h
	}
	if info.Token > 0 {
		seen := sim.tokens[info.ID]
		if info.Token <= seen.exclusive || info.Mode == ports.Exclusive && info.Token <= seen.any {
			sim.failf("%s has token %d for %d, after %+v", n.name, info.Token, info.ID, seen)
		}
		seen.any = max(seen.any, info.Token)
		if info.Mode == ports.Exclusive {
			seen.exclusive = info.Token
		}
		sim.tokens[info.ID] = seen
	}
	return h
}

// release gives a lock back and checks what is said about it.
func (c *simCaller) release(lock ports.Lock, holds []*simHold) {
	n, r, sim := c.node, c.rng, c.node.sim
	ctx, cancel := context.WithTimeout(bg, 1+below(r, 2*n.window))
	defer cancel()
	if r.IntN(4) == 0 {
		cancel() // which must not matter
	}
	opened, last := isOpen(lock), holds[len(holds)-1].info // of a set, the last that was granted
	var err error
	what := fmt.Sprintf("%s releases %s", c.name, lock.Info().Key)
	_ = n.within(n.window/3, what, func() error {
		err = lock.Release(ctx)
		return err
	})
	if err == nil && opened && isOpen(lock) {
		// It is kept for its least time, whoever releases it.
		n.others(func(h *simHold) bool { return h.lock == lock })
		if time.Since(last.AcquiredAt) > holds[0].atLeast {
			sim.fail("%s: it is still open", what)
		}
		return
	}
	if isOpen(lock) {
		sim.fail("%s: it is still open", what)
	}
	if held := time.Since(last.AcquiredAt); opened && errors.Is(lock.Err(), ports.ErrReleased) && held < holds[0].atLeast && !n.isClosed() {
		sim.fail("%s: it was held for %v of at least %v", what, held, holds[0].atLeast)
	}
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if err != nil && !errors.Is(err, ports.ErrLost) {
		sim.stats.Unconfirmed++
	}
	for _, h := range holds {
		told := errors.Is(lock.Err(), ports.ErrLost) && errors.Is(err, ports.ErrLost)
		// For the first moments after its grant, a lock may be passed on within
		// the process, unseen by the server, and one on a shared session for
		// longer.
		passable := n.shared || len(holds) == 1 && h.info.Mode == ports.Exclusive && time.Since(h.info.AcquiredAt) <= 50*time.Millisecond
		if !h.vanished.IsZero() && !told && !h.others && err == nil && !passable {
			sim.failf("%s: the loss of session %d is not told: Err is %v, Release says %v", what, h.info.PID, lock.Err(), err)
		}
		if h.vanished.IsZero() && errors.Is(err, ports.ErrLost) && !slices.ContainsFunc(holds, sim.disturbed) {
			sim.failf("%s: a loss of session %d that nobody has caused: %v", what, h.info.PID, err)
		}
		if err == nil && opened && !passable && slices.Contains(sim.server.Holders(h.info.ID), memlock.Holder{PID: h.info.PID, Mode: h.info.Mode}) {
			sim.failf("%s: session %d still holds %d at the server", what, h.info.PID, h.info.ID)
		}
	}
}

// disturbed reports whether anything has happened to the session of a hold. The
// caller holds sim.mu.
func (sim *simulation) disturbed(h *simHold) bool {
	pid := h.info.PID
	return !sim.killed[pid].IsZero() || sim.dropped[pid] || sim.trouble[pid] > 0
}

// expected reports whether a call may fail like this.
func (sim *simulation) expected(err error) bool {
	for _, target := range []error{
		ports.ErrNotAcquired, ports.ErrPoolExhausted, ports.ErrClosed, ports.ErrLost, ports.ErrReleased, ports.ErrSessionEnded,
		context.Canceled, context.DeadlineExceeded, errSimBefore, errSimAfter, errSimOpen,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	sim.mu.Lock()
	defer sim.mu.Unlock()
	if errors.Is(err, ports.ErrUnsafeConnection) {
		return len(sim.dropped) > 0 // a proof that had its locks taken away
	}
	return sim.stats.Hangs > 0 || sim.storm > 0 // "the server did not answer", which is no sentinel
}

// below draws a duration of less than d.
func below(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// Any string is a key, and round trips.
func FuzzAnyStringIsAKey(f *testing.F) {
	for _, key := range []string{"", "a", "a b", "\x00", "a\x00b", "\xff\xfe", "ключ", "'; DROP TABLE locks; --", `\`, "%s%n", "\u202e", strings.Repeat("k", 1<<20)} {
		f.Add(key)
	}
	server := memlock.NewServer()
	m := memlock.New(server)
	f.Cleanup(func() { m.Close(bg) })
	f.Fuzz(func(t *testing.T, key string) {
		if id := m.KeyID(key); id != pglock.SHA256Key(key) || id < 0 {
			t.Fatalf("%q has the ID %d", key, id)
		}
		lock, ok, err := m.TryAcquire(bg, key)
		if err != nil || !ok {
			t.Fatalf("%q: %v %v", key, ok, err)
		}
		if lock.Info().Key != key || !m.IsHeld(key) || len(server.Holders(m.KeyID(key))) != 1 {
			t.Errorf("%q: %+v", key, lock.Info())
		}
		_, err = m.Acquire(bg, key, ports.WithTimeout(0))
		if !errors.Is(err, ports.ErrNotAcquired) || len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\x00\n\x1b") {
			t.Errorf("%q: %v", key, err)
		}
		if in, err := m.Inspect(bg, key); err != nil || len(in.Holders) != 1 || in.Key != key || len(in.String()) > 2000 {
			t.Errorf("%q: %v %v", key, in, err)
		}
		if err := m.Release(bg, key); err != nil || m.IsHeld(key) {
			t.Errorf("%q: %v", key, err)
		}
	})
}
