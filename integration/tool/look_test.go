//go:build unix

package tool

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/integration/testkit"
	"github.com/holdfast-go/holdfast/pglock"
)

// inspection is what ls --json prints of a lock.
type inspection struct {
	Key     string
	ID      int64
	Holders []holder
	Waiters []holder
}

type holder struct {
	PID      int
	Mode     string
	HolderID string `json:"holder_id"`
	Since    string
}

// fromJSON reads what the tool has printed, all of it.
func fromJSON[T any](t *testing.T, text string) (v T) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	must(t, decoder.Decode(&v))
	if decoder.More() {
		t.Fatalf("more than one value in %s", text)
	}
	return v
}

func TestLsShowsHoldersAndWaiters(t *testing.T) {
	key := t.Name()
	hold(t, key, "--holder=the holder", "-s")
	waiter := start(t, "run", key, "--holder=the-waiter", "--", "true")
	// A waiter of ours is there for a slice at a time, with short pauses.
	var row []string
	eventually(t, "the table shows both", func() bool {
		out, stderr := start(t, "ls", key, "free "+key).end(0)
		row = strings.Split(out, "\n")
		if len(row) < 4 || !strings.HasPrefix(row[0], "LOCK ") || stderr != "" {
			t.Fatalf("stdout %q, stderr %q", out, stderr)
		}
		return len(row) == 5
	})
	pid := holderOf(t, key)
	for i, want := range []string{
		1: fmt.Sprintf(`^%s +held +shared +\d+s +%d +"the holder" +holdfast +127\.0\.0\.1$`, key, pid),
		2: fmt.Sprintf(`^%s +waiting +exclusive +\d+s +\d+ +the-waiter +holdfast +127\.0\.0\.1$`, key),
		3: `^"free ` + key + `" +free$`,
		4: `^$`,
	} {
		if server.Provider() == "dsn" { // roles and addresses are of another kind
			continue
		}
		if !regexp.MustCompile(want).MatchString(row[i]) {
			t.Errorf("%q does not match %s", row[i], want)
		}
	}

	var all []inspection
	eventually(t, "JSON shows both", func() bool {
		out, _ := start(t, "ls", key, "--json").end(0)
		all = fromJSON[[]inspection](t, out)
		return len(all) == 1 && len(all[0].Waiters) == 1
	})
	in := all[0]
	if in.Key != key || in.ID != pglock.SHA256Key(key) || len(in.Holders) != 1 || in.Holders[0].PID != pid || in.Holders[0].Mode != "shared" ||
		in.Holders[0].HolderID != "the holder" || in.Holders[0].Since == "" || in.Waiters[0].HolderID != "the-waiter" || in.Waiters[0].Mode != "exclusive" {
		t.Errorf("%+v", in)
	}
	waiter.signal(syscall.SIGTERM)
	waiter.end(128 + int(syscall.SIGTERM))
}

func TestLsShowsEveryLockOfTheDatabase(t *testing.T) {
	name := fresh(t)
	if out, _ := startIn(t, environment("DATABASE_URL="+name), "ls").end(0); out != "nobody holds a lock or waits for one\n" {
		t.Errorf("no locks: %q", out)
	}
	if out, _ := startIn(t, environment("DATABASE_URL="+name), "ls", "--json").end(0); strings.TrimSpace(out) != "[]" {
		t.Errorf("no locks: %q", out)
	}
	hold(t, "k", "--database-url="+name, "--holder=one")
	hold(t, "l", "--database-url="+name, "--holder=two", "--scheme=fnv1a")
	out, _ := startIn(t, environment("DATABASE_URL="+name), "ls", "--json").end(0)
	all := fromJSON[[]inspection](t, out)
	holders := make(map[int64]string)
	for _, in := range all {
		holders[in.ID] = in.Key + in.Holders[0].HolderID
	}
	if len(all) != 2 || holders[pglock.SHA256Key("k")] != "one" || holders[pglock.FNV1aKey("l")] != "two" {
		t.Errorf("%s", out)
	}
	out, _ = startIn(t, environment("DATABASE_URL="+name), "ls").end(0)
	if strings.Count(out, "\n") != 3 || !strings.Contains(out, fmt.Sprint(pglock.SHA256Key("k"))) {
		t.Errorf("%s", out)
	}
}

