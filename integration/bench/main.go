// Command bench measures Holdfast beside its floor, which is the fewest and
// fastest statements that the same driver can lock with, and beside other lock
// libraries, and writes the figures and charts into the documentation.
//
//	go run ./bench -docs ../docs
//
// It starts a PostgreSQL server with room for many connections, and a Redis if
// redis-server is in PATH. What is missing (Redis, pgbench) is left out with a
// line that says so.
//
// All contestants of a scenario are there at once, each on a database of its
// own, and take turns: in each round each is measured once, and another one
// begins. A figure is the median of the rounds, and a ratio the median of the
// rounds' ratios. So whatever else the machine does reaches all of them alike.
// Times still differ from machine to machine; the ratios hold.
//
// It does not tell what a contestant promises. What they are worth in bad
// weather is measured in package chaos.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/integration/postgres"
)

func main() {
	var err error
	if encoded := os.Getenv(orderVariable); encoded != "" {
		err = work(encoded, os.Stdin, os.Stdout)
	} else {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() (err error) {
	docs := flag.String("docs", "", "directory for benchmarks.md and its charts; without it the figures are only printed")
	rounds := flag.Int("rounds", full.rounds, "rounds of each scenario; fewer are quicker and noisier")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see -help", flag.Arg(0))
	}
	if *rounds < 1 {
		return fmt.Errorf("-rounds is %d: want 1 at least", *rounds)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server, err := postgres.Start(ctx, postgres.WithSettings(serverSettings))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	fmt.Fprintln(os.Stderr, server.Describe())
	s := full
	s.rounds = *rounds
	b, err := newBench(s, server, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()

	done := make(chan error, 1)
	var f *figures
	go func() {
		var err error
		f, err = b.measure()
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	fmt.Println(f.page())
	if *docs == "" {
		return nil
	}
	return f.write(*docs)
}

// figures are the results of a run.
type figures struct {
	b       *bench
	machine string

	pairs        []series // µs
	handovers    []outcomes[[]float64]
	many         []series // pairs per second, on b.connections
	manyOnOne    []series // the same, on one
	contended    []outcomes[contention]
	twoProcesses []outcomes[[2]contention]
	holds        map[int][]outcomes[hold]
	oneKey       map[int][]outcomes[waiting]
	manyKeys     map[int][]outcomes[waiting]
}

// measure runs all scenarios.
func (b *bench) measure() (*figures, error) {
	f := &figures{b: b, holds: map[int][]outcomes[hold]{}, oneKey: map[int][]outcomes[waiting]{}, manyKeys: map[int][]outcomes[waiting]{}}
	type scenario struct {
		name string
		run  func() error
	}
	scenarios := []scenario{
		{"the machine", func() (err error) { f.machine, err = b.machine(); return }},
		{"pairs", func() (err error) { f.pairs, err = b.pairs(); return }},
		{"handovers", func() (err error) { f.handovers, err = b.handovers(); return }},
		{"goroutines on keys of their own", func() (err error) { f.many, err = b.many(b.connections); return }},
		{"the same on one connection", func() (err error) { f.manyOnOne, err = b.many(1); return }},
		{"goroutines on one key", func() (err error) { f.contended, err = b.contended(); return }},
		{"the same in two processes", func() (err error) { f.twoProcesses, err = b.twoProcesses(); return }},
	}
	for _, n := range b.held {
		scenarios = append(scenarios, scenario{fmt.Sprintf("%d locks held", n), func() (err error) { f.holds[n], err = b.holds(n); return }})
	}
	for _, n := range b.oneKey {
		scenarios = append(scenarios, scenario{fmt.Sprintf("%d waiters on one key", n), func() (err error) { f.oneKey[n], err = b.waiters(n, 1); return }})
	}
	for _, n := range b.manyKeys {
		scenarios = append(scenarios, scenario{fmt.Sprintf("%d waiters on as many keys", n), func() (err error) { f.manyKeys[n], err = b.waiters(n, n); return }})
	}
	for _, s := range scenarios {
		start := time.Now()
		if err := s.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(b.log, "%6.1f s  %s\n", time.Since(start).Seconds(), s.name)
	}
	return f, nil
}

// machine says in a sentence what the figures were measured on.
func (b *bench) machine() (string, error) {
	var server string
	if err := b.admin.QueryRow(`SHOW server_version`).Scan(&server); err != nil {
		return "", err
	}
	server, _, _ = strings.Cut(server, " ") // the packager's name
	text := fmt.Sprintf("%d processors (%s), %s/%s, %s, PostgreSQL %s on the same machine, lib/pq %s, pgx %s",
		runtime.NumCPU(), processor(), runtime.GOOS, runtime.GOARCH, runtime.Version(), server, version("github.com/lib/pq"), version("github.com/jackc/pgx/v5"))
	if b.redis != nil {
		text += ", Redis " + b.redis.version
	}
	return text, nil
}

// processor is its model, where the system tells.
func processor() string {
	const unknown = "model unknown"
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return unknown
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return unknown
}

// version is that of a module that this program was built with; empty if it
// was built without saying so.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == module {
			return m.Version
		}
	}
	return ""
}

// write puts the page and the charts into a directory.
func (f *figures) write(docs string) error {
	if err := os.MkdirAll(filepath.Join(docs, chartDir), 0o755); err != nil {
		return err
	}
	for _, c := range f.charts() {
		if err := save(c, filepath.Join(docs, chartDir)); err != nil {
			return err
		}
	}
	return f.writePage(filepath.Join(docs, "benchmarks.md"))
}
