//go:build unix

package postgres

import (
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// unprivileged returns the user that servers run as: nil, which is this
// process's own, unless that is root, as whom they refuse to run.
func unprivileged() (*owner, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(found.Uid)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.Atoi(found.Gid)
		if err != nil {
			return nil, err
		}
		if uid > 0 { // some systems' nobody is -2
			return &owner{uid, gid}, nil
		}
	}
	const overflow = 65534 // what Linux calls nobody, whether it has a name or not
	return &owner{overflow, overflow}, nil
}

// attributes returns those of a process that runs as owner.
func attributes(owner *owner) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{}
	if owner != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(owner.uid), Gid: uint32(owner.gid)}
	}
	return attr
}
