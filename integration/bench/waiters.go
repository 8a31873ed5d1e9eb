package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/integration/wire"
	"github.com/holdfast-go/holdfast/pglock"
)

// waiting is what it takes to wait for locks that somebody else holds.
type waiting struct {
	connections int
	perSecond   float64 // statements
}

// waiters measures goroutines that wait for locks, on keys of their own or on
// one. The floor takes no part, because a plain session waits for one lock only,
// nor does who cannot hold the locks that are waited for.
func (b *bench) waiters(n, keys int) ([]outcomes[waiting], error) {
	field := without(b.rivals(), func(c contestant) bool { return !c.advisory && c.mostHeld < keys })
	wanted := make([]string, keys)
	for i := range wanted {
		wanted[i] = fmt.Sprint("waited for ", i)
	}
	return interleave(names(field), 1, func(i int) (waiting, error) {
		return b.wait(field[i], n, wanted)
	})
}

func (b *bench) wait(c contestant, n int, keys []string) (w waiting, err error) {
	p := b.place(c, b.waiterPool)
	p.counter = new(wire.Counter)
	server, err := b.arena(c, p)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	giveUp, err := b.holdAll(c, keys)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, giveUp()) }()
	others, err := server.connections()
	if err != nil {
		return w, err
	}
	e, err := c.enter(p)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, e.close(), b.quiet(server, others)) }()
	if err := e.warm(1); err != nil {
		return w, err
	}
	e.trim(p)

	ctx, stop := context.WithCancel(context.Background())
	var got atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if _, err := e.lock(ctx, keys[i%len(keys)]); err == nil {
				got.Add(1)
			}
		})
	}
	defer func() {
		stop()
		wg.Wait()
		if got.Load() > 0 {
			err = errors.Join(err, errors.New("waiters have got locks that are held by others"))
		}
	}()
	time.Sleep(b.settle)
	before, err := server.statements()
	if err != nil {
		return w, err
	}
	start := time.Now()
	time.Sleep(min(max(b.window, c.asks), b.longestWait)) // one that asks is seen to ask once
	after, err := server.statements()
	if err != nil {
		return w, err
	}
	w.perSecond = float64(after-before) / time.Since(start).Seconds()
	now, err := server.connections()
	w.connections = now - others
	return w, err
}

// holdAll has somebody else hold all the keys: a plain session where that can
// be, and another locker of the contestant elsewhere.
func (b *bench) holdAll(c contestant, keys []string) (giveUp func() error, err error) {
	if c.advisory {
		return b.holdRaw(c, keys)
	}
	const connections = 8
	e, err := c.enter(b.place(c, connections))
	if err != nil {
		return nil, err
	}
	unlocks := make([]func() error, len(keys))
	giveUp = func() error {
		return errors.Join(sideBySide(connections, len(keys), func(i int) error {
			if unlocks[i] == nil {
				return nil
			}
			return unlocks[i]()
		}), e.close())
	}
	if err := sideBySide(connections, len(keys), func(i int) (err error) {
		unlocks[i], err = e.lock(context.Background(), keys[i])
		return err
	}); err != nil {
		return nil, errors.Join(err, giveUp())
	}
	return giveUp, nil
}

// sideBySide does n things on a number of goroutines.
func sideBySide(goroutines, n int, do func(i int) error) error {
	errs := make([]error, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				errs[i] = do(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (b *bench) holdRaw(c contestant, keys []string) (giveUp func() error, err error) {
	db, err := b.place(c, 1).db(wire.PGX)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(keys))
	for i, key := range keys {
		ids[i] = pglock.SHA256Key(key)
	}
	if _, err := db.Exec(`SELECT count(pg_advisory_lock(id)) FROM unnest($1::bigint[]) AS id`, ids); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db.Close, nil
}
