//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// ending are the signals that ask a process to end, and forwarded are all that
// go to the command.
var (
	ending    = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}
	forwarded = append([]os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}, ending...)
)

// terminal is the file descriptor of the terminal, if there is one.
const terminal = 0

// process is a command in a process group of its own, so that what it starts
// gets its signals, too.
type process struct {
	pid int
	// foreground: the command has the terminal, as a job of a shell has.
	foreground bool
}

// start starts a command. On a terminal it gets that, and so the signals of its
// keys. It is to be called on the main thread.
func start(cmd *exec.Cmd) (*process, error) {
	p := &process{foreground: inForeground()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Foreground: p.foreground, Ctty: terminal}
	endWithParent(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// inForeground reports whether we have a terminal to give away. Where our output
// goes elsewhere, the terminal may be for who reads it.
func inForeground() bool {
	if !term.IsTerminal(terminal) || !term.IsTerminal(1) {
		return false
	}
	group, err := unix.IoctlGetInt(terminal, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// wait waits for the end of the command, and returns its exit code. When the
// command stops on its terminal, we stop, too, for the shell to notice.
func (p *process) wait() (code int, err error) {
	options := 0
	if p.foreground {
		options = syscall.WUNTRACED
		defer takeTerminal(unix.Getpgrp())
	}
	for {
		var status syscall.WaitStatus
		switch _, err := syscall.Wait4(p.pid, &status, options, nil); {
		case err == syscall.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("wait4", err)
		case status.Stopped():
			p.suspend()
		case status.Signaled():
			return exitSignal + int(status.Signal()), nil
		default:
			return status.ExitStatus(), nil
		}
	}
}

// suspend stops us as the terminal's suspend key does, until we are continued.
func (p *process) suspend() {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	takeTerminal(unix.Getpgrp())
	syscall.Kill(0, syscall.SIGTSTP)
	<-continued
	if inForeground() {
		takeTerminal(p.pid)
	}
	syscall.Kill(-p.pid, syscall.SIGCONT)
}

// takeTerminal makes a process group the one that has the terminal.
func takeTerminal(group int) {
	signal.Ignore(syscall.SIGTTOU) // it stops who does this in the background
	defer signal.Reset(syscall.SIGTTOU)
	unix.IoctlSetPointerInt(terminal, unix.TIOCSPGRP, group)
}

// signal sends a signal to the command and what it has started.
func (p *process) signal(s os.Signal) {
	syscall.Kill(-p.pid, s.(syscall.Signal))
	syscall.Kill(-p.pid, syscall.SIGCONT) // one that is stopped must get it, too
}

// kill ends the command and what it has started.
func (p *process) kill() { syscall.Kill(-p.pid, syscall.SIGKILL) }

// signalNumber is the number of one of the forwarded signals.
func signalNumber(s os.Signal) int { return int(s.(syscall.Signal)) }
