//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	pgxdriver "github.com/jackc/pgx/v5"
)

// breaker breaks things, and writes down what.
type breaker struct {
	cluster *cluster
	fleet   *fleet

	mu     sync.Mutex
	faults []fault
	errs   []error

	lasting sync.WaitGroup
}

// step is one fault of a plan: all of it follows from the seed.
type step struct {
	kind   *kind
	slot   int           // whom it concerns, where it concerns one
	pick   int           // which of several backends
	length time.Duration // how long it lasts, where it does
	pause  time.Duration // until the next
}

// kind is one way to break things.
type kind struct {
	name   string
	weight int
	// most and least are how long it lasts; both 0 if it is over at once.
	least, most time.Duration
	needs       func(*cluster) bool
	run         func(b *breaker, s step) error
}

// Lengths around the bounds: within lostAfter nobody has to lose a lock; at the
// window the server gives a client up.
const lostAfter = 3 * window / 5

var kinds = []kind{
	{"SIGKILL", 12, 0, 0, nil, (*breaker).kill},
	{"SIGSTOP, short", 8, 50 * time.Millisecond, lostAfter / 2, nil, (*breaker).freeze},
	{"SIGSTOP, longer than the window", 2, window + window/5, window + window/2, nil, (*breaker).freeze},
	{"terminated while stopped, longer than the window", 3, window + window/5, window + window/2, nil, (*breaker).freezeAndTerminate},
	{"pg_terminate_backend of a holder", 16, 0, 0, nil, (*breaker).terminateHolder},
	{"pg_terminate_backend of a waiter", 8, 0, 0, nil, (*breaker).terminateWaiter},
	{"pg_cancel_backend of a holder", 6, 0, 0, nil, (*breaker).cancelHolder},
	{"pg_cancel_backend of a waiter", 8, 0, 0, nil, (*breaker).cancelWaiter},
	{"fast restart", 5, 0, 0, nil, (*breaker).restartFast},
	{"immediate restart", 5, 0, 0, nil, (*breaker).restartImmediate},
	{"kill -9 of a backend", 5, 0, 0, nil, (*breaker).crash},
	{"failover", 4, 0, 0, func(c *cluster) bool { return c.rebuilt != nil }, (*breaker).failover},
	{"network cut, short", 5, 100 * time.Millisecond, lostAfter - window/5, nil, (*breaker).cut},
	{"network cut, longer than the window", 3, window + window/10, window + window/2, nil, (*breaker).cut},
	{"slow network", 5, time.Second, 4 * time.Second, nil, (*breaker).slow},
	{"pgbouncer restart", 5, 0, 0, func(c *cluster) bool { return c.bouncer != nil }, (*breaker).restartBouncer},
}

// plan yields the faults of a seed: first one of each kind, then as their
// weights have it.
func plan(seed uint64, c *cluster) func() step {
	rng := random(seed)
	var every, weighted []*kind
	for i, k := range kinds {
		if k.needs != nil && !k.needs(c) {
			continue
		}
		every = append(every, &kinds[i])
		for range k.weight {
			weighted = append(weighted, &kinds[i])
		}
	}
	first := rng.Perm(len(every))
	return func() step {
		var s step
		if len(first) > 0 {
			s.kind, first = every[first[0]], first[1:]
		} else {
			s.kind = weighted[rng.IntN(len(weighted))]
		}
		s.slot, s.pick = rng.IntN(6), rng.IntN(1<<20)
		s.length = s.kind.least + time.Duration(rng.Int64N(int64(max(s.kind.most-s.kind.least, 1))))
		s.pause = 200*time.Millisecond + time.Duration(rng.Int64N(int64(1200*time.Millisecond)))
		return s
	}
}

func (r step) String() string {
	return fmt.Sprintf("%s (slot %d, pick %d, for %v)", r.kind.name, r.slot, r.pick, r.length)
}

