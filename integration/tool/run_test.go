//go:build unix

package tool

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
)

func TestOneOfTwentyRunsAtATime(t *testing.T) {
	const n = 20
	key, dir := t.Name(), t.TempDir()
	log := filepath.Join(dir, "log")
	// mkdir fails if another command is between its mkdir and its rmdir.
	script := `mkdir "$0/alone" || exit 99; echo "$PGLOCK_TOKEN" >>"$0/log"; sleep 0.05; rmdir "$0/alone"`
	var all []*process
	for range n {
		all = append(all, start(t, "run", key, "--fencing", "--", "sh", "-c", script, dir))
	}
	busy, most, line := 0, 0, 0
	eventually(t, "all have run", func() bool {
		holders, waiters := count(t, key)
		if holders > 0 {
			busy++
		}
		most, line = max(most, holders), max(line, waiters)
		text, _ := os.ReadFile(log)
		return strings.Count(string(text), "\n") == n
	})
	for _, p := range all {
		if out, stderr := p.end(0); out+stderr != "" {
			t.Errorf("stdout %q, stderr %q", out, stderr)
		}
	}
	if most != 1 || line == 0 || busy == 0 {
		t.Errorf("at most %d held the lock at once, and %d waited, want 1 and some; seen held %d times", most, line, busy)
	}
	text, err := os.ReadFile(log)
	must(t, err)
	tokens := strings.Fields(string(text))
	values := make([]int, len(tokens))
	for i, token := range tokens {
		values[i] = number(t, token)
	}
	if len(values) != n || !slices.IsSorted(values) || len(slices.Compact(slices.Clone(values))) != n {
		t.Errorf("the tokens, in the order of the runs, do not grow: %v", values)
	}
	wantHolders(t, key, 0)
}

func TestSkipIsQuiet(t *testing.T) {
	key := t.Name()
	hold(t, key)
	for _, flags := range [][]string{{"--skip"}, {"--skip", "--wait=500ms"}} {
		args := slices.Concat([]string{"run", key}, flags, []string{"--", "echo", "ran"})
		if out, stderr := start(t, args...).end(0); out+stderr != "" {
			t.Errorf("%v: stdout %q, stderr %q", flags, out, stderr)
		}
	}
	if out, _ := start(t, "run", "another "+key, "--skip", "--", "echo", "ran").end(0); out != "ran\n" {
		t.Errorf("a free lock: %q", out)
	}
	wantHolders(t, key, 1)
}

func TestAConflictHasAnExitCodeAndSaysWhoItIsWith(t *testing.T) {
	key := t.Name()
	hold(t, key, "--holder=the-other-host")
	for _, c := range []struct {
		flags []string
		code  int
	}{
		{[]string{"--wait=0"}, exitConflict},
		{[]string{"-w", "0s", "-E", "9"}, 9},
		{[]string{"--timeout=500ms", "--conflict-exit-code=0"}, 0},
	} {
		args := slices.Concat([]string{"run", key}, c.flags, []string{"--", "echo", "ran"})
		out, stderr := start(t, args...).end(c.code)
		if out != "" {
			t.Errorf("%v: %q", c.flags, out)
		}
		oneLine(t, stderr, key, "the-other-host", "pglock evict", "--wait")
	}
}

func TestTimeoutBoundsTheWait(t *testing.T) {
	key := t.Name()
	holder := hold(t, key)
	began := time.Now()
	start(t, "run", key, "--timeout=700ms", "--", "true").end(exitConflict)
	if took := time.Since(began); took < 700*time.Millisecond {
		t.Errorf("gave up after %v", took)
	}
	later := start(t, "run", key, "--timeout=1m", "--", "echo", "ran")
	wantWaiters(t, key, 1)
	holder.signal(syscall.SIGTERM)
	holder.end(128 + int(syscall.SIGTERM))
	if out, _ := later.end(0); out != "ran\n" {
		t.Errorf("%q", out)
	}
}

func TestExitCodesPass(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600)) // not to be executed
	for _, c := range []struct {
		command []string
		code    int
	}{
		{[]string{"true"}, 0},
		{[]string{"sh", "-c", "exit 3"}, 3},
		{[]string{"sh", "-c", "exit 255"}, 255},
		{[]string{"sh", "-c", "kill -KILL $$"}, 137},
		{[]string{"sh", "-c", "kill -TERM $$"}, 143},
		{[]string{"there-is-no-such-command"}, 127},
		{[]string{"/there/is/none"}, 127},
		{[]string{script}, 126},
	} {
		_, stderr := start(t, append([]string{"run", t.Name(), "--"}, c.command...)...).end(c.code)
		if c.code == 126 || c.code == 127 {
			oneLine(t, stderr, c.command[0])
		} else if stderr != "" {
			t.Errorf("%q: stderr %q", c.command, stderr)
		}
	}
	wantHolders(t, t.Name(), 0)
}

