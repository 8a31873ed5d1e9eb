//go:build !linux

package postgres

import "syscall"

// endWithParent does nothing where the kernel has no such service. An interrupt
// from the terminal reaches the server all the same: it is in this process's
// group.
func endWithParent(*syscall.SysProcAttr) {}
