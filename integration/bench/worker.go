package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// orderVariable makes this program a worker, which is told there what to be.
const orderVariable = "HOLDFAST_BENCH_WORKER"

// order is what a worker process is.
type order struct {
	Contestant string
	Place      place
}

// work is main in a worker process. It does what each line of its input says,
// answers with a line, and ends with its input:
//
//	take                                    takes the key of handovers
//	give                                    gives it back; answers with the time right before
//	pairs <lasts>                           see pairs; answers with pairs and how long they took
//	contend <start> <goroutines> <lasts>    see contend; answers with pairs and goroutines served
//
// Times are nanoseconds, the start's since 1970.
func work(encoded string, in io.Reader, out io.Writer) error {
	var o order
	if err := json.Unmarshal([]byte(encoded), &o); err != nil {
		return err
	}
	field := everybody()
	at := slices.IndexFunc(field, func(c contestant) bool { return c.name == o.Contestant })
	if at < 0 {
		return fmt.Errorf("nobody is called %q", o.Contestant)
	}
	e, err := field[at].enter(o.Place)
	if err != nil {
		return err
	}
	if err := e.warm(o.Place.Connections); err != nil {
		return errors.Join(err, e.close())
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	var unlock func() error
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var what string
		var numbers [3]int64
		fmt.Sscan(lines.Text(), &what, &numbers[0], &numbers[1], &numbers[2])
		var answer string
		switch what {
		case "take":
			unlock, err = e.lock(context.Background(), handoverKey)
		case "give":
			answer = fmt.Sprint(time.Now().UnixNano())
			err = unlock()
		case "pairs":
			for range warmPairs {
				if err := e.pair("k"); err != nil {
					return err
				}
			}
			var n int
			var took time.Duration
			n, took, err = pairsFor(e, time.Duration(numbers[0]))
			answer = fmt.Sprint(n, int64(took))
		case "contend":
			start, goroutines, lasts := numbers[0], numbers[1], numbers[2]
			time.Sleep(time.Until(time.Unix(0, start)))
			var c contention
			c, err = contend(field[at], e, contendedKey(start), int(goroutines), time.Duration(lasts))
			answer = fmt.Sprint(c.pairs, c.served)
		default:
			err = fmt.Errorf("unknown command %q", lines.Text())
		}
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return e.close()
}

// worker is a process that works for a contestant.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// startWorker returns when the worker has opened all that it needs.
func startWorker(c contestant, p place) (*worker, error) {
	encoded, err := json.Marshal(order{c.name, p})
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), orderVariable+"="+string(encoded))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &worker{cmd, in, bufio.NewScanner(out)}
	if err := w.answer(); err != nil { // that it is ready
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

// startWorkers starts n processes for each contestant.
func (b *bench) startWorkers(field []contestant, n, connections int) (ws []*worker, err error) {
	for k := range n * len(field) {
		c := field[k/n]
		w, err := startWorker(c, b.place(c, connections))
		if err != nil {
			return nil, errors.Join(err, stopWorkers(ws))
		}
		ws = append(ws, w)
	}
	return ws, nil
}

func (w *worker) tell(command ...any) error {
	_, err := fmt.Fprintln(w.in, command...)
	return err
}

// answer reads the answer to a command into values.
func (w *worker) answer(values ...any) error {
	if !w.out.Scan() {
		return fmt.Errorf("a worker process has ended early: %v", w.out.Err())
	}
	if len(values) == 0 {
		return nil
	}
	_, err := fmt.Sscan(w.out.Text(), values...)
	return err
}

// stop ends the worker and waits for it.
func (w *worker) stop() error {
	w.in.Close()
	return w.cmd.Wait()
}

// stopWorkers stops those that have been started, side by side.
func stopWorkers(ws []*worker) error {
	errs := make([]error, len(ws))
	var wg sync.WaitGroup
	for i, w := range ws {
		wg.Go(func() { errs[i] = w.stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