func TestInputAndOutputAreTheCommands(t *testing.T) {
	p := start(t, "run", t.Name(), "--", "sh", "-c", "echo out; echo err >&2")
	if out, stderr := p.end(0); out != "out\n" || stderr != "err\n" {
		t.Errorf("stdout %q, stderr %q", out, stderr)
	}
	cmd := exec.Command(binary, "run", t.Name(), "--", "cat")
	cmd.Env, cmd.Stdin = environment(), strings.NewReader("in")
	out, err := cmd.Output()
	if must(t, err); string(out) != "in" {
		t.Errorf("stdin came as %q", out)
	}
}

func TestSignalsReachTheCommand(t *testing.T) {
	// Under nohup, who is started ignores SIGHUP; but not where it is awaited.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	for _, s := range []struct {
		name   string
		signal syscall.Signal
	}{{"INT", syscall.SIGINT}, {"TERM", syscall.SIGTERM}, {"HUP", syscall.SIGHUP}, {"QUIT", syscall.SIGQUIT}, {"USR1", syscall.SIGUSR1}, {"USR2", syscall.SIGUSR2}} {
		t.Run(s.name, func(t *testing.T) {
			key := t.Name()
			p := start(t, "run", key, "--", "sh", "-c", `exec 2>/dev/null; trap 'echo got it; exit 5' `+s.name+`; echo ready; while :; do sleep 0.01; done`)
			if line := p.line(); line != "ready" {
				t.Fatal(line)
			}
			p.signal(s.signal)
			if out, stderr := p.end(5); out != "got it\n" || stderr != "" {
				t.Errorf("stdout %q, stderr %q", out, stderr)
			}
			wantHolders(t, key, 0)
		})
	}
}

func TestACommandThatIgnoresASignalGoesOnUnderItsLock(t *testing.T) {
	key, file := t.Name(), filepath.Join(t.TempDir(), "go")
	p := start(t, "run", key, "--", "sh", "-c", `trap 'echo no' TERM; echo ready; while ! [ -e "$0" ]; do sleep 0.01; done; exit 7`, file)
	p.line()
	p.signal(syscall.SIGTERM)
	if line := p.line(); line != "no" {
		t.Error(line)
	}
	wantHolders(t, key, 1)
	must(t, os.WriteFile(file, nil, 0o600))
	p.end(7)
	wantHolders(t, key, 0)
}

func TestASignalLeavesNoOrphan(t *testing.T) {
	for name, child := range map[string]string{
		"obedient": `(echo ready; exec sleep 600)`,
		"stubborn": `(trap '' TERM; echo ready; exec sleep 600)`,
	} {
		t.Run(name, func(t *testing.T) {
			key := t.Name()
			p := start(t, "run", key, "--", "sh", "-c", child+` & echo $!; echo $$; wait`)
			var pids []int
			for range 3 {
				if line := p.line(); line != "ready" {
					pids = append(pids, number(t, line))
				}
			}
			p.signal(syscall.SIGTERM)
			p.end(128 + int(syscall.SIGTERM))
			for _, pid := range pids {
				wantGone(t, pid)
			}
			wantHolders(t, key, 0)
		})
	}
}

func TestASignalEndsTheWait(t *testing.T) {
	key := t.Name()
	hold(t, key)
	p := start(t, "run", key, "--", "echo", "ran")
	wantWaiters(t, key, 1)
	p.signal(syscall.SIGINT)
	out, stderr := p.end(128 + int(syscall.SIGINT))
	if out != "" {
		t.Error(out)
	}
	oneLine(t, stderr, "interrupt", key, "not run")
	wantWaiters(t, key, 0)
	wantHolders(t, key, 1)
}

func TestALossEndsTheCommand(t *testing.T) {
	key := t.Name()
	p := start(t, "run", key, "--", "sh", "-c", `exec 2>/dev/null; trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.01; done`)
	p.line()
	terminate(t, key)
	out, stderr := p.end(exitLost)
	if out != "told\n" {
		t.Errorf("stdout %q", out)
	}
	oneLine(t, stderr, key, "lost", "ended with code 0")
}

func TestALossKillsACommandThatDoesNotListen(t *testing.T) {
	key := t.Name()
	p := start(t, "run", key, "--grace=200ms", "--", "sh", "-c", `trap '' TERM; sleep 600 & echo $!; echo $$; wait; wait`)
	child, command := number(t, p.line()), number(t, p.line())
	terminate(t, key)
	_, stderr := p.end(exitLost)
	oneLine(t, stderr, key, "lost", "ended with code 137")
	wantGone(t, child)
	wantGone(t, command)
}

func TestALockIsHeldAtLeastSoLong(t *testing.T) {
	key := t.Name()
	p := start(t, "run", key, "--hold-at-least=10m", "--", "sh", "-c", "echo $$")
	wantGone(t, number(t, p.line()))
	wantHolders(t, key, 1)
	start(t, "run", key, "--skip", "--", "false").end(0)
	p.signal(syscall.SIGTERM) // the command is done, so this only ends the hold
	p.end(0)
	wantHolders(t, key, 0)

	began := time.Now()
	start(t, "run", key, "--hold-at-least=500ms", "--", "true").end(0)
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("ended after %v", took)
	}
	wantHolders(t, key, 0)

	p = start(t, "run", key, "--hold-at-least=10m", "--", "sh", "-c", "echo $$")
	wantGone(t, number(t, p.line()))
	terminate(t, key)
	_, stderr := p.end(exitLost)
	oneLine(t, stderr, key, "lost")
}

