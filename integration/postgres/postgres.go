// Package postgres gives tests and demos a real PostgreSQL server.
//
// The server comes from the first of four providers that has one:
//
//   - dsn: the server named in HOLDFAST_DSN, a postgres:// URL.
//   - docker: a container, through ory/dockertest. HOLDFAST_IMAGE names the
//     image; without it, it is the official one.
//   - local: the server binaries of this machine, looked for in PATH and in the
//     places of Debian and Homebrew.
//   - embedded: binaries fetched for this machine and kept in a cache.
//
// HOLDFAST_PROVIDER forces one of them, HOLDFAST_POSTGRES_VERSION a major
// version; options override both. A provider that has no server is passed over
// with one line that says why. The exception is HOLDFAST_DSN: a server that was
// named and does not serve is an error, because another one in its place would
// not be what was asked for. Only its version may send the search on.
//
// # What is promised
//
// A server that this package starts is fresh, listens on 127.0.0.1 only, has a
// superuser and a database called holdfast, and is not older than [Oldest].
// [Server.Stop] removes all that starting it made, except the cache of fetched
// binaries. Local and embedded servers are children of this process: as root
// they run as an unprivileged user, and on Linux they end when this process
// does, however it ends.
//
// # What is not
//
// A server that this package starts does not survive a crash of the machine: it
// runs with fsync off unless [WithSettings] says otherwise. The server behind
// HOLDFAST_DSN is used as it is, with what others left in it. A process that is
// killed outright leaves its server's directory in the temporary directory, or
// its container for up to an hour. On Windows there are no local and embedded
// servers.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Oldest and Newest are the major versions between which servers are supported.
// Newest is what is fetched when no version is asked for; a later server that
// is on the machine is not refused.
const (
	Oldest = 13
	Newest = 18
)

// The providers, in the order in which they are asked.
const (
	dsnProvider      = "dsn"
	dockerProvider   = "docker"
	localProvider    = "local"
	embeddedProvider = "embedded"
)

// The superuser and the database of a server that is started here.
const (
	roleName     = "holdfast"
	databaseName = "holdfast"
)

// errVersion says that a provider has a server, but not of a version that will
// do.
var errVersion = errors.New("not the version asked for")

// Server is a running PostgreSQL. Its methods are safe for concurrent use.
type Server struct {
	provider string
	dsn      string
	major    int
	version  string // as the server itself puts it
	place    string // where it comes from, for Describe

	cluster *cluster     // nil unless the server is a child of this process
	remove  func() error // undoes all that starting the server did

	stop    sync.Once
	stopErr error // set by stop
}

// DSN returns the server's address: a postgres:// URL with a query, to which
// more parameters can be added with "&". Both lib/pq and pgx accept it.
func (s *Server) DSN() string { return s.dsn }

// Provider returns the name of the provider: dsn, docker, local or embedded.
func (s *Server) Provider() string { return s.provider }

// Major returns the server's major version.
func (s *Server) Major() int { return s.major }

// Describe says in one line what the server is and where it comes from.
func (s *Server) Describe() string {
	return fmt.Sprintf("%s: PostgreSQL %s, %s", s.provider, s.version, s.place)
}

// DataDir returns the data directory of a local or embedded server, and "" for
// any other.
func (s *Server) DataDir() string {
	if s.cluster == nil {
		return ""
	}
	return s.cluster.data
}

// BinDir returns the directory of a local or embedded server's binaries, and ""
// for any other.
func (s *Server) BinDir() string {
	if s.cluster == nil {
		return ""
	}
	return s.cluster.bin
}

// LogFile returns the file that a local or embedded server logs to, and "" for
// any other. Stop removes it.
func (s *Server) LogFile() string {
	if s.cluster == nil {
		return ""
	}
	return s.cluster.log
}

// Stop ends the server and removes all that starting it made. It waits until
// that is done. Calls after the first return what the first one returned. The
// server behind HOLDFAST_DSN is not touched.
func (s *Server) Stop() error {
	s.stop.Do(func() {
		if err := s.remove(); err != nil {
			s.stopErr = fmt.Errorf("postgres: stopping the %s server: %w", s.provider, err)
		}
	})
	return s.stopErr
}

