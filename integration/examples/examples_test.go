//go:build unix

// Package examples builds the programs in examples and the demo, runs them on
// a real server as a user would, and checks what they print, their exit codes,
// and what pg_locks shows meanwhile.
//
// The go command does not see that the tests depend on those programs: run them
// with -count=1, or it may repeat an old result.
package examples

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
const patience = 20 * time.Second

var (
	server *postgres.Server
	// outside is the view of the server from outside the programs.
	outside *pgxpool.Pool
	// bin is the directory of the programs.
	bin string

	must = testkit.Must
)

func TestMain(m *testing.M) {
	os.Exit(postgres.Main(testkit.Run(func() (int, error) { return run(m) }), func(s *postgres.Server) { server = s }))
}

// run runs the tests after building the programs.
func run(m *testing.M) (code int, err error) {
	if bin, err = os.MkdirTemp("", "holdfast-examples-"); err != nil {
		return 0, err
	}
	defer os.RemoveAll(bin)
	args := []string{"build", "-o", bin + string(filepath.Separator)}
	if raceDetected() {
		args = append(args, "-race") // a race makes a program exit with 66
	}
	const module = "github.com/holdfast-go/holdfast"
	args = append(args, module+"/examples/quickstart", module+"/examples/cron", module+"/examples/swapdrivers",
		module+"/examples/cutover", module+"/examples/fencing", module+"/examples/leader", module+"/integration/demo")
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("go %v: %w\n%s", args, err, out)
	}
	if outside, err = pgxpool.New(context.Background(), server.DSN()); err != nil {
		return 0, err
	}
	defer outside.Close()
	return m.Run(), nil
}

// raceDetected reports whether this test has the race detector in it.
func raceDetected() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// program is a running program.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // what it prints; closed at the end of it
	stderr bytes.Buffer
}

// start starts a program on the server. It is killed at the end of the test if
// it still runs.
func start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{t: t, cmd: exec.CommandContext(ctx, filepath.Join(bin, name), args...), lines: make(chan string, 1000)}
	p.cmd.Env = append(os.Environ(),
		"DATABASE_URL="+server.DSN(),
		"GORACE=atexit_sleep_ms=50 "+os.Getenv("GORACE")) // instead of a second at each exit
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		cancel()
		for range p.lines {
		}
		_ = p.cmd.Wait() // it may have been waited for
	})
	go func() {
		defer close(p.lines)
		for scan := bufio.NewScanner(stdout); scan.Scan(); {
			p.lines <- scan.Text()
		}
	}()
	return p
}

// line returns the next line that contains want.
func (p *program) line(want string) string {
	p.t.Helper()
	deadline := time.After(patience)
	var others []string
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				_ = p.cmd.Wait()
				p.t.Fatalf("%s has ended without a line with %q\nstdout: %q\nstderr: %s", p.cmd.Args, want, others, &p.stderr)
			}
			if strings.Contains(line, want) {
				return line
			}
			others = append(others, line)
		case <-deadline:
			p.t.Fatalf("no line with %q from %s within %v, but %q", want, p.cmd.Args, patience, others)
		}
	}
}

// end waits for the end of the program, checks its exit code, and returns the
// lines that are left and what it wrote to standard error.
func (p *program) end(code int) (lines []string, stderr string) {
	p.t.Helper()
	late := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer late.Stop()
	for line := range p.lines {
		lines = append(lines, line)
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		p.t.Fatalf("%s ended with %v, want exit code %d\nstdout: %q\nstderr: %s", p.cmd.Args, p.cmd.ProcessState, code, lines, &p.stderr)
	}
	return lines, p.stderr.String()
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(s))
}

// pid reads the server process that a program has printed.
func pid(t *testing.T, line string) int {
	t.Helper()
	match := regexp.MustCompile(`server process (\d+)`).FindStringSubmatch(line)
	if match == nil {
		t.Fatalf("no server process in %q", line)
	}
	pid, err := strconv.Atoi(match[1])
	must(t, err)
	return pid
}

// session is a server session that has a lock, or waits for it.
type session struct {
	PID     int
	Granted bool
	State   string
}

// sessions are those that have the lock of key or wait for it.
func sessions(t *testing.T, key string) []session {
	t.Helper()
	rows, err := outside.Query(context.Background(), `
		SELECT l.pid, l.granted, coalesce(a.state, '')
		FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND l.objsubid = 1
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND (l.classid::bigint << 32) | l.objid::bigint = $1`, pglock.SHA256Key(key))
	must(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[session])
	must(t, err)
	return found
}

