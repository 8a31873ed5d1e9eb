//go:build linux

package chaos

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// now reads the machine's monotonic clock.
func now() instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every Linux has this clock
	}
	return instant(ts.Nano())
}

// The keys: most are held for moments, some for as long as it takes to be hit
// by a fault.
var (
	quickKeys = []string{"quick-1", "quick-2", "quick-3", "quick-4", "quick-5", "quick-6", "quick-7", "quick-8", "quick-9", "quick-10", "quick-11", "quick-12"}
	slowKeys  = []string{"slow-1", "slow-2", "slow-3", "slow-4"}
)

// sentBefore is how long before a call a statement may have been sent whose answer
// grants its lock: a process asks once for all its goroutines, and the answer is
// whose turn it is then. It is a slice, and what a manager waits for beyond it.
const sentBefore = 500*time.Millisecond + window/3

// goroutines is how many each worker process has.
const goroutines = 16

// order is what a worker process is told, in its environment.
type order struct {
	Library string
	Driver  string
	DSN     string
	Proc    int // its number among all processes of the run
	Seed    uint64
}

const orderVariable = "HOLDFAST_CHAOS_WORKER"

// line is what a worker process writes to its standard output, as JSON.
type line struct {
	What    string  `json:"w"`
	At      instant `json:"t,omitempty"`
	Asked   instant `json:"a,omitempty"`
	Worker  int     `json:"g,omitempty"`
	Hold    int64   `json:"h,omitempty"`
	Key     string  `json:"k,omitempty"`
	Shared  bool    `json:"s,omitempty"`
	Backend int     `json:"b,omitempty"`
	Token   uint64  `json:"n,omitempty"`
	Text    string  `json:"x,omitempty"`
}

// What a line can tell.
const (
	isHeld      = "held"      // a hold has begun
	isEnding    = "ending"    // it is about to be released
	isLost      = "lost"      // Done was closed before that
	isOver      = "over"      // how it ended is in Text
	isWritten   = "written"   // a transaction was committed
	isRefused   = "refused"   // a transaction of a holder that was told of its loss
	isStale     = "stale"     // the same, committed
	isContended = "contended" // somebody else had the lock
	isFailed    = "failed"    // no lock and no answer; why is in Text
	isDrained   = "drained"   // every hold of the process is over
	isGone      = "gone"      // the process has closed all; what is left is in Text
)

// What a worker process is told on its standard input. At its end, which comes
// with the end of the driver of faults, the process ends.
const (
	drain = "drain" // take no more locks
	leave = "leave" // close everything and end
)

// worker is the program of a worker process.
type worker struct {
	order
	library library
	locks   locker
	holds   atomic.Int64

	mu  sync.Mutex // one line at a time
	out *os.File
}

// say writes one line, in one piece: a process that is killed leaves no half of
// one, and loses none.
func (w *worker) say(l line) {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // a line has plain fields only
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.out.Write(append(text, '\n')); err != nil {
		os.Exit(1) // nobody listens any more
	}
}

// work is main in a worker process.
func work(encoded string) {
	w := &worker{out: os.Stdout}
	if err := json.Unmarshal([]byte(encoded), &w.order); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	before := goleak.IgnoreCurrent()
	if err := w.run(before); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (w *worker) run(before goleak.Option) error {
	w.library = allLibraries[slices.IndexFunc(allLibraries, func(l library) bool { return l.name == w.Library })]
	db, err := sql.Open(w.Driver, w.DSN)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(24)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if w.locks, err = w.library.open(ctx, db, w.Driver, fmt.Sprintf("chaos-%d", w.Proc)); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			rng := random(w.Seed, uint64(w.Proc), uint64(g))
			for ctx.Err() == nil {
				w.turn(ctx, g, rng)
			}
		})
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		switch commands.Text() {
		case drain:
			stop()
			wg.Wait()
			w.say(line{What: isDrained, At: now()})
		case leave:
			var left []error
			closing, cancel := context.WithTimeout(context.Background(), window)
			if err := w.locks.close(closing); err != nil {
				left = append(left, err)
			}
			cancel()
			if n := db.Stats().InUse; n > 0 {
				left = append(left, fmt.Errorf("%d connections in use", n))
			}
			left = append(left, db.Close(), goleak.Find(before))
			gone := line{What: isGone, At: now()}
			if err := errors.Join(left...); err != nil {
				gone.Text = err.Error()
			}
			w.say(gone)
			return nil
		}
	}
	return errors.New("the driver of faults is gone")
}

