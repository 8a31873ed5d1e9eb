package docs

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/integration/testkit"
	"github.com/holdfast-go/holdfast/pglock"
)

var (
	server *postgres.Server
	bg     = context.Background()
	must   = testkit.Must
)

func TestMain(m *testing.M) {
	os.Exit(postgres.Main(m, func(s *postgres.Server) { server = s }))
}

// blocks returns the blocks in a language that are to be tested, of which there must
// be some.
func blocks(t *testing.T, language string) (found []block) {
	t.Helper()
	all, err := allBlocks()
	must(t, err)
	for _, b := range all {
		if b.language == language && b.exempt == "" && !isElsewhere(b) {
			found = append(found, b)
		}
	}
	if len(found) == 0 {
		t.Fatalf("there is no block in %q: is this the right directory?", language)
	}
	return found
}

// isElsewhere reports whether a block is run by integration/tool, which builds the
// tool and compares what it prints.
func isElsewhere(b block) bool {
	return b.page == "docs/tool.md" && (b.language == "sh" || b.language == "console")
}

func isProgram(b block) bool { return strings.HasPrefix(b.text, "package ") }

// Every block is in a language that some test here looks after, or says why not.
func TestEveryBlockIsTested(t *testing.T) {
	all, err := allBlocks()
	must(t, err)
	tested, elsewhere, exempt := 0, 0, 0
	for _, b := range all {
		switch {
		case b.exempt != "":
			exempt++
			t.Logf("%v is not tested: %s", b, b.exempt)
		case isElsewhere(b):
			elsewhere++
		case !slices.Contains([]string{"go", "sql", "sh", "mermaid"}, b.language):
			t.Errorf("%v: no test looks after %q; add %q and the reason behind it", b, b.language, untested)
		default:
			tested++
		}
	}
	t.Logf("%d blocks are tested here, %d in integration/tool, %d are exempt", tested, elsewhere, exempt)
}

func TestProgramsRun(t *testing.T) {
	for _, b := range blocks(t, "go") {
		if !isProgram(b) {
			continue
		}
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
			must(t, os.WriteFile(source, []byte(b.text), 0o600))
			for _, args := range [][]string{{"go", "vet", source}, {"go", "build", "-o", program, source}, {program}} {
				ctx, cancel := context.WithTimeout(bg, time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, args[0], args[1:]...)
				cmd.Env = append(os.Environ(), "DATABASE_URL="+server.DSN())
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", args, err, out)
				}
			}
		})
	}
}

func TestSnippetsCompile(t *testing.T) {
	c, err := newChecker()
	must(t, err)
	for _, b := range blocks(t, "go") {
		if !isProgram(b) {
			if err := c.check(b); err != nil {
				t.Error(err)
			}
		}
	}
}

// Tables name functions and options in the text, where no compiler looks.
func TestNamesInTheTextExist(t *testing.T) {
	telemetry, err := os.ReadFile(filepath.Join(root, "adapters/otellock/otellock.go"))
	must(t, err)
	texts, err := pages()
	must(t, err)
	code := regexp.MustCompile("`[^`]+`")
	exported := regexp.MustCompile(`\b(ports|keys|pglock|[a-z]+lock)\.([A-Z]\w*)`)
	measured := regexp.MustCompile(`holdfast\.(lock|session)\.[a-z.]+`)
	names, metrics := 0, 0
	known := make(map[string]map[string]bool)
	for page, text := range texts {
		for _, span := range code.FindAllString(withoutBlocks(text), -1) {
			for _, name := range exported.FindAllStringSubmatch(span, -1) {
				names++
				if known[name[1]] == nil {
					known[name[1]], err = exports(name[1])
					must(t, err)
				}
				if !known[name[1]][name[2]] {
					t.Errorf("%s: %s is not exported by a package here", page, name[0])
				}
			}
			for _, name := range measured.FindAllString(span, -1) {
				metrics++
				if !strings.Contains(string(telemetry), `"`+name+`"`) {
					t.Errorf("%s: adapters/otellock has no %s", page, name)
				}
			}
		}
	}
	if names < 50 || metrics < 5 {
		t.Errorf("%d names and %d metrics were found: too few to have looked at the right text", names, metrics)
	}
}

// The messages that an operator is told to look for are those that are logged.
func TestLogMessagesAreLogged(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "pglock/*.go"))
	must(t, err)
	var sources strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		sources.Write(text)
	}
	texts, err := pages()
	must(t, err)
	rows := regexp.MustCompile(`(?m)^\| (?:error|warn|info|debug) \| (.*?) \|`).FindAllStringSubmatch(texts["docs/guide/operating.md"], -1)
	if len(rows) == 0 {
		t.Error("the table of log messages was not found")
	}
	for _, row := range rows {
		for message := range strings.SplitSeq(row[1], ", ") {
			if message = strings.Trim(message, "`"); !strings.Contains(sources.String(), `"`+message+`"`) {
				t.Errorf("%q is logged nowhere", message)
			}
		}
	}
}

