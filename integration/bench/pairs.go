package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/integration/wire"
)

// pairConnections is more than one goroutine needs, so that every contestant
// works with its default options.
const pairConnections = 4

// pairProcesses is how many processes, one after the other, measure a pair in a
// round: how a process and its server process lie on the processors may make half
// of the time of a statement, and stays as it is while they live.
const pairProcesses = 4

// warmPairs come before those that are measured, for what is done only once, or
// only where locks follow each other.
const warmPairs = 50

// pairs measures an uncontended lock and unlock, in microseconds: each contestant
// in processes of its own, since the idle threads of one keep the others awake.
func (b *bench) pairs() ([]series, error) {
	who := names(b.field)
	pgbenches, err := b.pgbenches()
	if err != nil {
		fmt.Fprintf(b.log, "without pgbench: %v\n", err)
	}
	for _, p := range pgbenches {
		who = append(who, p.name())
	}
	return interleave(who, b.rounds, func(i int) (us float64, err error) {
		for range pairProcesses {
			var one float64
			if i < len(b.field) {
				one, err = b.pair(b.field[i], b.pairSlot/pairProcesses)
			} else {
				one, err = pgbenches[i-len(b.field)].run(b.pairSlot / pairProcesses)
			}
			if err != nil {
				return 0, err
			}
			us += one / pairProcesses
		}
		return us, nil
	})
}

// pair measures a pair in a new process.
func (b *bench) pair(c contestant, slot time.Duration) (us float64, err error) {
	w, err := startWorker(c, b.place(c, pairConnections))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	if err := w.tell("pairs", int64(slot)); err != nil {
		return 0, err
	}
	var n int
	var took time.Duration
	err = w.answer(&n, (*int64)(&took))
	return microseconds(took) / float64(n), err
}

// pairsFor locks and unlocks for a while, at least once.
func pairsFor(e *entrant, lasts time.Duration) (n int, took time.Duration, err error) {
	start := time.Now()
	for ; n == 0 || time.Since(start) < lasts; n++ {
		if err := e.pair("k"); err != nil {
			return 0, 0, err
		}
	}
	return n, time.Since(start), nil
}

// many measures goroutines that lock and unlock keys of their own, on so many
// connections, in pairs per second.
func (b *bench) many(connections int) (all []series, err error) {
	err = b.onAll(b.field, connections, func(es []*entrant) error {
		all, err = interleave(names(b.field), b.rounds, func(i int) (float64, error) {
			var stop atomic.Bool
			var pairs atomic.Int64
			errs := make(chan error, b.goroutines)
			var wg sync.WaitGroup
			start := time.Now()
			for g := range b.goroutines {
				wg.Go(func() {
					for key := fmt.Sprint("k", g); !stop.Load(); pairs.Add(1) {
						if err := es[i].pair(key); err != nil {
							errs <- err
							return
						}
					}
				})
			}
			time.Sleep(b.manySlot)
			stop.Store(true)
			wg.Wait()
			took := time.Since(start)
			if len(errs) > 0 {
				return 0, <-errs
			}
			return float64(pairs.Load()) / took.Seconds(), nil
		})
		return err
	})
	return all, err
}

// pgbench does the same as the floor, in C.
type pgbench struct {
	program, dsn, script string
	mode                 string
	count                int // of pairs, in the next round
}

func (p *pgbench) name() string { return "pgbench, " + p.mode + " protocol" }

// pgbenches finds pgbench, in its two modes that correspond to the two drivers.
func (b *bench) pgbenches() ([]*pgbench, error) {
	program := filepath.Join(b.server.BinDir(), "pgbench")
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("pgbench"); err != nil {
			return nil, err
		}
	}
	var all []*pgbench
	for _, mode := range []string{"simple", "prepared"} {
		all = append(all, &pgbench{program: program, dsn: b.server.DSN(), mode: mode, count: 20,
			script: "SELECT pg_advisory_lock(1);\nSELECT pg_advisory_unlock(1);\n"})
	}
	return all, nil
}

var pgbenchLatency = regexp.MustCompile(`latency average = ([0-9.]+) ms`)

// run returns the time of a pair, in microseconds, of a run that lasts about
// as long as the slot from the second on.
func (p *pgbench) run(slot time.Duration) (float64, error) {
	cmd := exec.Command(p.program, "--no-vacuum", "--client=1", "--protocol="+p.mode, "--transactions="+strconv.Itoa(p.count), "--file=/dev/stdin", p.dsn)
	cmd.Stdin = bytes.NewBufferString(p.script)
	out, err := cmd.CombinedOutput()
	found := pgbenchLatency.FindSubmatch(out)
	if err != nil || found == nil {
		return 0, fmt.Errorf("pgbench: %v: %s", err, out)
	}
	ms, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		return 0, err
	}
	p.count = max(20, int(float64(slot)/float64(time.Millisecond)/max(ms, 0.01)))
	return 1000 * ms, nil
}

// floorOf names the floor of a contestant: that of its driver, and pgx's, the
// faster one, for those that have none.
func (b *bench) floorOf(name string) string {
	driver := wire.PGX
	for _, c := range b.field {
		if c.name == name && c.driver != "" {
			driver = c.driver
		}
	}
	if name == "pgbench, simple protocol" {
		driver = wire.PQ
	}
	for _, c := range b.field {
		if c.floor && c.driver == driver {
			return c.name
		}
	}
	return ""
}
