package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// demo is the worker processes and what is known of them.
type demo struct {
	worker, dsn, key string
	watcher          *watcher
	timeline         *timeline

	mu   sync.Mutex
	cmds []*exec.Cmd
	ends map[string]error // how each worker that has ended did
	wg   sync.WaitGroup
}

// start starts a worker. What it prints goes into the timeline.
func (d *demo) start(name string, flags ...string) error {
	cmd := exec.Command(d.worker, append([]string{"-name", name, "-job", d.key}, flags...)...)
	cmd.Env = append(os.Environ(),
		"DATABASE_URL="+d.dsn,
		"PGAPPNAME="+name) // the server shows it, so that the watcher knows who is who
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	d.mu.Lock()
	d.cmds = append(d.cmds, cmd)
	d.mu.Unlock()
	d.wg.Go(func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if e, err := parse(lines.Text()); err == nil {
				d.timeline.add(e)
			} else {
				d.timeline.add(event{at: time.Now(), who: name, what: "unclear", text: lines.Text()})
			}
		}
		err := cmd.Wait()
		if err != nil && stderr.Len() > 0 {
			err = fmt.Errorf("%w (%s)", err, bytes.TrimSpace(stderr.Bytes()))
		}
		d.mu.Lock()
		d.ends[name] = err
		d.mu.Unlock()
		d.timeline.touch()
	})
	return nil
}

// parse reads a line of examples/quickstart: time, name, what happened and,
// behind a colon, more about it.
func parse(line string) (event, error) {
	stamp, rest, _ := strings.Cut(line, " ")
	who, text, _ := strings.Cut(rest, " ")
	what, _, _ := strings.Cut(text, ":")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	return event{at: at, who: who, what: what, text: text}, err
}

// process returns the process of a worker.
func (d *demo) process(name string) *os.Process {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, cmd := range d.cmds {
		if slices.Contains(cmd.Args, name) {
			return cmd.Process
		}
	}
	return nil
}

// kill ends a worker as a crash does.
func (d *demo) kill(name string) error {
	// The time before the signal: whoever runs the job before it overlaps.
	d.timeline.add(event{at: time.Now(), who: name, what: "killed", text: "killed"})
	return d.process(name).Kill()
}

// terminate asks a worker to stop.
func (d *demo) terminate(name string) error {
	d.timeline.add(event{at: time.Now(), who: name, what: "told", text: "told to stop"})
	return d.process(name).Signal(syscall.SIGTERM)
}

// killAll ends the workers that are left and waits until all are gone. One that
// has ended already is not signalled: os.Process knows that.
func (d *demo) killAll() {
	d.mu.Lock()
	for _, cmd := range d.cmds {
		_ = cmd.Process.Kill()
	}
	d.mu.Unlock()
	d.wg.Wait()
}

// await waits until it is so.
func (d *demo) await(ctx context.Context, what string, so func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for this: %s", patience, what))
	defer cancel()
	for {
		news := d.timeline.news()
		if so() {
			return nil
		}
		select {
		case <-news:
		case err := <-d.watcher.failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ended counts the workers among names that have ended.
func (d *demo) ended(names ...string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		if _, ok := d.ends[name]; ok {
			n++
		}
	}
	return n
}

// count counts those among names to whom it has happened.
func (d *demo) count(what string, names ...string) int {
	return len(names) - len(d.without(names, what))
}

// without returns those among names to whom it has not happened.
func (d *demo) without(names []string, what string) (left []string) {
	events := d.timeline.sorted()
	for _, name := range names {
		if !slices.ContainsFunc(events, func(e event) bool { return e.who == name && e.what == what }) {
			left = append(left, name)
		}
	}
	return left
}

// last is the worker to whom it happened last.
func (d *demo) last(what string) (name string) {
	for _, e := range d.timeline.sorted() {
		if e.what == what {
			name = e.who
		}
	}
	return name
}
