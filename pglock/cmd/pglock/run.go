package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// defaultGrace is how long a command has to stop after a loss. In a network
// partition a loss is told a fifth of the liveness window, 3 s, before the server
// frees the lock, or sooner: by then the command is gone.
const defaultGrace = 2 * time.Second

const runHelp = `Wait for the lock of KEY, run COMMAND while it is held, and exit with its code.

Signals go to the command and to what it has started. If the lock is lost, they
get SIGTERM, and SIGKILL after the grace. The command finds its key in
PGLOCK_KEY and, with --fencing, its token in PGLOCK_TOKEN. --timeout is --wait.`

// run is one use of the command run.
type run struct {
	connection *connection

	wait         time.Duration // negative for no bound
	skip         bool
	shared       bool
	holdAtLeast  time.Duration
	conflictCode int
	fencing      bool
	grace        time.Duration
	holder       string

	key     string
	id      lockID
	command *exec.Cmd
	signals chan os.Signal
}

func runCommand(c *connection) *cobra.Command {
	r := run{connection: c}
	cmd := &cobra.Command{
		Use:   "run KEY [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a command while the lock is held",
		Long:  runHelp,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			var argv []string
			if r.key, argv, err = splitRunArgs(cmd.ArgsLenAtDash(), args); err != nil {
				return err
			}
			if !cmd.Flags().Changed("wait") && !r.skip {
				r.wait = -1
			}
			return r.run(cmd.Context(), argv)
		},
	}
	flags := cmd.Flags()
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "timeout" {
			name = "wait"
		}
		return pflag.NormalizedName(name)
	})
	flags.DurationVarP(&r.wait, "wait", "w", 0, "wait at most so long; 0 tries once")
	flags.BoolVar(&r.skip, "skip", false, "if someone else has the lock, exit with 0")
	flags.BoolVarP(&r.shared, "shared", "s", false, "share the lock with others that share it")
	flags.DurationVar(&r.holdAtLeast, "hold-at-least", 0, "keep the lock at least so long")
	flags.IntVarP(&r.conflictCode, "conflict-exit-code", "E", exitConflict, "exit with `N` if someone else has it")
	flags.BoolVar(&r.fencing, "fencing", false, "get a fencing token for PGLOCK_TOKEN")
	flags.DurationVar(&r.grace, "grace", defaultGrace, "from SIGTERM to SIGKILL on a loss")
	flags.StringVar(&r.holder, "holder", "", "`NAME` for others to see (default HOST/PID)")
	return cmd
}

// splitRunArgs finds the key and the command; dash is how many arguments stand
// before --. A key that looks like a flag has a -- before it, too.
func splitRunArgs(dash int, args []string) (key string, argv []string, err error) {
	const form = "write pglock run KEY -- COMMAND"
	if dash == 0 && len(args) > 1 && args[1] == "--" {
		args, dash = slices.Delete(slices.Clone(args), 1, 2), 1
	}
	switch {
	case len(args) == 0 || dash == 0:
		return "", nil, usage("there is no key: %s", form)
	case dash < 0 && len(args) == 1:
		return "", nil, usage("there is no command: %s", form)
	case dash != 1:
		return "", nil, usage("there must be one key, and -- before the command: %s", form)
	case len(args) == 1:
		return "", nil, usage("there is no command after --: %s", form)
	}
	return args[0], args[1:], nil
}

// check refuses values that mean nothing, and derives the ID of the key.
func (r *run) check() (err error) {
	switch {
	case r.wait < 0 && r.wait != -1, r.holdAtLeast < 0, r.grace < 0:
		return usage("a duration must not be negative; leave the flag out")
	case r.conflictCode < 0 || r.conflictCode > 255:
		return usage("--conflict-exit-code %d is not an exit code; they are 0 to 255", r.conflictCode)
	}
	r.id, err = r.connection.id(r.key)
	return err
}

// run takes the lock, runs the command, and gives the lock back.
func (r *run) run(ctx context.Context, argv []string) error {
	if err := r.check(); err != nil {
		return err
	}
	r.command = exec.Command(argv[0], argv[1:]...)
	if err := r.command.Err; err != nil {
		return notRunnable(err)
	}
	r.signals = make(chan os.Signal, 16)
	signal.Notify(r.signals, slices.DeleteFunc(slices.Clone(forwarded), signal.Ignored)...) // nohup ignores one
	defer signal.Stop(r.signals)

	db, err := r.connection.open()
	if err != nil {
		return err
	}
	defer db.Close()
	var opts []pglock.Option
	if r.holder != "" {
		opts = append(opts, pglock.WithHolderID(r.holder))
	}
	locks := manager(db, r.id, opts...)
	defer locks.Close(ctx)

	lock, err := r.acquire(ctx, locks)
	if err != nil || lock == nil {
		return err
	}
	code, err := r.supervise(lock)
	if err != nil {
		return errors.Join(err, lock.Release(ctx))
	}
	return r.release(ctx, lock, code)
}

