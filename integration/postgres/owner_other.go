//go:build !unix

package postgres

import "syscall"

// There is nobody to run as but this process's own user.

func unprivileged() (*owner, error) { return nil, nil }

func attributes(*owner) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