// StopMode shuts a local or embedded server down as pg_ctl does in the mode
// "fast" (clients are cut off, data is written) or "immediate" (as in a crash:
// the next start recovers), and waits until it has ended. Its port and data
// stay, and [Server.Start] brings it back. A server that is down already stays
// down. For other providers the error is [errors.ErrUnsupported].
func (s *Server) StopMode(mode string) error {
	if s.cluster == nil {
		return s.unsupported("stopped and started again")
	}
	return s.cluster.stop(mode)
}

// Start brings a local or embedded server back after [Server.StopMode], on the
// same port and data, and waits until it takes connections. For other providers
// the error is [errors.ErrUnsupported].
func (s *Server) Start() error {
	if s.cluster == nil {
		return s.unsupported("stopped and started again")
	}
	return s.cluster.start(context.Background())
}

// Restart is [Server.StopMode] followed by [Server.Start].
func (s *Server) Restart(mode string) error {
	if err := s.StopMode(mode); err != nil {
		return err
	}
	return s.Start()
}

func (s *Server) unsupported(what string) error {
	return fmt.Errorf("postgres: a server from the provider %s cannot be %s: %w", s.provider, what, errors.ErrUnsupported)
}

// Option changes what [Start] starts.
type Option func(*config)

// WithProvider forces one provider: dsn, docker, local or embedded. The empty
// string asks for the first that has a server. It overrides HOLDFAST_PROVIDER.
func WithProvider(name string) Option {
	return func(c *config) { c.provider = name }
}

// WithVersion asks for a major version, such as 15. A provider that has none is
// passed over. Zero takes any. It overrides HOLDFAST_POSTGRES_VERSION.
func WithVersion(major int) Option {
	return func(c *config) { c.version = major }
}

// WithSettings gives the server configuration parameters, as in
// postgresql.conf; later calls add to earlier ones. port, listen_addresses and
// unix_socket_directories belong to this package. The server behind
// HOLDFAST_DSN is not reconfigured: if it does not have a setting already, in
// the words given here, that is an error.
func WithSettings(settings map[string]string) Option {
	return func(c *config) { maps.Copy(c.settings, settings) }
}

// WithLog sends the one-line notes on providers that are passed over to log,
// instead of to standard error.
func WithLog(log func(format string, args ...any)) Option {
	return func(c *config) { c.log = log }
}

// config is what a server is started with.
type config struct {
	provider string
	version  int // 0 for any
	dsn      string
	image    string
	settings map[string]string
	log      func(format string, args ...any)

	// Where the outside world is found; tests put it elsewhere.
	binaryGlobs []string // directories of binaries, besides those in PATH
	cache       string   // fetched binaries; "" for the usual place
	maven       string   // repository that fergusstrange/embedded-postgres fetches from
}

func newConfig(opts []Option) (config, error) {
	c := config{
		provider:    os.Getenv("HOLDFAST_PROVIDER"),
		dsn:         os.Getenv("HOLDFAST_DSN"),
		image:       os.Getenv("HOLDFAST_IMAGE"),
		settings:    map[string]string{},
		log:         logToStderr,
		binaryGlobs: binaryGlobs,
		maven:       mavenCentral,
	}
	if version := os.Getenv("HOLDFAST_POSTGRES_VERSION"); version != "" {
		major, err := strconv.Atoi(version)
		if err != nil {
			return c, fmt.Errorf("HOLDFAST_POSTGRES_VERSION is %q: want a major version such as %d", version, Newest)
		}
		c.version = major
	}
	for _, opt := range opts {
		opt(&c)
	}
	if c.version != 0 && c.version < Oldest {
		return c, fmt.Errorf("version %d is older than %d, the oldest supported", c.version, Oldest)
	}
	for name := range c.settings {
		if !settingName.MatchString(name) {
			return c, fmt.Errorf("%q is not the name of a setting", name)
		}
		if slices.Contains(ownSettings, strings.ToLower(name)) {
			return c, fmt.Errorf("the setting %s is chosen by this package", name)
		}
	}
	return c, nil
}

