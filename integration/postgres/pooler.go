package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrNoPooler says that pgbouncer is not installed here, or cannot be used.
var ErrNoPooler = errors.New("no pgbouncer can be had")

// StartPooler starts a pgbouncer in this pool mode in front of the server of dsn,
// with size server sessions for a database. It returns the DSN through it, and
// what ends it, and with it its sessions. It ends with this process in any case.
func StartPooler(dsn, mode string, size int) (through string, stop func() error, err error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // seldom in the path of ordinary users
	}
	if _, err := os.Stat(program); err != nil {
		return "", nil, fmt.Errorf("%w: this machine has none", ErrNoPooler)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", nil, err
	}
	if u.Hostname() == "" {
		return "", nil, fmt.Errorf("%w: the server is not to be reached over TCP", ErrNoPooler)
	}
	upstream := u.Port()
	if upstream == "" {
		upstream = "5432"
	}
	port, err := FreePort()
	if err != nil {
		return "", nil, err
	}
	owner, err := unprivileged() // pgbouncer, too, refuses to be root
	if err != nil {
		return "", nil, err
	}
	dir, err := newHome(owner, "holdfast-pgbouncer-")
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := owner.own(dir); err != nil {
		return "", nil, err
	}
	password, _ := u.User.Password()
	config, users := filepath.Join(dir, "pgbouncer.ini"), filepath.Join(dir, "users")
	for name, text := range map[string]string{
		users: fmt.Sprintf("%q %q\n", u.User.Username(), password),
		config: fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = %s
default_pool_size = %d
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
`, u.Hostname(), upstream, port, users, mode, size),
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return "", nil, err
		}
		if err := owner.own(name); err != nil {
			return "", nil, err
		}
	}

	cmd := exec.Command(program, "-q", config)
	cmd.Dir = dir
	said := new(strings.Builder) // read it when the process has ended
	cmd.Stdout, cmd.Stderr = said, said
	p, err := startProcess(cmd, owner)
	if err != nil {
		return "", nil, err
	}
	stop = func() error { return errors.Join(p.end(syscall.SIGTERM), os.RemoveAll(dir)) }
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if err := p.listens(u.Host); err != nil {
		ended := p.end(syscall.SIGTERM)
		return "", nil, errors.Join(fmt.Errorf("pgbouncer: %w: %s", err, lastLines(said.String())), ended)
	}
	return u.String(), stop, nil
}

// listens waits until somebody takes connections at address.
func (p *process) listens(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.ended:
			return errors.New("it has ended")
		case <-ctx.Done():
			return err
		case <-time.After(attemptPause):
		}
	}
}