// breakThings follows the plan until the time is up. It returns when all is
// whole again.
func (b *breaker) breakThings(next func() step, until time.Time) {
	for time.Now().Before(until) {
		s := next()
		if s.kind.most == 0 {
			b.do(s)
		} else {
			b.fleet.slots[s.slot].lasting.Lock()
			b.lasting.Go(func() {
				defer b.fleet.slots[s.slot].lasting.Unlock()
				b.do(s)
			})
		}
		pause(bg, s.pause)
	}
	b.lasting.Wait()
}

func (b *breaker) do(s step) {
	if err := s.kind.run(b, s); err != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.errs = append(b.errs, fmt.Errorf("%v: %w", s, err))
	}
}

// note writes down a fault that is over now.
func (b *breaker) note(f fault) {
	f.end = now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, f)
}

func (b *breaker) kill(s step) error {
	slot := b.fleet.slots[s.slot]
	at, err := slot.kill()
	if err != nil {
		return err
	}
	b.note(fault{kind: s.kind.name, begin: at, slots: []int{s.slot}})
	return slot.launch(b.cluster)
}

func (b *breaker) freeze(s step) error {
	f := fault{kind: s.kind.name, begin: now(), slots: []int{s.slot}, stopped: true}
	p := b.fleet.slots[s.slot].current().process
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(s.length)
	err := p.signal(syscall.SIGCONT)
	b.note(f)
	return err
}

// freezeAndTerminate ends the sessions of a process that does not run: rivals
// get in for sure, and it must be told when it goes on.
func (b *breaker) freezeAndTerminate(s step) error {
	slot := b.fleet.slots[s.slot]
	f := fault{kind: "SIGSTOP, longer than the window", begin: now(), slots: []int{s.slot}, stopped: true}
	p := slot.current().process
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var errs []error
	if pids := slot.backends(); len(pids) > 0 {
		f.kind, f.backends, f.ended = s.kind.name, pids, true
		errs = append(errs, b.ask(func(ctx context.Context, conn *pgxdriver.Conn) error {
			return terminate(ctx, conn, pids...)
		}))
	}
	time.Sleep(s.length)
	errs = append(errs, p.signal(syscall.SIGCONT))
	b.note(f)
	return errors.Join(errs...)
}

// ask runs f on a connection to the primary. That the server goes down
// meanwhile, by another fault, is no error.
func (b *breaker) ask(f func(ctx context.Context, conn *pgxdriver.Conn) error) error {
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	conn, err := b.cluster.current().connect(ctx)
	if err != nil {
		return nil
	}
	defer conn.Close(ctx)
	if err := f(ctx, conn); err != nil && !conn.IsClosed() {
		return err
	}
	return nil
}

// terminate ends backends and waits until they are gone.
func terminate(ctx context.Context, conn *pgxdriver.Conn, pids ...int) error {
	if _, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) pid`, pids); err != nil {
		return err
	}
	for {
		var left int
		if err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1::int[])`, pids).Scan(&left); err != nil || left == 0 {
			return err
		}
	}
}

// victim finds a backend of a worker that holds an advisory lock, or waits for
// one, and its slot. It looks again until there is one.
func (b *breaker) victim(ctx context.Context, conn *pgxdriver.Conn, holds bool, pick int) (pid, slot int, err error) {
	for ctx.Err() == nil {
		rows, err := conn.Query(ctx, `
			SELECT DISTINCT l.pid, a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE l.locktype = 'advisory' AND l.granted = $1 ORDER BY l.pid`, holds)
		if err != nil {
			return 0, 0, err
		}
		type backend struct {
			PID int
			App string
		}
		found, err := pgxdriver.CollectRows(rows, pgxdriver.RowToStructByPos[backend])
		if err != nil {
			return 0, 0, err
		}
		found = slices.DeleteFunc(found, func(x backend) bool { return b.fleet.slotOf(x.App) < 0 })
		if len(found) > 0 {
			chosen := found[pick%len(found)]
			return chosen.PID, b.fleet.slotOf(chosen.App), nil
		}
		pause(ctx, time.Millisecond)
	}
	return 0, 0, nil
}