// fresh makes a database for one test, and returns its address.
func fresh(t *testing.T) string {
	t.Helper()
	name := "tool_" + strings.ToLower(regexp.MustCompile(`\W`).ReplaceAllString(t.Name(), "_"))
	name = name[:min(len(name), 60)]
	_, err := outside.Exec(bg, "CREATE DATABASE "+name)
	must(t, err)
	t.Cleanup(func() {
		_, err := outside.Exec(bg, "DROP DATABASE "+name+" WITH (FORCE)")
		must(t, err)
	})
	u, err := url.Parse(server.DSN())
	must(t, err)
	u.Path = "/" + name
	return u.String()
}

func TestLsWatches(t *testing.T) {
	key := t.Name()
	p := start(t, "ls", key, "--json", "--watch", "--every=20ms")
	if in := fromJSON[[]inspection](t, p.line()); len(in) != 1 || len(in[0].Holders) != 0 {
		t.Errorf("%+v", in)
	}
	hold(t, key, "--holder=late")
	for {
		if in := fromJSON[[]inspection](t, p.line()); len(in[0].Holders) == 1 && in[0].Holders[0].HolderID == "late" {
			break
		}
	}
	p.signal(syscall.SIGINT)
	drain(p)
	_ = p.cmd.Wait()
	if s := p.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGINT {
		t.Errorf("an interrupt ended it with %v", p.cmd.ProcessState)
	}
}

func TestEvictEndsAHolder(t *testing.T) {
	key := t.Name()
	if out, _ := start(t, "evict", key).end(0); out != fmt.Sprintf("nobody holds %q\n", key) {
		t.Errorf("a free lock: %q", out)
	}
	for _, args := range [][]string{{"evict", key}, {"evict", "--scheme=number", fmt.Sprint(pglock.SHA256Key(key))}} {
		holder := hold(t, key)
		out, stderr := start(t, args...).end(0)
		if !strings.HasPrefix(out, "ended 1 ") || stderr != "" {
			t.Errorf("stdout %q, stderr %q", out, stderr)
		}
		_, stderr = holder.end(exitLost)
		if !strings.Contains(stderr, "lost") {
			t.Errorf("stderr of the holder: %q", stderr)
		}
		wantHolders(t, key, 0)
	}
}

func TestEvictSaysThatTheRoleMayNot(t *testing.T) {
	_, err := outside.Exec(bg, `CREATE ROLE tool_stranger LOGIN PASSWORD 'secret'`)
	must(t, err)
	t.Cleanup(func() { _, err := outside.Exec(bg, `DROP ROLE tool_stranger`); must(t, err) })
	u, err := url.Parse(server.DSN())
	must(t, err)
	u.User = url.UserPassword("tool_stranger", "secret")
	key := t.Name()
	hold(t, key)
	_, stderr := start(t, "evict", key, "--database-url", u.String()).end(exitUnavailable)
	oneLine(t, stderr, key, "pg_signal_backend")
	wantHolders(t, key, 1)
}

func TestIDShowsEveryScheme(t *testing.T) {
	nowhere := environment("DATABASE_URL=postgres://127.0.0.1:1/nowhere")
	out, _ := startIn(t, nowhere, "id", "my-lock").end(0)
	for _, want := range []string{`(?m)^sha256 +8110642715282547285 +\S`, `(?m)^fnv1a +-546483653120779755 +\S`, `(?m)^dotnet +-605720883,-118112257 +\S`, `(?m)^with-advisory-lock +1153040885,0 +\S`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s does not match %s", out, want)
		}
	}
	out, _ = startIn(t, nowhere, "id", "--json", "--namespace=my-", "lock").end(0)
	found := make(map[string]string)
	for _, id := range fromJSON[[]struct {
		Scheme, From string
		place
	}](t, out) {
		found[id.Scheme] = id.String()
	}
	for scheme, want := range map[string]string{
		"sha256": "bigint 8110642715282547285", "fnv1a": "bigint -546483653120779755",
		"dotnet": "pair [-605720883 -118112257]", "with-advisory-lock": "pair [1153040885 0]",
		"number": "", "pair": "", // my-lock is neither
	} {
		if found[scheme] != want {
			t.Errorf("%s is %q, want %q: %s", scheme, found[scheme], want, out)
		}
	}
	for key, want := range map[string]string{"-42": `(?m)^number +-42 `, "-1,2": `(?m)^pair +-1,2 `, "ten chars!": `(?m)^dotnet +-?\d+ `} {
		if out, _ := startIn(t, nowhere, "id", "--", key).end(0); !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s does not match %s", out, want)
		}
	}
}

