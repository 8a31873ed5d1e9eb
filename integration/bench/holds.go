package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// hold is what it takes to hold a number of locks at once.
type hold struct {
	connections int     // in all
	perLock     float64 // microseconds to take one, after the other
	heap        float64 // bytes in this process, for each
	goroutines  int     // that there were not before
}

// holds measures a number of locks held at once by those who can.
func (b *bench) holds(n int) ([]outcomes[hold], error) {
	field := without(b.field, func(c contestant) bool { return c.mostHeld < n })
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint("held ", i)
	}
	return interleave(names(field), b.heldRounds(n), func(i int) (hold, error) {
		return b.hold(field[i], keys)
	})
}

func (b *bench) hold(c contestant, keys []string) (h hold, err error) {
	p := b.place(c, 0)
	server, err := b.arena(c, p)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	others, err := server.connections()
	if err != nil {
		return h, err
	}
	e, err := c.enter(p)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, e.close(), b.quiet(server, others)) }()
	if err := e.warm(1); err != nil {
		return h, err
	}
	e.trim(p)

	unlocks := make([]func() error, 0, len(keys))
	defer func() {
		for _, unlock := range unlocks {
			err = errors.Join(err, unlock())
		}
	}()
	heap, goroutines := memory()
	start := time.Now()
	for _, key := range keys {
		unlock, err := e.lock(context.Background(), key)
		if err != nil {
			return h, err
		}
		unlocks = append(unlocks, unlock)
	}
	h.perLock = microseconds(time.Since(start)) / float64(len(keys))
	heapNow, goroutinesNow := memory()
	h.heap = (heapNow - heap) / float64(len(keys))
	h.goroutines = goroutinesNow - goroutines
	now, err := server.connections()
	h.connections = now - others
	return h, err
}

// memory returns the bytes of the heap that are in use, and the goroutines.
func memory() (heap float64, goroutines int) {
	runtime.GC()
	runtime.GC() // what finalizers and pools have kept over the first one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc), runtime.NumGoroutine()
}
