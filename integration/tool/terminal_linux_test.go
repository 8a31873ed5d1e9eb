package tool

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// screen is a terminal, and a shell that reads from it.
type screen struct {
	t    *testing.T
	keys *os.File // what is typed
	cmd  *exec.Cmd

	mu    sync.Mutex
	shown bytes.Buffer
}

// onScreen starts an interactive shell on a terminal of its own, with jobs as a
// user has them.
func onScreen(t *testing.T, variables ...string) *screen {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	must(t, unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	must(t, err)
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(t, err)
	defer terminal.Close()

	s := &screen{t: t, keys: keys, cmd: exec.Command("sh", "-i")}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = terminal, terminal, terminal
	s.cmd.Env = append(environment(variables...), "PS1=$ ", "TERM=xterm", "pglock="+binary, "ENV=", "HISTFILE=")
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(t, s.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 4096)
		for {
			n, err := keys.Read(buffer)
			s.mu.Lock()
			s.shown.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil { // no process has the terminal any more
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // what runs on the terminal gets SIGHUP
		_ = s.cmd.Wait()
		<-read
		keys.Close()
	})
	return s
}

func (s *screen) typeIn(text string) {
	s.t.Helper()
	_, err := s.keys.WriteString(text)
	must(s.t, err)
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

// see waits for something to be shown that was not typed.
func (s *screen) see(what string) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the screen: %q", s.text())
		}
	}()
	eventually(s.t, fmt.Sprintf("the screen shows %q", what), func() bool { return strings.Contains(s.text(), what) })
}

func TestColoursAreForTerminalsOnly(t *testing.T) {
	key := t.Name()
	hold(t, key)
	const green = "\x1b[32m"
	s := onScreen(t)
	s.typeIn("$pglock ls " + key + "; echo it is \"over\"\n")
	s.see("it is over")
	if !strings.Contains(s.text(), green+"held") {
		t.Errorf("no colours on a terminal: %q", s.text())
	}
	s = onScreen(t, "NO_COLOR=1")
	s.typeIn("$pglock ls " + key + "; echo it is \"over\"\n")
	s.see("it is over")
	if text := s.text(); strings.Contains(text, "\x1b[3") || !strings.Contains(text, "held") {
		t.Errorf("with NO_COLOR: %q", text)
	}
	if out, _ := start(t, "ls", key).end(0); strings.Contains(out, "\x1b") || !strings.Contains(out, "held") {
		t.Errorf("into a pipe: %q", out)
	}
}

func TestTheKeysOfATerminalReachTheCommand(t *testing.T) {
	key := t.Name()
	s := onScreen(t)
	s.typeIn("$pglock run " + key + " -- sh -c 'echo what is its \"na\"me; read name; echo hello, $name $$.; sleep 600'; echo code=$?\n")
	s.see("what is its name")
	s.typeIn("Ada\n")
	s.see(".\r\n")
	command := number(t, regexp.MustCompile(`hello, Ada (\d+)`).FindStringSubmatch(s.text())[1])
	wantHolders(t, key, 1)

	s.typeIn("\x1a") // suspend
	s.see("Stopped")
	s.typeIn("echo the shell is \"here\"\n")
	s.see("the shell is here")
	wantHolders(t, key, 1)
	s.typeIn("fg; echo later=$?\n")
	eventually(t, "the command has the terminal", func() bool {
		group, err := unix.IoctlGetInt(int(s.keys.Fd()), unix.TIOCGPGRP)
		must(t, err)
		return group == command
	})
	s.typeIn("\x03") // interrupt
	s.see("later=130")
	wantHolders(t, key, 0)
	s.typeIn("echo the shell has the terminal \"again\"\n")
	s.see("the shell has the terminal again")
}

func TestACommandEndsWithAToolThatIsKilled(t *testing.T) {
	p := start(t, "run", t.Name(), "--", "sh", "-c", "echo $$; exec sleep 600")
	command := number(t, p.line())
	p.signal(syscall.SIGKILL)
	drain(p)
	_ = p.cmd.Wait()
	wantGone(t, command)
	wantHolders(t, t.Name(), 0)
}