// The checker finds what is wrong, and only that.
func TestTheCheckerTellsSnippetsApart(t *testing.T) {
	c, err := newChecker()
	must(t, err)
	for text, want := range map[string]string{
		"lock, ok, err := locks.TryAcquire(ctx, \"k\")": "",
		"return report(ctx)":                            "",
		"locks.Lock(ctx)":                               "page.md:7: locks.Lock undefined",
		"lock := locks.TryAcquire(ctx, \"k\")":          "page.md:7: assignment mismatch",
		"if {":                                          "page.md:7",
		"_ = 1\nfmt.Printl(\"x\")":                      "page.md:8: undefined: fmt.Printl",
	} {
		err := c.check(block{page: "page.md", line: 7, text: text})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// given is what queries of the documentation take as given; it is undone after each.
const given = `
	DO $$ BEGIN IF to_regrole('app') IS NULL THEN CREATE ROLE app; END IF; END $$;
	CREATE SCHEMA documentation;
	SET LOCAL search_path = documentation;
	CREATE TABLE outbox (sent timestamptz);
`

// Each block is run in a transaction that is rolled back, beside a lock that is held
// and one that is waited for. A query that finds nothing then does not find what it
// is for.
func TestQueriesRun(t *testing.T) {
	for _, b := range blocks(t, "sql") {
		t.Run(b.String(), func(t *testing.T) {
			contend(t)
			conn, err := pgx.Connect(bg, server.DSN())
			must(t, err)
			defer conn.Close(bg)
			for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				err := runQueries(conn.PgConn(), b.text)
				if err == nil {
					break
				}
				// A waiter is not to be seen all the time.
				if !errors.Is(err, errNoRows) || time.Now().After(deadline) {
					t.Fatal(err)
				}
			}
		})
	}
}

// one wait for it, until the test ends.
func contend(t *testing.T) {
	t.Helper()
	open := func(holder string) *pglock.Manager {
		db, err := sql.Open("pgx", server.DSN())
		must(t, err)
		locks := pgxlock.New(db, pglock.WithHolderID(holder))
		t.Cleanup(func() {
			_ = locks.Close(bg) // a query may have ended its session
			db.Close()
		})
		return locks
	}
	_, err := open("billing/worker-7").Acquire(bg, "nightly-report")
	must(t, err)
	waiter := open("billing/worker-8")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = waiter.Acquire(bg, "nightly-report") // until the manager is closed
	}()
	t.Cleanup(func() {
		_ = waiter.Close(bg)
		<-answered
	})
}

var errNoRows = errors.New("a query has found nothing")

// runQueries runs statements and takes back what they did. A statement that answers
// with a table has to answer with a row, at least.
func runQueries(conn *pgconn.PgConn, text string) (err error) {
	defer func() {
		_, rollback := conn.Exec(bg, "ROLLBACK").ReadAll()
		err = errors.Join(err, rollback)
	}()
	if _, err := conn.Exec(bg, "BEGIN;"+given).ReadAll(); err != nil {
		return err
	}
	results, err := conn.Exec(bg, text).ReadAll()
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.CommandTag.Select() && r.CommandTag.RowsAffected() == 0 {
			return fmt.Errorf("%w, although a lock is held and somebody waits for it:\n%s", errNoRows, text)
		}
	}
	return nil
}

// Commands are compared with what they name; running them would take an hour.
func TestCommandsExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	must(t, err)
	texts, err := pages()
	must(t, err)
	for _, b := range blocks(t, "sh") {
		for line := range strings.Lines(b.text) {
			command, _, _ := strings.Cut(line, "#")
			command = strings.TrimSpace(command)
			if command == "" {
				continue
			}
			words := strings.Fields(command)
			last := words[len(words)-1]
			switch {
			case words[0] == "make" && len(words) == 2:
				if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(last) + `:`).Match(makefile) {
					t.Errorf("%v: the Makefile has no target %q", b, last)
				}
			case strings.HasPrefix(command, "go get "+module), strings.HasPrefix(command, "go run ./"):
				dir := filepath.Join(root, strings.TrimPrefix(last, module))
				if files, err := filepath.Glob(filepath.Join(dir, "*.go")); err != nil || len(files) == 0 {
					t.Errorf("%v: %s names no package (%v)", b, command, err)
				}
			case words[0] == "pglock" && len(words) > 1:
				// integration/tool compares that page with the tool's own help.
				ours, _, _ := strings.Cut(command, " -- ")
				asked := regexp.MustCompile(`--[a-z-]+`).FindAllString(ours, -1)
				for _, part := range append(asked, "pglock "+words[1]+" --help") {
					if !strings.Contains(texts["docs/tool.md"], part) {
						t.Errorf("%v: docs/tool.md has no %q", b, part)
					}
				}
			default:
				t.Errorf("%v: no test knows what to make of %q", b, command)
			}
		}
	}
}