// strike does something to a backend that holds or waits.
func (b *breaker) strike(s step, holds, end bool) error {
	return b.ask(func(ctx context.Context, conn *pgxdriver.Conn) error {
		looking, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		pid, slot, err := b.victim(looking, conn, holds, s.pick)
		if err != nil || pid == 0 {
			return nil // there is none, which a library without such sessions never has
		}
		f := fault{kind: s.kind.name, begin: now(), slots: []int{slot}, backends: []int{pid}, ended: end}
		if end {
			err = terminate(ctx, conn, pid)
		} else {
			_, err = conn.Exec(ctx, `SELECT pg_cancel_backend($1)`, pid)
		}
		b.note(f)
		return err
	})
}

func (b *breaker) terminateHolder(s step) error { return b.strike(s, true, true) }
func (b *breaker) terminateWaiter(s step) error { return b.strike(s, false, true) }
func (b *breaker) cancelHolder(s step) error    { return b.strike(s, true, false) }
func (b *breaker) cancelWaiter(s step) error    { return b.strike(s, false, false) }

func (b *breaker) restartFast(s step) error      { return b.restart(s, false) }
func (b *breaker) restartImmediate(s step) error { return b.restart(s, true) }

func (b *breaker) restart(s step, immediate bool) error {
	f := fault{kind: s.kind.name, begin: now(), ended: true}
	primary := b.cluster.current()
	if err := primary.halt(immediate); err != nil {
		return err
	}
	err := primary.start()
	b.note(f)
	return err
}

// crash kills a backend that has nothing to do with locks. The server ends all
// others, and recovers.
func (b *breaker) crash(s step) error {
	primary := b.cluster.current()
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	victim, err := primary.connect(ctx)
	if err != nil {
		return err
	}
	defer victim.Close(ctx)
	witness, err := primary.connect(ctx)
	if err != nil {
		return err
	}
	defer witness.Close(ctx)
	f := fault{kind: s.kind.name, begin: now(), ended: true}
	if err := syscall.Kill(int(victim.PgConn().PID()), syscall.SIGKILL); err != nil {
		return err
	}
	if _, err := witness.WaitForNotification(ctx); !witness.IsClosed() {
		return fmt.Errorf("the server does not end the other sessions: %w", err)
	}
	err = primary.await()
	b.note(f)
	return err
}

func (b *breaker) failover(s step) error {
	f := fault{kind: s.kind.name, begin: now(), ended: true}
	err := b.cluster.failover(s.pick%2 == 0)
	b.note(f)
	return err
}

// cut cuts the network of one process. If it stays so, the server gives its
// clients up after the window.
func (b *breaker) cut(s step) error {
	slot := b.fleet.slots[s.slot]
	f := fault{kind: s.kind.name, begin: now(), slots: []int{s.slot}, cut: true}
	for _, c := range slot.cables {
		c.cut()
	}
	time.Sleep(min(s.length, window))
	if s.length > window {
		for _, c := range slot.cables {
			c.drop()
		}
		time.Sleep(s.length - window)
	}
	for _, c := range slot.cables {
		c.mend()
	}
	b.note(f)
	return nil
}

func (b *breaker) slow(s step) error {
	slot := b.fleet.slots[s.slot]
	f := fault{kind: s.kind.name, begin: now(), slots: []int{s.slot}, delay: time.Duration(10+s.pick%90) * time.Millisecond}
	for _, c := range slot.cables {
		c.slow(f.delay)
	}
	time.Sleep(s.length)
	for _, c := range slot.cables {
		c.slow(0)
	}
	b.note(f)
	return nil
}

func (b *breaker) restartBouncer(s step) error {
	f := fault{kind: s.kind.name, begin: now(), slots: []int{4, 5}, ended: true}
	if err := b.cluster.bouncer.process.end(syscall.SIGTERM); err != nil {
		return err
	}
	err := b.cluster.bouncer.start()
	b.note(f)
	return err
}