func TestTheDatabaseIsFoundInTheFlagTheURLAndTheVariables(t *testing.T) {
	config := outside.Config().ConnConfig
	variables := []string{"DATABASE_URL=", "PGHOST=" + config.Host, fmt.Sprintf("PGPORT=%d", config.Port), "PGUSER=" + config.User,
		"PGPASSWORD=" + config.Password, "PGDATABASE=" + config.Database, "PGSSLMODE=disable"}
	const nowhere = "postgres://127.0.0.1:1/nowhere?sslmode=disable"
	startIn(t, environment(variables...), "ls").end(0)
	startIn(t, environment(append(variables, "DATABASE_URL="+nowhere)...), "ls").end(exitUnavailable)
	startIn(t, environment("DATABASE_URL="+nowhere), "ls", "--database-url", server.DSN()).end(0)
	startIn(t, environment(), "ls", "--database-url", nowhere).end(exitUnavailable)
}

// diagnosis is what doctor --json prints.
type diagnosis struct {
	OK     bool
	Checks []struct{ Name, Status, Finding, Advice string }
}

// doctor runs doctor on a database and returns what it says.
func doctor(t *testing.T, code int, args ...string) (d diagnosis, statuses map[string]string) {
	t.Helper()
	out, stderr := start(t, append([]string{"doctor", "--json"}, args...)...).end(code)
	d = fromJSON[diagnosis](t, out)
	if d.OK != (code == 0) || stderr != "" {
		t.Errorf("exit code %d, stdout %s, stderr %q", code, out, stderr)
	}
	statuses = make(map[string]string)
	for _, c := range d.Checks {
		statuses[c.Name] = c.Status
		if c.Finding == "" || !strings.HasSuffix(c.Advice, ".") || strings.Count(c.Advice, ". ") > 0 {
			t.Errorf("%s: %q, advice %q", c.Name, c.Finding, c.Advice)
		}
	}
	return d, statuses
}

func TestDoctorFindsAHealthyServerHealthy(t *testing.T) {
	if server.Provider() == "dsn" {
		t.Skip("nobody knows whether the server of HOLDFAST_DSN is healthy")
	}
	d, statuses := doctor(t, 0)
	for _, name := range []string{"verification", "pooler", "recovery", "keepalive", "lock table", "connections"} {
		if statuses[name] != "ok" {
			t.Errorf("%s: %+v", name, d)
		}
	}
	out, stderr := start(t, "doctor").end(0)
	scan := bufio.NewScanner(strings.NewReader(out))
	for n := 0; scan.Scan(); n++ {
		if ok := strings.HasPrefix(scan.Text(), "ok "); ok != (n%2 == 0) {
			t.Errorf("line %d: %q", n, scan.Text())
		}
	}
	if strings.Count(out, "\n") != 2*len(d.Checks) || stderr != "" || strings.Contains(out, "\x1b") {
		t.Errorf("stdout %q, stderr %q", out, stderr)
	}
	if _, statuses := doctor(t, exitWrong, "--connections=100000"); statuses["connections"] != "wrong" || statuses["verification"] != "ok" {
		t.Errorf("too many connections: %v", statuses)
	}
}

func TestDoctorFindsAPooler(t *testing.T) {
	const poolerSize = 20 // pgbouncer's own default
	d, statuses := doctor(t, exitWrong, "--database-url", testkit.ThroughPooler(t, server.DSN(), "transaction", poolerSize))
	if statuses["verification"] != "wrong" || statuses["pooler"] != "wrong" || statuses["recovery"] != "ok" || statuses["keepalive"] != "warning" {
		t.Errorf("transaction mode: %+v", d)
	}
	dsn := testkit.ThroughPooler(t, server.DSN(), "session", poolerSize)
	if d, statuses := doctor(t, 0, "--database-url", dsn); statuses["verification"] != "ok" || statuses["pooler"] != "warning" {
		t.Errorf("session mode: %+v", d)
	}
	// The other commands work through a pooler, or refuse.
	if out, _ := start(t, "run", t.Name(), "--database-url", dsn, "--", "echo", "ran").end(0); out != "ran\n" {
		t.Errorf("session mode: %q", out)
	}
	dsn = testkit.ThroughPooler(t, server.DSN(), "transaction", poolerSize)
	out, stderr := start(t, "run", t.Name(), "--database-url", dsn, "--", "echo", "ran").end(exitUnavailable)
	if out != "" {
		t.Error(out)
	}
	oneLine(t, stderr, "session pooling")
	hold(t, t.Name())
	for range 3 {
		if out, _ := start(t, "ls", t.Name(), "--database-url", dsn).end(0); !strings.Contains(out, " held ") {
			t.Error(out)
		}
	}
}
