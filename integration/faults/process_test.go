//go:build linux

package faults

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// process is a child that ends with this process, however this one ends.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended and been waited for
}

// start starts cmd as user, nil for our own, in a network namespace, "" for our
// own. It is killed when the test ends, if it has not ended by then.
func start(t testing.TB, cmd *exec.Cmd, user *syscall.Credential, namespace string) *process {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user, Pdeathsig: syscall.SIGKILL}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// A child inherits the namespace of the thread that forks it, and gets
		// its last signal when that thread ends. This thread is good for
		// nothing else any more, so it is not unlocked and ends with us.
		runtime.LockOSThread()
		err := enter(namespace)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(p.ended)
	}()
	must(t, <-started)
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// enter moves this thread into a network namespace.
func enter(namespace string) error {
	if namespace == "" {
		return nil
	}
	f, err := os.Open("/run/netns/" + namespace)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

// end sends a signal and waits until the process has ended.
func (p *process) end(t testing.TB, signal syscall.Signal) {
	t.Helper()
	p.cmd.Process.Signal(signal)
	receive(t, "the end of a process", p.ended)
}

// monotonic is the time on the machine's monotonic clock, which all its
// processes share.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// The variables that tell this binary to be another process.
const (
	roleVariable   = "HOLDFAST_FAULTS_ROLE"
	setupVariable  = "HOLDFAST_FAULTS_SETUP"
	dsnVariable    = "HOLDFAST_FAULTS_DSN"
	windowVariable = "HOLDFAST_FAULTS_WINDOW"
)

// The roles: holder holds a key by the library, borrower does so within RunTx,
// and rawHolder by one statement.
const (
	holderRole    = "holder"
	borrowerRole  = "borrower"
	rawHolderRole = "raw holder"
)

// child is this binary as another process, which holds a key.
type child struct {
	*process
	in  io.WriteCloser
	out *bufio.Reader
	pid int // the server's process
}

// startHolder starts a process that holds key, and returns when it does.
func startHolder(t testing.TB, role string, s setup, dsn, key string, window time.Duration, namespace string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0], key)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, setupVariable+"="+s.name, dsnVariable+"="+dsn, windowVariable+"="+window.String())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, childOut, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { out.Close() })
	cmd.Stdout = childOut
	c := &child{start(t, cmd, nil, namespace), in, bufio.NewReader(out), 0}
	childOut.Close()
	c.pid, err = strconv.Atoi(c.line(t, "held "))
	must(t, err)
	return c
}

// line reads a line that must have this beginning, and returns the rest.
func (c *child) line(t testing.TB, beginning string) string {
	t.Helper()
	line := make(chan string, 1)
	go func() {
		s, err := c.out.ReadString('\n')
		if err != nil {
			s += err.Error()
		}
		line <- s
	}()
	rest, ok := strings.CutPrefix(strings.TrimSpace(receive(t, "a line that begins with "+beginning, line)), beginning)
	if !ok {
		t.Fatalf("another process says %q, and not %q", rest, beginning)
	}
	return rest
}

// lost waits until the holder is told of a loss, and returns when that was.
func (c *child) lost(t testing.TB) time.Duration {
	t.Helper()
	moment, err, _ := strings.Cut(c.line(t, "done "), " ")
	if !strings.Contains(err, "lock lost") {
		t.Errorf("the hold has ended with %q", err)
	}
	nanoseconds, parseErr := strconv.ParseInt(moment, 10, 64)
	must(t, parseErr)
	return time.Duration(nanoseconds)
}

// again has the holder acquire the key once more, with the same manager, and
// release it.
func (c *child) again(t testing.TB) {
	t.Helper()
	_, err := io.WriteString(c.in, "again\n")
	must(t, err)
	c.line(t, "again <nil> <nil>")
}

// play is what this binary does as another process: it holds the key, says so,
// and says when it is told that it does not any more. For each line that it
// reads it takes the key again and releases it.
func play(role string) {
	key := os.Args[1]
	s := setupNamed(os.Getenv(setupVariable))
	db, err := sql.Open(s.driver, s.dsn(os.Getenv(dsnVariable)))
	if err != nil {
		panic(err)
	}
	if role == rawHolderRole {
		conn, err := db.Conn(bg)
		if err != nil {
			panic(err)
		}
		var pid int
		if err := conn.QueryRowContext(bg, fmt.Sprintf(`SELECT pg_backend_pid() FROM pg_advisory_lock(%d)`, pglock.SHA256Key(key))).Scan(&pid); err != nil {
			panic(err)
		}
		fmt.Println("held", pid)
		select {}
	}
	window, err := time.ParseDuration(os.Getenv(windowVariable))
	if err != nil {
		panic(err)
	}
	m := s.new(db, pglock.WithLivenessWindow(window), pglock.WithHolderID("another process"))
	lock, err := m.Acquire(bg, key)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	hold := func(ctx context.Context) {
		fmt.Println("held", lock.Info().PID)
		<-ctx.Done() // what the holder's work sees
		told := monotonic()
		fmt.Println("done", int64(told), lock.Err())
	}
	if role == borrowerRole {
		err := sqllock.RunTx(bg, lock, nil, func(ctx context.Context, _ *sql.Tx) error {
			hold(ctx)
			return nil
		})
		if !errors.Is(err, ports.ErrLost) {
			fmt.Println("a transaction of a lost hold ended with", err)
		}
	} else {
		ctx, cancel := pglock.Context(bg, lock)
		defer cancel()
		hold(ctx)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		lock, err := m.Acquire(bg, key)
		if err != nil {
			fmt.Println(lines.Text(), err, nil)
			continue
		}
		fmt.Println(lines.Text(), err, lock.Release(bg))
	}
}