// wantHolder checks that this server process, and no other, has the lock, and
// that it is in this state.
func wantHolder(t *testing.T, key string, pid int, state string) {
	t.Helper()
	var holders []session
	// Whether a session is idle is reported a moment after its answer.
	eventually(t, func() string {
		holders = slices.DeleteFunc(sessions(t, key), func(s session) bool { return !s.Granted })
		if len(holders) == 1 && holders[0] == (session{pid, true, state}) {
			return ""
		}
		return fmt.Sprintf("the lock is held by %+v, want process %d, %s", holders, pid, state)
	})
}

// wantFree checks that nobody has the lock or waits for it, soon.
func wantFree(t *testing.T, key string) {
	t.Helper()
	eventually(t, func() string {
		if found := sessions(t, key); len(found) > 0 {
			return fmt.Sprintf("the lock should be free, but there is %+v", found)
		}
		return ""
	})
}

// wantWaiters checks that so many sessions wait for the lock, soon.
func wantWaiters(t *testing.T, key string, want int) {
	t.Helper()
	eventually(t, func() string {
		n := 0
		for _, s := range sessions(t, key) {
			if !s.Granted {
				n++
			}
		}
		if n != want {
			return fmt.Sprintf("%d sessions wait for the lock, want %d", n, want)
		}
		return ""
	})
}

// eventually asks until the answer is "".
func eventually(t *testing.T, wrong func() string) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		problem := wrong()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", patience, problem)
		}
	}
}

// terminate ends a server session as an operator does.
func terminate(t *testing.T, pid int) {
	t.Helper()
	var ok bool
	must(t, outside.QueryRow(context.Background(), "SELECT pg_terminate_backend($1)", pid).Scan(&ok))
	if !ok {
		t.Fatalf("there is no server process %d", pid)
	}
}

// want checks that lines are as told, each by its end.
func want(t *testing.T, lines []string, ends ...string) {
	t.Helper()
	ok := len(lines) == len(ends)
	for i := 0; ok && i < len(ends); i++ {
		ok = strings.HasSuffix(lines[i], ends[i])
	}
	if !ok {
		t.Errorf("got the lines %q, want such that end in %q", lines, ends)
	}
}

func TestQuickstartRunsOnOneReplicaAndIsSkippedOnTheOthers(t *testing.T) {
	key := t.Name()
	holder := start(t, "quickstart", "-job", key, "-for=1m")
	holderPID := pid(t, holder.line(" running"))
	wantHolder(t, key, holderPID, "idle")
	for range 2 {
		lines, _ := start(t, "quickstart", "-job", key).end(0)
		want(t, lines, " skipped: someone else is running it")
	}
	wantHolder(t, key, holderPID, "idle")

	lines, _ := start(t, "quickstart", "-job", "another "+key, "-for=1ms").end(0)
	if len(lines) != 2 || !strings.HasSuffix(lines[1], " done") {
		t.Errorf("another job is not run: %q", lines)
	}
}

func TestQuickstartTellsItsTimes(t *testing.T) {
	before := time.Now()
	lines, _ := start(t, "quickstart", "-job", t.Name(), "-name=me", "-wait", "-for=30ms").end(0)
	var times []time.Time
	for _, line := range lines {
		stamp, rest, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || at.Location() != time.UTC || !strings.HasPrefix(rest, "me ") {
			t.Errorf("%q does not begin with a UTC time and the worker's name: %v", line, err)
		}
		times = append(times, at)
	}
	if len(lines) != 3 || !strings.Contains(lines[0], " waiting") || !strings.Contains(lines[1], " running: ") || !strings.HasSuffix(lines[2], " done") {
		t.Fatalf("got %q, want that it waits, runs and is done", lines)
	}
	if times[0].Before(before.Round(0)) || times[1].Before(times[0]) || times[2].Sub(times[1]) < 30*time.Millisecond {
		t.Errorf("times are out of order: %v", times)
	}
}

func TestQuickstartTakesOverFromAKilledReplica(t *testing.T) {
	key := t.Name()
	holder := start(t, "quickstart", "-job", key, "-for=1m")
	holderPID := pid(t, holder.line(" running"))
	waiter := start(t, "quickstart", "-job", key, "-wait", "-for=1m")
	waiter.line(" waiting")
	wantWaiters(t, key, 1)
	wantHolder(t, key, holderPID, "idle")

	holder.signal(syscall.SIGKILL)
	waiterPID := pid(t, waiter.line(" running"))
	wantHolder(t, key, waiterPID, "idle")
	holder.end(-1)
}

