//go:build linux

package chaos

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
	"sync"
	"syscall"
	"testing"
	"time"

	pgxdriver "github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/integration/testkit"
)

// patience is how long anything may take that has to happen in the end.
const patience = 30 * time.Second

var (
	bg   = context.Background()
	must = testkit.Must
)

// cluster is a primary and, where pg_basebackup can be had, a streaming standby
// of it, with pgbouncer in front of the primary where that can be had.
type cluster struct {
	server   *postgres.Server // made the first node's data; it does not run
	user     *url.Userinfo
	database string
	dir, bin string
	owner    *syscall.Credential // whom the programs run as; nil for this user
	bouncer  *bouncer

	mu      sync.Mutex
	nodes   [2]*node
	primary int
	// rebuilt is closed when the standby is one again; nil without a standby.
	rebuilt chan struct{}

	closing context.Context
	close   context.CancelFunc
	wg      sync.WaitGroup
}

// node is one server of a cluster.
type node struct {
	c       *cluster
	data    string
	port    int
	process *process
}

// newCluster starts a cluster, after prepare has worked on its first server.
func newCluster(t *testing.T, prepare func(dsn string) error) *cluster {
	t.Helper()
	settings := postgres.WithSettings(map[string]string{
		"max_connections":             "300",
		"wal_keep_size":               "256MB",
		"wal_retrieve_retry_interval": "200ms",
	})
	// Only a server that is a child of this process can be broken.
	server, err := postgres.Start(bg, settings, postgres.WithProvider("local"))
	if err != nil {
		server, err = postgres.Start(bg, settings, postgres.WithProvider("embedded"))
	}
	if err != nil {
		t.Skipf("no server that can be broken: %v", err)
	}
	c := &cluster{server: server, bin: server.BinDir(), dir: filepath.Dir(server.DataDir())}
	c.closing, c.close = context.WithCancel(bg)
	t.Cleanup(func() { c.stop(t) })
	must(t, prepare(server.DSN()))
	must(t, server.StopMode("fast"))

	u, err := url.Parse(server.DSN())
	must(t, err)
	c.user, c.database = u.User, strings.TrimPrefix(u.Path, "/")
	info, err := os.Stat(server.DataDir())
	must(t, err)
	if owner := info.Sys().(*syscall.Stat_t); int(owner.Uid) != os.Geteuid() {
		c.owner = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	port, err := strconv.Atoi(u.Port())
	must(t, err)
	c.nodes[0] = &node{c: c, data: server.DataDir(), port: port}
	must(t, c.nodes[0].start())
	c.nodes[1] = &node{c: c, data: filepath.Join(c.dir, "standby"), port: testkit.FreePort(t)}
	if _, err := os.Stat(filepath.Join(c.bin, "pg_basebackup")); err == nil {
		c.rebuild()
		select {
		case <-c.rebuilt:
		case <-time.After(patience):
			t.Fatal("the standby does not come up")
		}
	} else {
		t.Log("no pg_basebackup: failovers are left out")
	}
	if program, err := exec.LookPath("pgbouncer"); err == nil {
		c.bouncer = c.newBouncer(t, program)
	} else {
		t.Log("no pgbouncer: its restarts are left out")
	}
	return c
}

func (c *cluster) stop(t *testing.T) {
	c.close()
	c.wg.Wait()
	if c.bouncer != nil && c.bouncer.process != nil {
		c.bouncer.process.end(syscall.SIGTERM)
	}
	for _, n := range c.nodes {
		if n != nil && n.process != nil {
			n.process.end(syscall.SIGQUIT)
		}
	}
	if err := c.server.Stop(); err != nil {
		t.Error(err)
	}
}

// command returns the command that runs a program as the cluster's user.
func (c *cluster) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = c.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.owner}
	return cmd
}

func (n *node) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)) }

// connect connects to the node for the driver of faults.
func (n *node) connect(ctx context.Context) (*pgxdriver.Conn, error) {
	return pgxdriver.Connect(ctx, n.c.dsn("driver-of-faults", n.address()))
}

// dsn returns the DSN of these servers; of several, of that which is the
// primary. It is of keywords, since lib/pq does not read several hosts with
// ports from a URL.
func (c *cluster) dsn(app string, addresses ...string) string {
	var hosts, ports []string
	for _, address := range addresses {
		host, port, _ := strings.Cut(address, ":")
		hosts, ports = append(hosts, host), append(ports, port)
	}
	password, _ := c.user.Password()
	dsn := fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=%s sslmode=disable connect_timeout=3 application_name=%s",
		strings.Join(hosts, ","), strings.Join(ports, ","), c.user.Username(), password, c.database, app)
	if len(addresses) > 1 {
		dsn += " target_session_attrs=read-write"
	}
	return dsn
}

