package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// interruptAfter is how long one that asks again has to end the question that is
// under way, before its sleep is interrupted: an answer that nobody reads may
// leave a lease behind.
const interruptAfter = 50 * time.Millisecond

// turnSlots is how many times longer a round of two processes is that take turns
// of half a second.
const turnSlots = 20

// contention is what came of goroutines that all wanted one key.
type contention struct {
	pairs  int // taken and given back
	served int // goroutines that had the lock at least once
	lasted time.Duration
}

// rate is in pairs per second.
func (c contention) rate() float64 { return float64(c.pairs) / c.lasted.Seconds() }

// contend has goroutines lock and unlock one key for a while, which nobody else
// has used before. It fails if two of them were ever in at once.
func contend(c contestant, e *entrant, key string, goroutines int, lasts time.Duration) (contention, error) {
	// Those who are woken get their turn, and leave. One that sleeps is
	// interrupted.
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	var over atomic.Bool
	var in, pairs, served atomic.Int64
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for mine := 0; !over.Load(); mine++ {
				unlock, err := e.lock(ctx, key)
				if err != nil {
					if ctx.Err() == nil {
						errs[g] = err
					}
					return
				}
				if in.Add(1) != 1 {
					errs[g] = errors.New("two goroutines have had the lock at once")
				}
				in.Add(-1)
				if err := unlock(); err != nil {
					errs[g] = errors.Join(errs[g], err)
					return
				}
				if over.Load() {
					return
				}
				pairs.Add(1)
				if mine == 0 {
					served.Add(1)
				}
			}
		})
	}
	time.Sleep(lasts)
	over.Store(true)
	if c.asks > 0 {
		time.Sleep(interruptAfter)
		interrupt()
	}
	wg.Wait()
	return contention{int(pairs.Load()), int(served.Load()), lasts}, errors.Join(errs...)
}

// contendedKey is the key of those who start at a time.
func contendedKey(start int64) string { return fmt.Sprint("contended ", start) }

// rivals are all but the floor, whose lockers are not for one key.
func (b *bench) rivals() []contestant {
	return without(b.field, func(c contestant) bool { return c.floor })
}

// contended measures goroutines of one process on one key.
func (b *bench) contended() (all []outcomes[contention], err error) {
	field := b.rivals()
	err = b.onAll(field, b.contenders+1, func(es []*entrant) error {
		all, err = interleave(names(field), b.rounds, func(i int) (contention, error) {
			return contend(field[i], es[i], contendedKey(time.Now().UnixNano()), b.contenders, b.contendSlot)
		})
		return err
	})
	return all, err
}

// twoProcesses measures two processes that do so at once.
func (b *bench) twoProcesses() (_ []outcomes[[2]contention], err error) {
	field := b.rivals()
	workers, err := b.startWorkers(field, 2, b.contenders+1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stopWorkers(workers)) }()
	return interleave(names(field), b.rounds, func(i int) (got [2]contention, err error) {
		lasts := b.contendSlot
		if field[i].turns {
			lasts *= turnSlots
		}
		start := time.Now().Add(5 * time.Millisecond).UnixNano()
		both := workers[2*i : 2*i+2]
		for _, w := range both {
			if err := w.tell("contend", start, b.contenders, int64(lasts)); err != nil {
				return got, err
			}
		}
		for k, w := range both {
			got[k].lasted = lasts
			if err := w.answer(&got[k].pairs, &got[k].served); err != nil {
				return got, err
			}
		}
		return got, nil
	})
}
