//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package main

import "syscall"

// endWithParent does nothing: only Linux can do that.
func endWithParent(*syscall.SysProcAttr) {}
