package main

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/integration/postgres"
)

// serverSettings make room for the scenarios. All else is as PostgreSQL has it;
// package postgres would trade safety for speed, which leases in a table would
// profit from.
var serverSettings = map[string]string{
	"max_connections":    "1200",
	"fsync":              "on",
	"full_page_writes":   "on",
	"autovacuum_naptime": "1h", // it would take the processor at some contestant's turn
}

// scale says how large and how long the scenarios are.
type scale struct {
	rounds int // of every scenario that does not say otherwise

	pairSlot, manySlot, contendSlot time.Duration // of one contestant in one round

	goroutines  int // on distinct keys
	connections int // that they share
	contenders  int // goroutines on one key

	handoversEach  int           // of one contestant in one round
	handoverBudget time.Duration // after which a contestant has had enough

	held        []int // numbers of locks
	heldRounds  func(n int) int
	oneKey      []int // numbers of waiters on one key
	manyKeys    []int // numbers of waiters on as many keys
	waiterPool  int   // connections that they share
	settle      time.Duration
	window      time.Duration // in which statements are counted
	longestWait time.Duration // contestants that ask less often take no part where they would have to
}

var full = scale{
	rounds:   7,
	pairSlot: 150 * time.Millisecond, manySlot: 300 * time.Millisecond, contendSlot: 300 * time.Millisecond,
	goroutines: 64, connections: 16, contenders: 32,
	handoversEach: 40, handoverBudget: 10 * time.Second,
	held: []int{1, 10, 100, 1000, 10_000}, heldRounds: func(n int) int { return max(1, min(5, 100/n)) },
	oneKey: []int{10, 100, 1000}, manyKeys: []int{100, 1000}, waiterPool: 100,
	settle: time.Second, window: 2 * time.Second, longestWait: time.Minute,
}

// smoke runs every line of every scenario in a few seconds. Its figures mean
// nothing.
var smoke = scale{
	rounds:   2,
	pairSlot: 5 * time.Millisecond, manySlot: 10 * time.Millisecond, contendSlot: 10 * time.Millisecond,
	goroutines: 8, connections: 4, contenders: 4,
	handoversEach: 2,
	held:          []int{1, 5}, heldRounds: func(int) int { return 1 },
	oneKey: []int{5}, manyKeys: []int{5}, waiterPool: 4,
	settle: 50 * time.Millisecond, window: 100 * time.Millisecond, longestWait: 200 * time.Millisecond,
}

// bench is one run.
type bench struct {
	scale
	server *postgres.Server
	admin  *sql.DB
	redis  *redisServer // nil if there is none
	field  []contestant
	dsns   map[string]string // of each contestant's own database
	log    io.Writer
}

// newBench makes a database for each contestant. The caller must close it.
func newBench(s scale, server *postgres.Server, log io.Writer) (_ *bench, err error) {
	b := &bench{scale: s, server: server, dsns: map[string]string{}, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.admin, err = sql.Open("pgx", server.DSN()); err != nil {
		return nil, err
	}
	if b.redis, err = startRedis(); err != nil {
		fmt.Fprintf(log, "without Redis: %v\n", err)
	}
	for _, c := range everybody() {
		switch {
		case c.driver != "":
			if b.dsns[c.name], err = b.createDatabase(); err != nil {
				return nil, err
			}
		case b.redis == nil:
			continue
		}
		b.field = append(b.field, c)
	}
	return b, nil
}

func (b *bench) createDatabase() (dsn string, err error) {
	name := fmt.Sprintf("holdfast_bench_%d", len(b.dsns))
	if _, err := b.admin.Exec(`DROP DATABASE IF EXISTS ` + name); err != nil {
		return "", err
	}
	if _, err := b.admin.Exec(`CREATE DATABASE ` + name); err != nil {
		return "", err
	}
	u, err := url.Parse(b.server.DSN())
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

func (b *bench) close() error {
	var errs []error
	if b.admin != nil {
		for i := range len(b.dsns) {
			_, err := b.admin.Exec(fmt.Sprintf(`DROP DATABASE IF EXISTS holdfast_bench_%d WITH (FORCE)`, i))
			errs = append(errs, err)
		}
		errs = append(errs, b.admin.Close())
	}
	if b.redis != nil {
		errs = append(errs, b.redis.stop())
	}
	return errors.Join(errs...)
}

// place is where c works, with so many connections at most.
func (b *bench) place(c contestant, connections int) place {
	p := place{DSN: b.dsns[c.name], Connections: connections}
	if b.redis != nil {
		p.Redis = b.redis.address
	}
	return p
}

// outcomes are what one contestant has done, round by round.
type outcomes[T any] struct {
	name   string
	rounds []T
}

type series = outcomes[float64]

// interleave has the contestants take turns: in each round, each is measured
// once, and another one goes first.
func interleave[T any](names []string, rounds int, measure func(i int) (T, error)) ([]outcomes[T], error) {
	all := make([]outcomes[T], len(names))
	for i, name := range names {
		all[i].name = name
	}
	for round := range rounds {
		for turn := range names {
			i := (round + turn) % len(names)
			v, err := measure(i)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", names[i], err)
			}
			all[i].rounds = append(all[i].rounds, v)
		}
	}
	return all, nil
}

// column takes one figure out of the outcomes.
func column[T any](all []outcomes[T], of func(T) float64) []series {
	columns := make([]series, len(all))
	for i, o := range all {
		columns[i].name = o.name
		for _, v := range o.rounds {
			columns[i].rounds = append(columns[i].rounds, of(v))
		}
	}
	return columns
}

func names(field []contestant) (all []string) {
	for _, c := range field {
		all = append(all, c.name)
	}
	return all
}

// without leaves out those who are so.
func without(field []contestant, so func(contestant) bool) []contestant {
	return slices.DeleteFunc(slices.Clone(field), so)
}

// onAll has each contestant enter, with so many connections, for as long as f
// runs.
func (b *bench) onAll(field []contestant, connections int, f func(es []*entrant) error) (err error) {
	var es []*entrant
	defer func() {
		for _, e := range es {
			err = errors.Join(err, e.close())
		}
	}()
	for _, c := range field {
		e, err := c.enter(b.place(c, connections))
		if err != nil {
			return err
		}
		es = append(es, e)
		if err := e.warm(connections); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return f(es)
}

// database is the name in a DSN.
func database(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		panic(err) // it is one of newBench's
	}
	return strings.TrimPrefix(u.Path, "/")
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