// turn takes one lock, or tries to.
func (w *worker) turn(ctx context.Context, g int, rng *rand.Rand) {
	r := request{
		key:     quickKeys[rng.IntN(len(quickKeys))],
		shared:  w.library.shared && rng.IntN(4) == 0,
		try:     rng.IntN(4) == 0,
		fencing: w.library.fencing && rng.IntN(2) == 0,
	}
	keep := time.Duration(rng.Int64N(int64(5 * time.Millisecond)))
	if g < len(slowKeys) && rng.IntN(2) == 0 { // a few goroutines, so that the quick keys stay busy
		r.key = slowKeys[rng.IntN(len(slowKeys))]
		keep = time.Duration(rng.Int64N(int64(3 * time.Second)))
	}
	wait := time.Duration(20+rng.Int64N(1500)) * time.Millisecond
	asked := now() - sentBefore
	waiting, cancel := context.WithTimeout(ctx, wait)
	h, err := w.locks.acquire(waiting, r)
	cancel()
	at := now()
	switch {
	case h != nil:
		w.hold(h, r, g, asked, at, keep, rng)
	case err != nil && ctx.Err() == nil:
		w.say(line{What: isFailed, At: at, Worker: g, Key: r.key, Text: err.Error()})
		pause(ctx, 50*time.Millisecond+time.Duration(rng.Int64N(int64(100*time.Millisecond))))
	case err == nil:
		w.say(line{What: isContended, At: at, Worker: g, Key: r.key})
		if r.try {
			pause(ctx, time.Duration(rng.Int64N(int64(10*time.Millisecond))))
		}
	}
}

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// hold is one hold, from its grant to its end.
func (w *worker) hold(h held, r request, g int, asked, start instant, keep time.Duration, rng *rand.Rand) {
	n := w.holds.Add(1)
	w.say(line{What: isHeld, Asked: asked, At: start, Worker: g, Hold: n, Key: r.key, Shared: r.shared, Backend: h.backend(), Token: h.token()})
	writes := !r.shared && rng.IntN(5) == 0

	// The loss is logged the moment that it is told, whatever else goes on.
	var over atomic.Bool // the end of the hold is settled
	released := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-h.done():
			if at := now(); over.CompareAndSwap(false, true) {
				w.say(line{What: isLost, At: at, Hold: n})
			}
		case <-released:
		}
	})

	if writes {
		w.write(h, r.key, n, rng)
	}
	timer := time.NewTimer(keep)
	select {
	case <-timer.C:
	case <-h.done():
		timer.Stop()
	}
	if writes && !over.Load() {
		w.write(h, r.key, n, rng)
	}
	if at := now(); over.CompareAndSwap(false, true) {
		w.say(line{What: isEnding, At: at, Hold: n})
	} else if w.library.fenced && !r.shared {
		w.writeStale(h, r.key, n)
	}
	close(released)
	watching.Wait()

	ctx, cancel := context.WithTimeout(context.Background(), window)
	defer cancel()
	how, err := h.release(ctx)
	l := line{What: isOver, At: now(), Hold: n, Text: string(how)}
	w.say(l)
	if err != nil && how == unconfirmed {
		w.say(line{What: isFailed, At: now(), Worker: g, Key: r.key, Text: err.Error()})
	}
}

// write leaves a row that says who had the lock, with the next number of the
// key. A commit of a stale holder would stand between the rows of its
// successor, or behind them.
func (w *worker) write(h held, key string, n int64, rng *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := h.write(ctx, w.row(h, key, n, time.Duration(rng.Int64N(int64(5*time.Millisecond))))); err == nil {
		w.say(line{What: isWritten, At: now(), Hold: n})
	}
}

// writeStale tries to do the same after the loss.
func (w *worker) writeStale(h held, key string, n int64) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	what := isRefused
	if err := h.write(ctx, w.row(h, key, n, 0)); err == nil {
		what = isStale
	}
	w.say(line{What: what, At: now(), Hold: n})
}

func (w *worker) row(h held, key string, n int64, linger time.Duration) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		var seq int64
		if err := tx.QueryRowContext(ctx, `UPDATE chaos_keys SET seq = seq + 1 WHERE key = $1 RETURNING seq`, key).Scan(&seq); err != nil {
			return err
		}
		pause(ctx, linger) // between two statements, where a fault finds the transaction open
		_, err := tx.ExecContext(ctx, `INSERT INTO chaos_writes (key, seq, hold, token) VALUES ($1, $2, $3, $4)`,
			key, seq, strconv.Itoa(w.Proc)+"/"+strconv.FormatInt(n, 10), int64(h.token()))
		return err
	}
}