// acquire waits for the lock, or for a signal. It returns no lock and no error
// if the command is to be skipped.
func (r *run) acquire(ctx context.Context, locks *pglock.Manager) (ports.Lock, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		lock ports.Lock
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		// First, since --wait is for others to end, and not for a connection and
		// the proof that it excludes.
		err := locks.Verify(ctx)
		var lock ports.Lock
		if err == nil {
			lock, err = locks.Acquire(ctx, r.key, r.options()...)
		}
		answers <- answer{lock, err}
	}()
	var ended os.Signal
	for {
		select {
		case s := <-r.signals:
			ended = s
			cancel()
		case a := <-answers:
			switch {
			case ended != nil: // if it has come nevertheless, Close releases it
				return nil, &exit{exitSignal + signalNumber(ended), fmt.Errorf("%v while waiting for the lock %q: the command was not run", ended, r.key)}
			case errors.Is(a.err, ports.ErrNotAcquired) && r.skip:
				return nil, nil
			case errors.Is(a.err, ports.ErrNotAcquired):
				return nil, &exit{r.conflictCode, r.conflict(locks)}
			}
			return a.lock, unavailable(a.err)
		}
	}
}

func (r *run) options() []ports.AcquireOption {
	opts := []ports.AcquireOption{ports.WithHoldAtLeast(r.holdAtLeast)}
	if r.wait >= 0 {
		opts = append(opts, ports.WithTimeout(r.wait))
	}
	if r.shared {
		opts = append(opts, ports.WithShared())
	}
	if r.fencing {
		opts = append(opts, ports.WithFencing())
	}
	return opts
}

// conflict says who has the lock, if that can still be told.
func (r *run) conflict(locks *pglock.Manager) error {
	who := "someone else"
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	if in, err := locks.Inspect(ctx, r.key); err == nil && len(in.Holders) > 0 {
		h := in.Holders[0]
		who = fmt.Sprintf("%s (server process %d)", holderName(h), h.PID)
	}
	return fmt.Errorf("the lock %q is held by %s; wait longer with --wait, or end that with: pglock evict", r.key, who)
}

// supervise runs the command until it ends, hands signals to it, and ends it if
// the lock is lost.
func (r *run) supervise(lock ports.Lock) (code int, err error) {
	r.command.Stdin, r.command.Stdout, r.command.Stderr = os.Stdin, os.Stdout, os.Stderr
	r.command.Env = r.environment(lock.Info())
	p, err := start(r.command)
	if err != nil {
		return 0, notRunnable(err)
	}
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		code, err := p.wait()
		ended <- end{code, err}
	}()
	lost, toldToEnd := lock.Done(), false
	var kill <-chan time.Time
	for {
		select {
		case s := <-r.signals:
			toldToEnd = toldToEnd || slices.Contains(ending, s)
			p.signal(s)
		case <-lost:
			lost, toldToEnd = nil, true
			p.signal(syscall.SIGTERM)
			kill = time.After(r.grace)
		case <-kill:
			p.kill()
		case e := <-ended:
			if toldToEnd {
				p.kill() // what the command has started goes with it
			}
			return e.code, e.err
		}
	}
}

// environment is ours with the key and the token, and without those of a pglock
// around this one.
func (r *run) environment(info ports.LockInfo) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PGLOCK_KEY=") || strings.HasPrefix(v, "PGLOCK_TOKEN=")
	})
	env = append(env, "PGLOCK_KEY="+info.Key)
	if r.fencing {
		env = append(env, fmt.Sprintf("PGLOCK_TOKEN=%d", info.Token))
	}
	return env
}

// release gives the lock back after the command has ended with code, and makes
// that the exit code, unless the lock was lost.
func (r *run) release(ctx context.Context, lock ports.Lock, code int) error {
	err := lock.Release(ctx)
	if err == nil { // it may have to be kept for a while
		select {
		case <-lock.Done():
		case <-r.signals: // Close ends it
		}
		err = lock.Err()
	}
	if lost := lock.Err(); errors.Is(lost, ports.ErrLost) {
		err = lost // says more
	}
	switch {
	case errors.Is(err, ports.ErrLost):
		return &exit{exitLost, fmt.Errorf("the lock %q was lost, and the command ended with code %d; someone else may have worked beside it, so look at what it did: %w", r.key, code, err)}
	case err != nil && !errors.Is(err, ports.ErrReleased):
		fmt.Fprintln(os.Stderr, "pglock: "+oneLine(err)) // the server frees it soon
	}
	if code != 0 {
		return &exit{code: code}
	}
	return nil
}

// notRunnable is the error of a command that could not be started.
func notRunnable(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return &exit{exitNotFound, fmt.Errorf("%w; give the command's path", err)}
	}
	return &exit{exitNotRunnable, fmt.Errorf("%w; the command must be a program that this user may run", err)}
}