// The diagrams are not drawn here; a wrong word in the first line, an arrow that leads
// nowhere or a bracket too few is what goes wrong with them.
func TestDiagramsAreWellFormed(t *testing.T) {
	edge := regexp.MustCompile(`^\s*(\S.*?) (-->|-\.->) (\S[^:]*?)(: \S.*)?$`)
	for _, b := range blocks(t, "mermaid") {
		kind, rest, _ := strings.Cut(b.text, "\n")
		if kind != "stateDiagram-v2" && kind != "flowchart LR" {
			t.Errorf("%v: unknown kind of diagram %q", b, kind)
		}
		for line := range strings.Lines(strings.TrimRight(rest, "\n")) {
			if !edge.MatchString(strings.TrimRight(line, "\n")) {
				t.Errorf("%v: no arrow from something to something: %s", b, line)
			}
			for _, pair := range []string{"[]", "()"} {
				if strings.Count(line, pair[:1]) != strings.Count(line, pair[1:]) {
					t.Errorf("%v: unbalanced %s: %s", b, pair, line)
				}
			}
		}
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	texts, err := pages()
	must(t, err)
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for page, text := range texts {
		for _, match := range link.FindAllStringSubmatch(withoutBlocks(text), -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.ToSlash(filepath.Join(filepath.Dir(page), target))
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", page, match[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(texts[file]), anchor) {
				t.Errorf("%s: %s has no heading for #%s", page, file, anchor)
			}
		}
	}
}

// An arrow of the diagram of packages is an import. Those that a line of the diagram
// stands for at a distance are not looked for.
func TestDrawnArrowsAreImports(t *testing.T) {
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	must(t, err)
	imports := make(map[string][]string)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(strings.ReplaceAll(line, module, ""))
		imports[words[0]] = words[1:]
	}
	arrow := regexp.MustCompile(`(\w+)(?:\["[^"]+"\])? --> (\w+)`)
	label := regexp.MustCompile(`(\w+)\["([^"]+)"\]`)
	found := 0
	for _, b := range blocks(t, "mermaid") {
		packages := make(map[string]string)
		for _, l := range label.FindAllStringSubmatch(b.text, -1) {
			packages[l[1]] = l[2]
		}
		named := func(node string) string { return cmp.Or(packages[node], node) }
		for _, a := range arrow.FindAllStringSubmatch(b.text, -1) {
			from, to := named(a[1]), named(a[2])
			if imports[from] == nil {
				continue // a state, or the reader's service
			}
			found++
			if !slices.Contains(imports[from], to) {
				t.Errorf("%v: %s does not import %s", b, from, to)
			}
		}
	}
	if found == 0 {
		t.Error("no diagram has arrows between packages")
	}
}

// withoutBlocks is a page without its fenced blocks.
func withoutBlocks(text string) string {
	var b strings.Builder
	for i, part := range strings.Split(text, fence) {
		if i%2 == 0 {
			b.WriteString(part)
		}
	}
	return b.String()
}

// anchors are the names of a page's headings in links.
func anchors(text string) (names []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(withoutBlocks(text), -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// A query that finds nothing is told from one that does, and from what is no query.
func TestQueriesThatFindNothingFail(t *testing.T) {
	conn, err := pgx.Connect(bg, server.DSN())
	must(t, err)
	defer conn.Close(bg)
	must(t, runQueries(conn.PgConn(), "SELECT 1; CREATE TABLE t (); INSERT INTO outbox SELECT now()"))
	for _, text := range []string{"SELECT 1 WHERE false", "SELECT 1; SELECT 1 WHERE false", "SELECT 1 WHERE false; SELECT 1"} {
		if err := runQueries(conn.PgConn(), text); !errors.Is(err, errNoRows) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := runQueries(conn.PgConn(), "SELEC 1"); err == nil || errors.Is(err, errNoRows) {
		t.Errorf("a syntax error: %v", err)
	}
}

func TestBlocksAreFound(t *testing.T) {
	got, err := blocksOf("p.md", "a\n```go\nx\n```\nb\n```sh untested: it takes an hour\ny\nz\n```\n")
	must(t, err)
	want := []block{
		{page: "p.md", line: 3, language: "go", text: "x\n"},
		{page: "p.md", line: 7, language: "sh", exempt: "it takes an hour", text: "y\nz\n"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	for _, text := range []string{"```go\nx\n", "```go untested\nx\n```\n", "```go whatever\nx\n```\n"} {
		if got, err := blocksOf("p.md", text); err == nil {
			t.Errorf("%q: %+v, and no error", text, got)
		}
	}
}
