package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// binaryGlobs are the places where server binaries are found besides PATH:
// Debian's, Homebrew's on its three kinds of machine, and the PostgreSQL
// project's own for Red Hat.
var binaryGlobs = []string{
	"/usr/lib/postgresql/*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/usr/pgsql-*/bin",
}

const stopPatience = 30 * time.Second

// startLocal gives a server that runs this machine's binaries.
func startLocal(ctx context.Context, c config) (*Server, error) {
	bin, err := findBinaries(ctx, c)
	if err != nil {
		return nil, err
	}
	return startCluster(ctx, c, localProvider, bin)
}

// findBinaries returns the first directory of server binaries that will do: in
// the order of PATH, and then the newest of the other places.
func findBinaries(ctx context.Context, c config) (string, error) {
	type candidate struct {
		bin   string
		major int
	}
	read := func(bins []string) (found []candidate) {
		for _, bin := range bins {
			bin, err := realBinaries(bin)
			if err != nil {
				continue
			}
			if major, err := binaryVersion(ctx, bin); err == nil {
				found = append(found, candidate{bin, major})
			}
		}
		return found
	}
	var elsewhere []string
	for _, glob := range c.binaryGlobs {
		bins, err := filepath.Glob(glob)
		if err != nil {
			return "", err
		}
		elsewhere = append(elsewhere, bins...)
	}
	inPath := read(filepath.SplitList(os.Getenv("PATH")))
	others := read(elsewhere)
	slices.SortStableFunc(others, func(a, b candidate) int { return b.major - a.major })

	var unfit []string
	for _, found := range append(inPath, others...) {
		err := c.check(found.major)
		if err == nil {
			return found.bin, nil
		}
		unfit = append(unfit, found.bin+" has "+strconv.Itoa(found.major))
	}
	if len(unfit) > 0 {
		return "", fmt.Errorf("no binaries of version %s: %s: %w", c.versionName(), strings.Join(unfit, ", "), errVersion)
	}
	return "", fmt.Errorf("no server binaries in PATH and in %s", strings.Join(c.binaryGlobs, ", "))
}

func (c config) versionName() string {
	if c.version == 0 {
		return strconv.Itoa(Oldest) + " or later"
	}
	return strconv.Itoa(c.version)
}

// realBinaries returns the directory that the server in bin is really in: what
// is in PATH is often a symlink, and not every program has one.
func realBinaries(bin string) (string, error) {
	real, err := filepath.EvalSymlinks(filepath.Join(bin, "postgres"))
	if err != nil {
		return "", err
	}
	return filepath.Abs(filepath.Dir(real))
}

var versionOutput = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// binaryVersion returns the major version of the binaries in bin.
func binaryVersion(ctx context.Context, bin string) (int, error) {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return 0, err
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return 0, err
	}
	match := versionOutput.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("%s/postgres does not tell its version", bin)
	}
	return strconv.Atoi(string(match[1]))
}

// cluster is a database cluster, and the server on it, which is a child of this
// process.
type cluster struct {
	bin      string // directory of the binaries
	dir      string // directory of everything below; its removal removes the cluster
	data     string
	log      string
	owner    *owner // whom the server runs as; nil for this process's own user
	password string
	port     int // the same for all the cluster's life, once a server was up on it

	// mu makes one of each start and stop. It is held while they wait.
	mu      sync.Mutex
	server  *process // nil if none was started yet
	removed bool
}

