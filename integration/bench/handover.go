package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const handoverKey = "handover"

// handovers measures the time from the moment at which one process gives a lock
// up to the moment at which another, which waits for it, has it: in
// microseconds, each of them.
func (b *bench) handovers() (all []outcomes[[]float64], err error) {
	field := without(b.field, func(c contestant) bool { return c.asks > b.longestWait })
	holders, err := b.startWorkers(field, 1, pairConnections)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stopWorkers(holders)) }()
	err = b.onAll(field, pairConnections, func(es []*entrant) error {
		spent := make([]time.Duration, len(field))
		all, err = interleave(names(field), b.rounds, func(i int) (took []float64, err error) {
			start := time.Now()
			defer func() { spent[i] += time.Since(start) }()
			for range b.handoversEach {
				first := spent[i] == 0 && len(took) == 0
				if !first && spent[i]+time.Since(start) > b.handoverBudget {
					break
				}
				d, err := handover(field[i], holders[i], es[i])
				if err != nil {
					return nil, err
				}
				took = append(took, microseconds(d))
			}
			return took, nil
		})
		return err
	})
	return all, err
}

// handover has the lock go from the worker to here once.
func handover(c contestant, holder *worker, e *entrant) (time.Duration, error) {
	if err := holder.tell("take"); err != nil {
		return 0, err
	}
	if err := holder.answer(); err != nil {
		return 0, err
	}
	type arrival struct {
		unlock func() error
		at     time.Time
		err    error
	}
	got := make(chan arrival, 1)
	go func() {
		unlock, err := e.lock(context.Background(), handoverKey)
		got <- arrival{unlock, time.Now(), err}
	}()
	// Long enough for the waiter to have asked, and at any point of its pause
	// if it is one that asks again.
	time.Sleep(8*time.Millisecond + rand.N(max(c.asks, 4*time.Millisecond)))
	if err := holder.tell("give"); err != nil {
		return 0, err
	}
	var gave int64
	if err := holder.answer(&gave); err != nil {
		return 0, err
	}
	a := <-got
	if a.err != nil {
		return 0, a.err
	}
	took := a.at.Sub(time.Unix(0, gave))
	if took < 0 {
		return 0, fmt.Errorf("the lock came %v before it was given up", -took)
	}
	return took, a.unlock()
}
