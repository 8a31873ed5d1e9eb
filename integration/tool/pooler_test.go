//go:build unix

package tool

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// throughPooler starts a pgbouncer in front of the server, and returns the
// server's address through it.
func throughPooler(t *testing.T, mode string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // seldom in the path of ordinary users
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("this machine has no pgbouncer")
	}
	if server.DataDir() == "" {
		t.Skip("the server was not started here, and pgbouncer may not reach it")
	}
	u, err := url.Parse(server.DSN())
	must(t, err)
	// pgbouncer refuses to be root, so it runs as the server does.
	dir, err := os.MkdirTemp(filepath.Dir(server.DataDir()), "pgbouncer")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	info, err := os.Stat(server.DataDir())
	must(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	must(t, os.Chown(dir, int(owner.Uid), int(owner.Gid)))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().(*net.TCPAddr)
	l.Close()
	password, _ := u.User.Password()
	config, users := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users")
	for name, text := range map[string]string{
		users: fmt.Sprintf("%q %q\n", u.User.Username(), password),
		config: fmt.Sprintf("[databases]\n* = host=%s port=%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\n"+
			"unix_socket_dir =\nauth_type = trust\nauth_file = %s\npool_mode = %s\n", u.Hostname(), u.Port(), address.Port, users, mode),
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
		must(t, os.Chown(name, int(owner.Uid), int(owner.Gid)))
	}
	cmd := exec.Command(program, "-q", config)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if int(owner.Uid) != os.Geteuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); <-ended })
	eventually(t, "pgbouncer listens", func() bool {
		select {
		case <-ended:
			t.Fatalf("pgbouncer has ended: %s", &said)
		default:
		}
		conn, err := net.Dial("tcp", address.String())
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	u.Host = address.String()
	return u.String()
}
