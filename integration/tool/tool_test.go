//go:build unix

// Package tool builds the command-line tool, runs it on a real server as a user
// would, and checks what it prints, its exit codes, and what pg_locks shows
// meanwhile.
//
// The go command does not see that the tests depend on the tool: run them with
// -count=1, or it may repeat an old result.
package tool

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/integration/testkit"
	"github.com/holdfast-go/holdfast/pglock"
)

// patience is how long a test waits for what must happen sooner or later.
const patience = 30 * time.Second

// The exit codes that the tool documents.
const (
	exitWrong       = 1
	exitUsage       = 64
	exitUnavailable = 69
	exitConflict    = 75
	exitLost        = 76
)

var (
	bg     = context.Background()
	server *postgres.Server
	// outside is the view of the server from outside the tool.
	outside *pgxpool.Pool
	// binary is the tool.
	binary string

	must       = testkit.Must
	eventually = testkit.Within(patience)
)

func TestMain(m *testing.M) {
	os.Exit(postgres.Main(testkit.Run(func() (int, error) { return run(m) }), func(s *postgres.Server) { server = s }))
}

// run runs the tests after building the tool.
func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "holdfast-tool-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "pglock")
	args := []string{"build", "-o", binary}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race") // a race makes the tool exit with 66
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Dir = filepath.Join("..", "..", "pglock", "cmd", "pglock")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	if outside, err = pgxpool.New(bg, server.DSN()); err != nil {
		return 0, err
	}
	defer outside.Close()
	return m.Run(), nil
}

// process is the tool, running.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // what it and its command print; closed at the end of it
	stderr bytes.Buffer
}

// environment is that of the tool: this server, and variables that override it.
func environment(variables ...string) []string {
	env := append(os.Environ(),
		"DATABASE_URL="+server.DSN(),
		"GORACE=atexit_sleep_ms=50 "+os.Getenv("GORACE")) // instead of a second at each exit
	return append(env, variables...)
}

// start starts the tool. At the end of the test it is killed if it still runs.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startIn(t, environment(), args...)
}

func startIn(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, args...), lines: make(chan string, 1000)}
	p.cmd.Env = env
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a shell does
	stdout, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	go func() {
		defer close(p.lines)
		for scan := bufio.NewScanner(stdout); scan.Scan(); {
			p.lines <- scan.Text()
		}
	}()
	return p
}

// line returns the next line.
func (p *process) line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			_ = p.cmd.Wait()
			p.t.Fatalf("%q has ended without a line; stderr: %s", p.cmd.Args, &p.stderr)
		}
		return line
	case <-time.After(patience):
		p.t.Fatalf("no line from %q", p.cmd.Args)
	}
	return ""
}

// end waits for the end of the tool, checks its exit code, and returns what it
// has written since.
func (p *process) end(code int) (stdout, stderr string) {
	p.t.Helper()
	late := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	for line := range p.lines {
		stdout += line + "\n"
	}
	var exit *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	stderr = p.stderr.String()
	if p.cmd.ProcessState.ExitCode() != code {
		p.t.Fatalf("%q ended with %v, want exit code %d\nstdout: %s\nstderr: %s", p.cmd.Args, p.cmd.ProcessState, code, stdout, stderr)
	}
	return stdout, stderr
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(s))
}

// hold starts a run of the tool that holds key until its test ends, and waits
// until its command runs.
func hold(t *testing.T, key string, flags ...string) *process {
	t.Helper()
	args := append([]string{"run", key}, flags...)
	p := start(t, append(args, "--", "sh", "-c", "echo running; exec sleep 600")...)
	t.Cleanup(func() { _ = p.cmd.Process.Signal(syscall.SIGTERM); drain(p) })
	if line := p.line(); line != "running" {
		t.Fatal(line)
	}
	return p
}

// drain waits for the end of what the tool prints.
func drain(p *process) {
	for range p.lines {
	}
}

// session is a server session that has a lock, or waits for it.
type session struct {
	pid     int
	granted bool
}

// What pg_locks says in objsubid of the two spaces of locks.
const (
	ofBigint = 1
	ofPair   = 2
)

// sessionsOf are those that have the lock of this bigint, or wait for it.
func sessionsOf(t *testing.T, id int64) []session {
	t.Helper()
	return sessionsIn(t, server.DSN(), ofBigint, id)
}

// sessionsIn are those of a database and a space of locks; id has the halves that
// pg_locks shows.
func sessionsIn(t *testing.T, dsn string, space int, id int64) (found []session) {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	must(t, err)
	rows, err := outside.Query(bg, `
		SELECT pid, granted FROM pg_locks
		WHERE locktype = 'advisory' AND objsubid = $1
			AND database = (SELECT oid FROM pg_database WHERE datname = $2)
			AND (classid::bigint << 32) | objid::bigint = $3`, space, config.Database, id)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var s session
		must(t, rows.Scan(&s.pid, &s.granted))
		found = append(found, s)
	}
	must(t, rows.Err())
	return found
}

// count counts the holders of a key and those who wait.
func count(t *testing.T, key string) (holders, waiters int) {
	t.Helper()
	for _, s := range sessionsOf(t, pglock.SHA256Key(key)) {
		if s.granted {
			holders++
		} else {
			waiters++
		}
	}
	return holders, waiters
}

func wantHolders(t *testing.T, key string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d hold %q", want, key), func() bool {
		holders, _ := count(t, key)
		return holders == want
	})
}

func wantWaiters(t *testing.T, key string, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d wait for %q", want, key), func() bool {
		_, waiters := count(t, key)
		return waiters == want
	})
}

// holderOf is the server process that holds key.
func holderOf(t *testing.T, key string) int {
	t.Helper()
	for _, s := range sessionsOf(t, pglock.SHA256Key(key)) {
		if s.granted {
			return s.pid
		}
	}
	t.Fatalf("nobody holds %q", key)
	return 0
}

// terminate ends the server session that holds key, as an operator does.
func terminate(t *testing.T, key string) {
	t.Helper()
	var ok bool
	must(t, outside.QueryRow(bg, "SELECT pg_terminate_backend($1)", holderOf(t, key)).Scan(&ok))
	if !ok {
		t.Fatal("there was no such server process")
	}
}

// number reads the number that a line consists of.
func number(t *testing.T, line string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(line))
	must(t, err)
	return n
}

// wantGone waits for the end of a process that is not a child of ours.
func wantGone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return true
		}
		// It may wait for a parent that looks for it late.
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && strings.Contains(string(stat), ") Z ")
	})
}

// oneLine checks that a message is one line of the tool that contains parts.
func oneLine(t *testing.T, message string, parts ...string) {
	t.Helper()
	if !strings.HasPrefix(message, "pglock: ") || strings.Count(message, "\n") != 1 {
		t.Errorf("%q is not one line of the tool", message)
	}
	for _, part := range parts {
		if !strings.Contains(message, part) {
			t.Errorf("%q does not say %q", message, part)
		}
	}
}
