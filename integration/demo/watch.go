package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/pglock"
)

// lookEvery is the pause between two looks at pg_locks.
const lookEvery = 2 * time.Millisecond

// looking finds out who holds and who waits for the lock with the ID $1, in
// one consistent view: pg_locks is read with the whole lock table locked.
// It shows the two halves of the ID as unsigned numbers. Who a server process
// works for is what the worker has called its connection.
const looking = `
	SELECT coalesce(nullif(regexp_replace(a.application_name, '^holdfast \S+ ', ''), ''), 'process ' || l.pid), l.granted
	FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
	WHERE l.locktype = 'advisory' AND l.objsubid = 1
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND (l.classid::bigint << 32) | l.objid::bigint = $1`

// watcher looks at the lock from outside, on a connection of its own.
type watcher struct {
	conn     *pgx.Conn
	id       int64
	timeline *timeline
	cancel   context.CancelFunc
	ended    chan struct{}
	failed   chan error // has the error that ended the watch, if one has

	mu      sync.Mutex
	seen    seen
	holder  string // at the last look
	waiters int    // at the last look
}

// seen is what a watcher has seen so far.
type seen struct {
	looks      int
	holders    map[string]bool
	violations []error
}

// watch starts to watch the lock of key, until stop. Changes of the holder go
// into t.
func watch(ctx context.Context, dsn, key string, t *timeline) (*watcher, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{
		conn: conn, id: pglock.SHA256Key(key), timeline: t, cancel: cancel,
		ended: make(chan struct{}), failed: make(chan error, 1),
		seen: seen{holders: make(map[string]bool)},
	}
	go func() {
		defer close(w.ended)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := w.look(ctx); err != nil && ctx.Err() == nil {
				w.failed <- fmt.Errorf("look at pg_locks: %w", err)
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return w, nil
}

// look looks once.
func (w *watcher) look(ctx context.Context) error {
	rows, err := w.conn.Query(ctx, looking, w.id)
	if err != nil {
		return err
	}
	var holders []string
	waiters := 0
	var name string
	var granted bool
	_, err = pgx.ForEachRow(rows, []any{&name, &granted}, func() error {
		if granted {
			holders = append(holders, name)
		} else {
			waiters++
		}
		return nil
	})
	if err != nil {
		return err
	}

	w.take(holders, waiters)
	return nil
}

// take takes in what one look has shown.
func (w *watcher) take(holders []string, waiters int) {
	now, holder := time.Now(), ""
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen.looks++
	if len(holders) > 1 {
		w.seen.violations = append(w.seen.violations, fmt.Errorf("pg_locks showed several holders at once: %v", holders))
	}
	for _, name := range holders {
		w.seen.holders[name], holder = true, name
	}
	was, waited := w.holder, w.waiters
	w.holder, w.waiters = holder, waiters
	switch {
	case holder == "" && was != "":
		w.timeline.add(event{at: now, who: "server", what: "seen", text: "pg_locks: held by nobody"})
	case holder != was:
		w.timeline.add(event{at: now, who: "server", what: "seen", text: "pg_locks: held by " + holder})
	case waiters != waited:
		w.timeline.touch()
	}
}

// holds reports whether name held the lock at the last look.
func (w *watcher) holds(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holder == name
}

// waiting is how many waited for the lock at the last look.
func (w *watcher) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiters
}

// free reports whether nobody held or waited for the lock at the last look.
func (w *watcher) free() bool {
	return w.holds("") && w.waiting() == 0
}

// stop ends the watch. It returns the error that has ended it before, if one
// has and nobody has read it.
func (w *watcher) stop() error {
	w.cancel()
	<-w.ended
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var failure error
	select {
	case failure = <-w.failed:
	default:
	}
	return errors.Join(failure, w.conn.Close(ctx))
}

// summary is what was seen; call it after stop.
func (w *watcher) summary() seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}