// startCluster makes a cluster with the binaries in bin and starts a server on
// it. It leaves nothing behind if it fails.
func startCluster(ctx context.Context, c config, provider, bin string) (_ *Server, err error) {
	if runtime.GOOS == "windows" {
		return nil, errors.New("not on Windows")
	}
	cl := &cluster{bin: bin, password: rand.Text()}
	if cl.owner, err = unprivileged(); err != nil {
		return nil, err
	}
	if cl.dir, err = newHome(cl.owner, "holdfast-postgres-"); err != nil {
		return nil, err
	}
	cl.data = filepath.Join(cl.dir, "data")
	cl.log = filepath.Join(cl.dir, "log")
	defer func() {
		if err != nil {
			err = errors.Join(err, cl.remove())
		}
	}()
	if err := cl.init(ctx, c.allSettings()); err != nil {
		return nil, err
	}
	if err := cl.startFirst(ctx); err != nil {
		return nil, err
	}

	server := &Server{
		provider: provider,
		dsn:      cl.dsn(databaseName),
		place:    fmt.Sprintf("from %s, at %s", bin, cl.address()),
		cluster:  cl,
		remove:   cl.remove,
	}
	conn, err := connect(ctx, cl.dsn("postgres"), cl.server.ended)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := server.readVersion(ctx, conn, c); err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "create database "+databaseName); err != nil {
		return nil, err
	}
	return server, nil
}

func (cl *cluster) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(cl.port)) }

func (cl *cluster) dsn(database string) string {
	return dsnFor(cl.address(), cl.password, database)
}

// command returns the command that runs one of the cluster's binaries: with
// absolute paths, in a directory that its user can enter, and without the
// environment that would turn a server's or a client's defaults.
func (cl *cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(cl.bin, name), args...)
	cmd.Dir = cl.dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "PG") || strings.HasPrefix(variable, "LC_") || strings.HasPrefix(variable, "LANG")
	})
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	return cmd
}

// init makes the data directory.
func (cl *cluster) init(ctx context.Context, settings map[string]string) error {
	passwordFile := filepath.Join(cl.dir, "password")
	if err := os.WriteFile(passwordFile, []byte(cl.password+"\n"), 0o600); err != nil {
		return err
	}
	for _, path := range []string{passwordFile, cl.dir} {
		if err := cl.owner.own(path); err != nil {
			return err
		}
	}
	// Passwords go over loopback only, so they need no hashing on the way, and
	// connecting is quicker without it.
	cmd := cl.command(ctx, "initdb", "--pgdata="+cl.data, "--username="+roleName,
		"--auth=password", "--pwfile="+passwordFile,
		"--encoding=UTF8", "--locale=C", "--no-sync")
	cmd.SysProcAttr = attributes(cl.owner)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb of %s failed: %w: %s", cl.bin, err, lastLines(string(out)))
	}
	if err := os.Remove(passwordFile); err != nil {
		return err
	}

	conf, err := os.OpenFile(filepath.Join(cl.data, "postgresql.conf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	quote := strings.NewReplacer(`'`, `''`, `\`, `\\`)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if _, err := fmt.Fprintf(conf, "%s = '%s'\n", name, quote.Replace(settings[name])); err != nil {
			return errors.Join(err, conf.Close())
		}
	}
	return conf.Close()
}

// startFirst starts the server for the first time, on a port that it finds.
func (cl *cluster) startFirst(ctx context.Context) error {
	const attempts = 5
	for attempt := 1; ; attempt++ {
		port, err := FreePort()
		if err != nil {
			return err
		}
		cl.port = port
		// Somebody else may have taken the port meanwhile; then another one is
		// found. Whatever else is wrong will be wrong again.
		err = cl.start(ctx)
		if !errors.Is(err, errPortTaken) || attempt == attempts {
			return err
		}
	}
}

var errPortTaken = errors.New("the port is taken")

// FreePort returns a port that nobody listens on. It is below those that
// systems hand out to clients: while a server restarts, a client that redials
// its port could be given that very port, and connect to itself.
func FreePort() (int, error) {
	const low, high, attempts = 15000, 32000, 100
	var lastErr error
	for range attempts {
		port := low + mathrand.IntN(high-low)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, listener.Close()
		}
		lastErr = err
	}
	return 0, fmt.Errorf("no free port: %w", lastErr)
}

