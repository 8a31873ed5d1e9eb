package main

import "syscall"

// endWithParent has the command killed when this process is gone without having
// ended it: nobody would watch its lock any more, and the server frees that.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