func TestQuickstartStopsOnASignalAndGivesTheLockBack(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			key := t.Name()
			holder := start(t, "quickstart", "-job", key, "-for=1m")
			holderPID := pid(t, holder.line(" running"))
			leaver := start(t, "quickstart", "-job", key, "-wait")
			leaver.line(" waiting")
			wantWaiters(t, key, 1)

			leaver.signal(sig)
			leaver.line(" cancelled")
			if _, stderr := leaver.end(1); !strings.Contains(stderr, "quickstart: acquire ") {
				t.Errorf("standard error of the waiting replica: %q", stderr)
			}
			wantWaiters(t, key, 0)
			wantHolder(t, key, holderPID, "idle")

			holder.signal(sig)
			holder.line(" stopping: ")
			lines, _ := holder.end(1)
			want(t, lines, " cancelled")
			wantFree(t, key)
		})
	}
}

func TestQuickstartStopsWhenItsLockIsLost(t *testing.T) {
	key := t.Name()
	holder := start(t, "quickstart", "-job", key, "-for=1m")
	terminate(t, pid(t, holder.line(" running")))
	holder.line(" stopping: lock lost")
	lines, stderr := holder.end(1)
	want(t, lines, " lost: someone else may be running it now")
	if !strings.Contains(stderr, "lock lost") {
		t.Errorf("standard error: %q", stderr)
	}
	wantFree(t, key)
}

func TestAProgramThatCannotConnectSaysSo(t *testing.T) {
	for _, name := range []string{"quickstart", "cron", "swapdrivers", "cutover", "fencing"} {
		t.Run(name, func(t *testing.T) {
			lines, stderr := start(t, name, "-dsn=postgres://nobody:secret@127.0.0.1:1/nowhere?sslmode=disable").end(1)
			if len(lines) > 0 || !strings.HasPrefix(stderr, name+": ") || !strings.Contains(stderr, "refused") || strings.Contains(stderr, "secret") {
				t.Errorf("stdout %q, stderr %q", lines, stderr)
			}
		})
	}
}

func TestAProgramRefusesAnUnknownChoice(t *testing.T) {
	for name, arg := range map[string]string{"cron": "-lock=row", "swapdrivers": "-driver=mysql"} {
		t.Run(name, func(t *testing.T) {
			if _, stderr := start(t, name, arg).end(1); !strings.Contains(stderr, ": want ") {
				t.Errorf("stderr %q does not say what there is", stderr)
			}
		})
	}
}

func TestCronRunsOnOneReplicaWhicheverKindOfLockItTakes(t *testing.T) {
	states := map[string]string{"session": "idle", "tx": "idle in transaction"}
	for kind, state := range states {
		t.Run(kind, func(t *testing.T) {
			key := t.Name()
			lines, _ := start(t, "cron", "-lock", kind, "-job", key, "-for=1ms").end(0)
			if len(lines) != 2 || !strings.HasPrefix(lines[0], "running: "+key) || lines[1] != "done" {
				t.Errorf("the job alone: %q", lines)
			}
			wantFree(t, key)

			holder := start(t, "cron", "-lock", kind, "-job", key, "-for=1m")
			holder.line("running: ")
			held := sessions(t, key)
			if len(held) != 1 {
				t.Fatalf("the lock is held by %+v, want one session", held)
			}
			wantHolder(t, key, held[0].PID, state)
			for other := range states {
				lines, _ := start(t, "cron", "-lock", other, "-job", key).end(0)
				want(t, lines, "skipped: another replica is running it")
			}
			wantHolder(t, key, held[0].PID, state)

			holder.signal(syscall.SIGTERM)
			lines, stderr := holder.end(1)
			if len(lines) > 0 || !strings.HasPrefix(stderr, "cron: ") {
				t.Errorf("after SIGTERM: stdout %q, stderr %q", lines, stderr)
			}
			wantFree(t, key)
		})
	}
}

var drivers = []string{"pq", "pgx", "pgxpool"}

func TestSwapdriversTakesOneLockThroughAnyDriver(t *testing.T) {
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			key := t.Name()
			holder := start(t, "swapdrivers", "-driver", driver, "-key", key, "-for=1m")
			line := holder.line("held: ")
			for _, part := range []string{strconv.Quote(key), "exclusive", " through " + driver + ",", fmt.Sprintf("lock ID %d)", pglock.SHA256Key(key))} {
				if !strings.Contains(line, part) {
					t.Errorf("%q does not contain %q", line, part)
				}
			}
			wantHolder(t, key, pid(t, line), "idle")
			for _, other := range drivers {
				lines, _ := start(t, "swapdrivers", "-driver", other, "-key", key).end(0)
				want(t, lines, fmt.Sprintf("held: someone else holds %q", key))
			}
			wantHolder(t, key, pid(t, line), "idle")

			holder.signal(syscall.SIGTERM)
			lines, _ := holder.end(0)
			want(t, lines, "released")
			wantFree(t, key)
		})
	}
}

