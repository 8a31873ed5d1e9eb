//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package main

import (
	"errors"
	"os"
	"os/exec"
)

// Here is no process group: what the command has started is not ended with it,
// and a command that cannot be sent a signal is killed at once.
var (
	ending    = []os.Signal{os.Interrupt}
	forwarded = ending
)

type process struct{ cmd *exec.Cmd }

func start(cmd *exec.Cmd) (*process, error) {
	return &process{cmd}, cmd.Start()
}

func (p *process) wait() (code int, err error) {
	err = p.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

func (p *process) signal(s os.Signal) {
	if s != os.Interrupt && p.cmd.Process.Signal(s) != nil { // the console sends an interrupt to all
		p.kill()
	}
}

func (p *process) kill() { p.cmd.Process.Kill() }

func signalNumber(os.Signal) int { return 2 }