// start starts the server on the cluster's port and waits until it takes
// connections.
func (cl *cluster) start(ctx context.Context) error {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	switch {
	case cl.removed:
		return errors.New("postgres: the server has been stopped and removed")
	case cl.server != nil && !cl.server.hasEnded():
		return errors.New("postgres: the server is running")
	}

	log, err := os.OpenFile(cl.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	written, err := log.Stat()
	if err != nil {
		return err
	}
	sockets := cl.dir
	if len(filepath.Join(sockets, ".s.PGSQL.12345")) > 100 {
		sockets = "" // longer than a socket's path may be: TCP only
	}
	// The server outlives ctx, which is only about starting it.
	cmd := cl.command(context.WithoutCancel(ctx), "postgres", "-D", cl.data,
		"-c", "port="+strconv.Itoa(cl.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories="+sockets)
	cmd.Stdout, cmd.Stderr = log, log
	server, err := startProcess(cmd, cl.owner)
	if err != nil {
		return err
	}
	cl.server = server

	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := cl.await(ctx); err != nil {
		said := logSince(cl.log, written.Size())
		if strings.Contains(said, "could not create any TCP/IP sockets") {
			err = errPortTaken
		}
		err = fmt.Errorf("%w; its log ends: %s", err, lastLines(said))
		return errors.Join(err, cl.server.end(syscall.SIGQUIT))
	}
	return nil
}

// await waits until the server takes connections. The caller holds mu.
func (cl *cluster) await(ctx context.Context) error {
	conn, err := connect(ctx, cl.dsn("postgres"), cl.server.ended)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// What answers on the port may be somebody else's.
	var data string
	if err := conn.QueryRow(ctx, "select current_setting('data_directory')").Scan(&data); err != nil {
		return err
	}
	if data != cl.data {
		return errPortTaken
	}
	return nil
}

// stop shuts the server down, if it runs.
func (cl *cluster) stop(mode string) error {
	signals := map[string]os.Signal{"fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}
	signal, ok := signals[mode]
	if !ok {
		return fmt.Errorf("postgres: unknown mode %q: want fast or immediate", mode)
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.server == nil {
		return nil
	}
	return cl.server.end(signal)
}

// remove ends the server and deletes the cluster.
func (cl *cluster) remove() error {
	err := cl.stop("immediate")
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.removed = true
	return errors.Join(err, os.RemoveAll(cl.dir))
}

// process is a server process that ends with this one.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended and been waited for
}

// startProcess starts cmd, as owner if there is one.
func startProcess(cmd *exec.Cmd, owner *owner) (*process, error) {
	cmd.SysProcAttr = attributes(owner)
	endWithParent(cmd.SysProcAttr)
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// What Linux calls the parent is the thread that forked. This one must
		// not end before the server does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		// How it ended is in its log; that it has ended is what counts here.
		_ = cmd.Wait()
		close(p.ended)
	}()
	return p, <-started
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// end sends signal and waits until the process has ended. One that does not end
// is killed, which is an error.
func (p *process) end(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopPatience):
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	return fmt.Errorf("the server did not end within %s of %v and was killed", stopPatience, signal)
}

// owner is a user that a server runs as.
type owner struct{ uid, gid int }

// own makes path the owner's, if there is one.
func (o *owner) own(path string) error {
	if o == nil {
		return nil
	}
	return os.Chown(path, o.uid, o.gid)
}

// newHome makes a directory for a server that runs as owner. A unix socket's path
// must be short, and the server's user must get there.
func newHome(owner *owner, prefix string) (string, error) {
	base := os.TempDir()
	if owner != nil && !reachable(base) {
		base = "/tmp"
	}
	return os.MkdirTemp(base, prefix)
}

// reachable tells whether every user can get to path.
func reachable(path string) bool {
	path, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	for {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(path)
		if parent == path {
			return true
		}
		path = parent
	}
}

// logSince returns what was written to a log after its first bytes.
func logSince(path string, offset int64) string {
	said, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(said[min(offset, int64(len(said))):])
}

// lastLines returns the last few lines of text, on one.
func lastLines(text string) string {
	const few = 4
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[max(0, len(lines)-few):], " | ")
}
