package postgres

import "syscall"

// endWithParent has the kernel shut the server down, as in a crash, when the
// thread that started it ends.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