func TestSharedLocksShare(t *testing.T) {
	key := t.Name()
	hold(t, key, "--shared")
	hold(t, key, "-s")
	wantHolders(t, key, 2)
	start(t, "run", key, "--wait=0", "--", "true").end(exitConflict)
}

func TestTheEnvironmentHasTheKeyAndTheToken(t *testing.T) {
	const script = `echo "$PGLOCK_KEY/${PGLOCK_TOKEN-none}"`
	key := t.Name() + " with spaces"
	if out, _ := start(t, "run", key, "--", "sh", "-c", script).end(0); out != key+"/none\n" {
		t.Errorf("without fencing: %q", out)
	}
	out, _ := start(t, "run", key, "--fencing", "--", "sh", "-c", script).end(0)
	if rest, ok := strings.CutPrefix(out, key+"/"); !ok || number(t, rest) <= 0 {
		t.Errorf("with fencing: %q", out)
	}
	// One within another does not pass the outer one's on.
	out, _ = start(t, "run", key, "--fencing", "--", binary, "run", "inner "+key, "--", "sh", "-c", script).end(0)
	if out != "inner "+key+"/none\n" {
		t.Errorf("one within another: %q", out)
	}
}

func TestTheLockIsThatOfTheLibrary(t *testing.T) {
	key := t.Name()
	for _, c := range []struct {
		flags []string
		id    int64
	}{
		{nil, pglock.SHA256Key(key)},
		{[]string{"--namespace=app:"}, pglock.SHA256Key("app:" + key)},
		{[]string{"--scheme=fnv1a"}, pglock.FNV1aKey(key)},
	} {
		hold(t, key, c.flags...)
		if found := sessionsOf(t, c.id); len(found) != 1 || !found[0].granted {
			t.Errorf("%v: %+v", c.flags, found)
		}
	}
	start(t, "run", "--scheme=number", "--", "-42", "--", "sh", "-c", "echo running; exec sleep 600").line()
	if found := sessionsOf(t, -42); len(found) != 1 {
		t.Errorf("%+v", found)
	}
}

func TestAWrongCommandLineIsRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"run"}, "there is no key"},
		{[]string{"run", "k"}, "there is no command"},
		{[]string{"run", "k", "true"}, "-- before the command"},
		{[]string{"run", "k", "l", "--", "true"}, "one key"},
		{[]string{"run", "--", "true"}, "there is no key"},
		{[]string{"run", "k", "--"}, "there is no command after --"},
		{[]string{"run", "k", "--wait=-5s", "--", "true"}, "negative"},
		{[]string{"run", "k", "--wait=soon", "--", "true"}, "soon"},
		{[]string{"run", "k", "-E", "256", "--", "true"}, "0 to 255"},
		{[]string{"run", "k", "--scheme=number", "--", "true"}, "not a number"},
		{[]string{"run", "1", "--scheme=pair", "--", "true"}, "not two signed numbers of 32 bits"},
		{[]string{"ls", "1,2", "3,", "--scheme=pair"}, `"3,"`},
		{[]string{"evict", "1,2147483648", "--scheme=pair"}, "32 bits"},
		{[]string{"run", "k", "--nosuch", "--", "true"}, "--nosuch"},
		{[]string{"ls", "--scheme=md4"}, "sha256, fnv1a"},
		{[]string{"ls", "--every=0s"}, "not positive"},
		{[]string{"evict"}, "one key"},
		{[]string{"id", "a", "b"}, "one key"},
		{[]string{"doctor", "now"}, "no arguments"},
		{[]string{"doctor", "--connections=-1"}, "negative"},
		{[]string{"dcotor"}, "did you mean doctor"},
		{[]string{"ls", "--database-url=postgres://u:secret@host:port/"}, "--database-url"},
	} {
		out, stderr := start(t, c.args...).end(exitUsage)
		if out != "" || strings.Contains(stderr, "secret") {
			t.Errorf("%q: stdout %q, stderr %q", c.args, out, stderr)
		}
		oneLine(t, stderr, c.say, "--help")
	}
}

func TestADatabaseThatCannotBeReachedIsSaid(t *testing.T) {
	const nowhere = "--database-url=postgres://nobody:secret@127.0.0.1:1/nowhere?sslmode=disable"
	for _, args := range [][]string{{"run", "k", nowhere, "--", "echo", "ran"}, {"ls", nowhere}, {"evict", "k", nowhere}, {"doctor", nowhere}} {
		out, stderr := start(t, args...).end(exitUnavailable)
		if out != "" || strings.Contains(stderr, "secret") {
			t.Errorf("%q: stdout %q, stderr %q", args, out, stderr)
		}
		oneLine(t, stderr, "refused")
	}
}