func TestSwapdriversSaysThatItsLockIsLost(t *testing.T) {
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			key := t.Name()
			holder := start(t, "swapdrivers", "-driver", driver, "-key", key, "-for=1m")
			terminate(t, pid(t, holder.line("held: ")))
			lines, stderr := holder.end(1)
			if len(lines) > 0 || !strings.Contains(stderr, "lock lost") {
				t.Errorf("stdout %q, stderr %q; want that the lock is lost", lines, stderr)
			}
			wantFree(t, key)
		})
	}
}

func TestFencingKeepsAStaleHolderFromWriting(t *testing.T) {
	lines, _ := start(t, "fencing").end(0)
	got := strings.Join(lines, "\n")
	story := regexp.MustCompile(`^first writes with token \d+\nsecond writes with token \d+\n` +
		`first is refused by its token\nfirst is refused by RunTx, without a token\nsecond writes through RunTx$`)
	if !story.MatchString(got) {
		t.Errorf("unexpected story:\n%s", got)
	}
	wantFree(t, "invoice-export")
}

func TestCutoverPlaysAllItsScenes(t *testing.T) {
	lines, _ := start(t, "cutover").end(0)
	got := strings.Join(lines, "\n")
	const (
		onTarget = `  now:    route target, state migrated, writes paused: false\n`
		onSource = `  now:    route source, state dual_write, writes paused: false\n?`
		success  = `  result: success true, rolled back false, writes paused for [^0\n]\S*\n`
		undone   = `  result: success false, rolled back true, writes paused for [^0\n]\S*\n`
		untried  = `  result: success false, rolled back false, writes paused for 0s\n`
		ready    = `  probe:  ready\n`
		lag      = `lag too large: the target is 500 events behind, at most 10 are allowed\n`
		held     = `cutover lock is already held by another process\n`
		copying  = `wrong routing state: bulk_copy, want dual_write\n`
	)
	story := regexp.MustCompile(`^` +
		`A tenant that is ready\n` + ready + success + onTarget +
		`A tenant whose target is too far behind\n  probe:  ` + lag + undone + `  reason: check the lag: ` + lag + onSource +
		`A tenant that is still being copied\n  probe:  ` + copying + untried + `  reason: ` + copying + `  now:    route source, state bulk_copy, writes paused: false\n` +
		`A tenant that another instance is working on\n  probe:  ` + held + untried + `  reason: ` + held + onSource +
		`A second tenant meanwhile\n` + ready + success + onTarget +
		`A tenant whose pause gets too long\n` + ready + undone + `  reason: [a-z ]+: the pause budget is spent\n` + onSource +
		`$`)
	if !story.MatchString(got) {
		t.Errorf("unexpected story:\n%s", got)
	}
	var schemas int
	must(t, outside.QueryRow(context.Background(), `SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'holdfast\_cutover\_%'`).Scan(&schemas))
	if schemas != 0 {
		t.Errorf("%d schemas are left", schemas)
	}
}

func TestTheDemoPasses(t *testing.T) {
	begin := time.Now()
	lines, _ := start(t, "demo").end(0)
	story := strings.Join(lines, "\n")
	for part, times := range map[string]int{" running: ": 4, " skipped: ": 2, " cancelled": 2, " got the lock ": 3, " after the kill -9 of ": 2, "PASS": 1, "!!!": 0} {
		if n := strings.Count(story, part); n != times {
			t.Errorf("the demo says %q %d times, want %d", part, n, times)
		}
	}
	t.Logf("in %v:\n%s", time.Since(begin).Round(time.Millisecond), story)
}

func TestAnInterruptedDemoLeavesNoProcessBehind(t *testing.T) {
	// All that the demo starts is in its process group.
	p := start(t, "demo")
	if group, err := syscall.Getpgid(p.cmd.Process.Pid); err != nil || group != p.cmd.Process.Pid {
		t.Fatalf("the demo is in the process group %d (%v)", group, err)
	}
	p.line("four are waiting")
	p.signal(os.Interrupt)
	if _, stderr := p.end(1); !strings.Contains(stderr, "interrupt") {
		t.Errorf("stderr %q does not say why", stderr)
	}
	if err := syscall.Kill(-p.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("asked for what is left of the demo's processes: %v, want that there are none", err)
	}
}
