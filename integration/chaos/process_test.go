//go:build linux

package chaos

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child that ends with this process, however this one ends.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended and been waited for
	err   error         // how it ended; read it after ended
}

// start starts cmd, which gets last when this process ends.
func start(cmd *exec.Cmd, last syscall.Signal) (*process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = last
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that forked ends, so
		// this one stays.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, <-started
}

// signal sends sig, which a process that has ended does not mind.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// end sends sig and waits until the process has ended.
func (p *process) end(sig syscall.Signal) error {
	err := p.signal(sig)
	if err == nil {
		<-p.ended
	}
	return err
}