// start starts the node and waits until it takes connections.
func (n *node) start() error {
	log, err := os.OpenFile(n.data+".log", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := n.c.command(filepath.Join(n.c.bin, "postgres"), "-D", n.data,
		"-c", "port="+strconv.Itoa(n.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	cmd.Stdout, cmd.Stderr = log, log
	if n.process, err = start(cmd, syscall.SIGQUIT); err != nil {
		return err
	}
	return n.await()
}

// await waits until the node takes connections.
func (n *node) await() error {
	ctx, cancel := context.WithTimeout(bg, patience)
	defer cancel()
	for {
		conn, err := n.connect(ctx)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-n.process.ended:
			return fmt.Errorf("the server ended while it was starting: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("the server does not come up: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// halt shuts the node down as pg_ctl does in the modes fast and immediate.
func (n *node) halt(immediate bool) error {
	if immediate {
		return n.process.end(syscall.SIGQUIT)
	}
	return n.process.end(syscall.SIGINT)
}

// current returns the primary.
func (c *cluster) current() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[c.primary]
}

// failover stops the primary, promotes the standby, and has the old primary
// become the next standby.
func (c *cluster) failover(immediate bool) error {
	select {
	case <-c.rebuilt:
	case <-time.After(patience):
		return errors.New("there is no standby to fail over to")
	}
	old, next := c.current(), c.nodes[1-c.primary]
	if err := old.halt(immediate); err != nil {
		return err
	}
	conn, err := next.connect(bg)
	if err != nil {
		return err
	}
	defer conn.Close(bg)
	var promoted bool
	if err := conn.QueryRow(bg, `SELECT pg_promote(true, 30)`).Scan(&promoted); err != nil || !promoted {
		return fmt.Errorf("the standby was not promoted: %w", err)
	}
	c.mu.Lock()
	c.primary = 1 - c.primary
	c.mu.Unlock()
	c.rebuild()
	return nil
}

// rebuild makes the node that is not the primary a standby of it, in the
// background, and tries again as often as the primary goes away meanwhile.
func (c *cluster) rebuild() {
	c.rebuilt = make(chan struct{})
	rebuilt, primary, standby := c.rebuilt, c.nodes[c.primary], c.nodes[1-c.primary]
	c.wg.Go(func() {
		for c.closing.Err() == nil {
			if standby.copyOf(primary) == nil && standby.start() == nil {
				close(rebuilt)
				return
			}
			if standby.process != nil {
				standby.process.end(syscall.SIGQUIT)
			}
			pause(c.closing, 100*time.Millisecond)
		}
	})
}

// copyOf makes the node's data a copy of the primary's, which follows it.
func (n *node) copyOf(primary *node) error {
	if err := os.RemoveAll(n.data); err != nil {
		return err
	}
	cmd := n.c.command(filepath.Join(n.c.bin, "pg_basebackup"), "-D", n.data, "-R", "-X", "stream", "-c", "fast", "--no-sync",
		"-h", "127.0.0.1", "-p", strconv.Itoa(primary.port), "-U", n.c.user.Username())
	password, _ := n.c.user.Password()
	cmd.Env = append(cmd.Env, "PGPASSWORD="+password)
	copying, err := start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	select {
	case <-copying.ended:
	case <-n.c.closing.Done():
		copying.end(syscall.SIGKILL)
	}
	return copying.err
}

// bouncer is a pgbouncer in session mode that follows the primary.
type bouncer struct {
	c       *cluster
	program string
	config  string
	port    int
	process *process
}

func (b *bouncer) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

func (c *cluster) newBouncer(t *testing.T, program string) *bouncer {
	t.Helper()
	primary, err := newCable(func() string { return c.current().address() })
	must(t, err)
	t.Cleanup(primary.close)
	_, upstream, err := net.SplitHostPort(primary.address())
	must(t, err)
	b := &bouncer{c: c, program: program, config: filepath.Join(c.dir, "pgbouncer.ini"), port: testkit.FreePort(t)}
	password, _ := c.user.Password()
	users := filepath.Join(c.dir, "users.txt")
	for name, text := range map[string]string{
		users: fmt.Sprintf("%q %q\n", c.user.Username(), password),
		b.config: fmt.Sprintf(`[databases]
%s = host=127.0.0.1 port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = session
default_pool_size = 150
max_client_conn = 500
server_login_retry = 0.2
server_connect_timeout = 3
query_wait_timeout = 5
ignore_startup_parameters = extra_float_digits
`, c.database, upstream, b.port, users),
	} {
		must(t, os.WriteFile(name, []byte(text), 0o600))
		if c.owner != nil {
			must(t, os.Chown(name, int(c.owner.Uid), int(c.owner.Gid)))
		}
	}
	must(t, b.start())
	return b
}

// start starts pgbouncer and waits until it listens.
func (b *bouncer) start() (err error) {
	if b.process, err = start(b.c.command(b.program, "-q", b.config), syscall.SIGTERM); err != nil {
		return err
	}
	late := time.After(patience)
	for {
		conn, err := net.Dial("tcp", b.address())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-b.process.ended:
			return fmt.Errorf("pgbouncer ended while it was starting: %w", b.process.err)
		case <-late:
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}