var (
	settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)
	ownSettings = []string{"port", "listen_addresses", "unix_socket_directories"}
)

func logToStderr(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "postgres: "+format+"\n", args...)
}

// allSettings returns the settings of a server that is started here. They trade
// safety in a crash of the machine for speed, which no test can tell.
func (c config) allSettings() map[string]string {
	all := map[string]string{
		"fsync":            "off",
		"full_page_writes": "off",
		"max_connections":  "200",
	}
	maps.Copy(all, c.settings)
	return all
}

// check returns an error that wraps errVersion unless major will do.
func (c config) check(major int) error {
	switch {
	case c.version != 0 && major != c.version:
		return fmt.Errorf("version %d, and %d is asked for: %w", major, c.version, errVersion)
	case major < Oldest:
		return fmt.Errorf("version %d, and %d is the oldest supported: %w", major, Oldest, errVersion)
	}
	return nil
}

// versionToFetch is the version to take where any can be had.
func (c config) versionToFetch() int {
	if c.version == 0 {
		return Newest
	}
	return c.version
}

// Start gives a server that takes connections, from the first provider that has
// one. ctx bounds the start, not the life of the server; the caller must call
// [Server.Stop].
func Start(ctx context.Context, opts ...Option) (*Server, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	providers := []struct {
		name  string
		start func(context.Context, config) (*Server, error)
	}{
		{dsnProvider, startDSN},
		{dockerProvider, startDocker},
		{localProvider, startLocal},
		{embeddedProvider, startEmbedded},
	}

	var failures []any
	for _, p := range providers {
		if c.provider != "" && c.provider != p.name {
			continue
		}
		server, err := p.start(ctx, c)
		if err == nil {
			return server, nil
		}
		named := p.name == dsnProvider && c.dsn != "" && !errors.Is(err, errVersion)
		if named || c.provider == p.name {
			return nil, fmt.Errorf("postgres: %s: %w", p.name, err)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("postgres: %s: %w", p.name, context.Cause(ctx))
		}
		if p.name != dsnProvider || c.dsn != "" {
			c.log("passing over %s: %v", p.name, oneLine(err))
		}
		failures = append(failures, err)
	}
	if c.provider != "" {
		return nil, fmt.Errorf("postgres: unknown provider %q: want dsn, docker, local or embedded", c.provider)
	}
	return nil, fmt.Errorf("postgres: no provider has a server: dsn: %w; docker: %w; local: %w; embedded: %w", failures...)
}

// Main is a TestMain with a server: it starts one, says which, hands it to use,
// runs the tests, stops the server and returns the exit code.
//
//	func TestMain(m *testing.M) {
//		os.Exit(postgres.Main(m, func(s *postgres.Server) { server = s }))
//	}
//
// Where no server can be had, it says so and returns 1. On an interrupt or a
// SIGTERM it stops the server before it ends the process.
func Main(m interface{ Run() int }, use func(*Server), opts ...Option) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	var server *Server
	starting := make(chan struct{}) // closed when server is set, or never will be
	finished := make(chan struct{})
	defer close(finished)
	go func() {
		select {
		case <-finished:
		case s := <-signals:
			// A server that is just starting is taken away by Start itself,
			// one that has started is stopped here. No test hears of it: they
			// end with the process.
			cancel()
			<-starting
			code := 1
			if number, ok := s.(syscall.Signal); ok {
				code = 128 + int(number)
			}
			if server != nil {
				if err := server.Stop(); err != nil {
					logToStderr("%v", err)
				}
			}
			os.Exit(code)
		}
	}()

	started, err := Start(ctx, opts...)
	server = started
	close(starting)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "postgres: "+server.Describe())
	use(server)
	code := m.Run()
	if err := server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}
