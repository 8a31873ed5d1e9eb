package ports_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	root   = ".." // of the module, seen from this directory
	module = "github.com/holdfast-go/holdfast"
)

// arrow says what a package of this module may import. Names in pkg, own and
// never are patterns of path.Match.
type arrow struct {
	pkg   string
	own   []string // packages of this module
	other []string // other modules
	never []string // packages that it must not depend on, at any distance
}

var arrows = []arrow{
	{pkg: "ports", never: []string{"database/sql", "database/sql/*"}},
	{pkg: "ports/portstest", own: []string{"ports"}},
	{pkg: "pglock", own: []string{"ports"}, never: []string{"database/sql", "database/sql/*"}},
	{pkg: "pglock/keys"},
	{pkg: "adapters/memlock", own: []string{"pglock", "ports"}},
	{pkg: "adapters/sqllock", own: []string{"pglock", "ports"}},
	{pkg: "adapters/pqlock", own: []string{"adapters/sqllock", "pglock", "ports"}, other: []string{"github.com/lib/pq"}},
	{pkg: "adapters/pgxlock", own: []string{"adapters/sqllock", "pglock", "ports"}, other: []string{"github.com/jackc/pgx/v5"}},
	{pkg: "adapters/mocklock", own: []string{"adapters/sqllock", "pglock", "ports"}, other: []string{"github.com/DATA-DOG/go-sqlmock"}},
	{pkg: "adapters/otellock", own: []string{"pglock", "ports"},
		other: []string{"go.opentelemetry.io/otel", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace"},
		never: []string{"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/sdk/*", "database/sql"}},
	{pkg: "adapters/etcdlock", own: []string{"pglock", "ports"},
		other: []string{"go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/api/v3"},
		never: []string{"database/sql", "go.etcd.io/etcd/server/v3/*"}},
	{pkg: "adapters/gocronlock", own: []string{"pglock", "ports"}, other: []string{"github.com/go-co-op/gocron/v2"}, never: []string{"database/sql"}},
	{pkg: "adapters/gooselock", own: []string{"ports"}, other: []string{"github.com/pressly/goose/v3"}},
	{pkg: "adapters/migratelock", own: []string{"ports"}, other: []string{"github.com/golang-migrate/migrate/v4"}},
	{pkg: "pglock/cmd/pglock", own: []string{"adapters/pgxlock", "adapters/sqllock", "pglock", "pglock/keys", "ports"},
		other: []string{"github.com/jackc/pgx/v5", "github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/sys", "golang.org/x/term"}},
	{pkg: "examples/*", own: []string{"adapters/*", "pglock", "ports"}, other: []string{"github.com/lib/pq", "github.com/jackc/pgx/v5"}},
}

// requirements is what the go.mod of each module that users depend on, by its
// directory, may require directly; everything else belongs into the modules of
// integration.
var requirements = map[string][]string{
	".": {
		"github.com/lib/pq",
		"github.com/jackc/pgx/v5",
		"github.com/DATA-DOG/go-sqlmock",
		"go.opentelemetry.io/otel",
		"go.opentelemetry.io/otel/metric",
		"go.opentelemetry.io/otel/trace",
	},
	"adapters/gocronlock":  {module, "github.com/go-co-op/gocron/v2"},
	"adapters/gooselock":   {module, "github.com/pressly/goose/v3"},
	"adapters/migratelock": {module, "github.com/golang-migrate/migrate/v4"},
	"pglock/cmd/pglock":    {module, "github.com/jackc/pgx/v5", "github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/sys", "golang.org/x/term"},
	"adapters/etcdlock":    {module, "go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/api/v3"},
}

// listed is what the test reads of a package in the output of go list.
type listed struct {
	ImportPath string
	Standard   bool
	DepOnly    bool
	Module     *struct{ Path string }
	Imports    []string
	Deps       []string
}

func TestArrows(t *testing.T) {
	lookAtSources(t)
	for dir := range requirements {
		packages := make(map[string]listed)
		for dec := json.NewDecoder(strings.NewReader(goCommand(t, dir, "list", "-deps", "-json=ImportPath,Standard,DepOnly,Module,Imports,Deps", "./..."))); ; {
			var p listed
			if err := dec.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			packages[p.ImportPath] = p
		}
		found := 0
		for _, p := range packages {
			if p.DepOnly {
				continue
			}
			found++
			for _, fault := range faults(p, packages) {
				t.Error(fault)
			}
		}
		if found == 0 {
			t.Errorf("go list has found no package of the module in %s", dir)
		}
	}
}

func TestRequirementsAreFew(t *testing.T) {
	lookAtSources(t)
	for dir, allowed := range requirements {
		var mod struct {
			Require []struct {
				Path     string
				Indirect bool
			}
		}
		if err := json.Unmarshal([]byte(goCommand(t, dir, "mod", "edit", "-json")), &mod); err != nil {
			t.Fatal(err)
		}
		for _, r := range mod.Require {
			if !r.Indirect && !slices.Contains(allowed, r.Path) {
				t.Errorf("%s/go.mod requires %s, which would enter every user's module graph: use it in a module of integration, or add it to the requirements in ports/arrows_test.go", dir, r.Path)
			}
		}
	}
}

func TestEveryModuleOfUsersIsInTheTables(t *testing.T) {
	lookAtSources(t)
	for _, pattern := range []string{"adapters/*/go.mod", "pglock/*/go.mod", "pglock/*/*/go.mod"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			dir, err := filepath.Rel(root, filepath.Dir(file))
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := requirements[filepath.ToSlash(dir)]; !ok {
				t.Errorf("the module in %s is not in the requirements in ports/arrows_test.go: add it, and its packages to the arrows", dir)
			}
		}
	}
}

// faults returns a sentence for each forbidden arrow that starts at p.
func faults(p listed, packages map[string]listed) (sentences []string) {
	name := short(p.ImportPath)
	at := slices.IndexFunc(arrows, func(a arrow) bool { return matches([]string{a.pkg}, name) })
	if at < 0 {
		return []string{fmt.Sprintf("package %s is not in the table of arrows: add it to ports/arrows_test.go, and to Layout and Arrows in the architecture, with what it may import", name)}
	}
	may := arrows[at]
	for _, path := range p.Imports {
		switch imported := packages[path]; {
		case imported.Standard:
		case imported.Module == nil:
			sentences = append(sentences, fmt.Sprintf("%s imports %s, which go list does not place in any module", name, path))
		case imported.Module.Path == module && !matches(may.own, short(path)):
			sentences = append(sentences, fmt.Sprintf("forbidden arrow: %s imports %s; of this module it may import %s", name, short(path), orNothing(may.own)))
		case imported.Module.Path != module && !slices.Contains(may.other, imported.Module.Path):
			sentences = append(sentences, fmt.Sprintf("forbidden arrow: %s imports %s; of third parties it may import %s", name, path, orNothing(may.other)))
		}
	}
	for _, path := range p.Deps {
		if matches(may.never, path) {
			sentences = append(sentences, fmt.Sprintf("forbidden arrow: %s depends on %s, directly or through another package, and must never", name, path))
		}
	}
	return sentences
}

// short is the path of a package below the module's.
func short(importPath string) string {
	return strings.TrimPrefix(strings.TrimPrefix(importPath, module), "/")
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		if err != nil {
			panic(err)
		}
		return ok
	})
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return "only " + strings.Join(names, ", ")
}

// goCommand runs the go command in a directory, as seen from the root.
func goCommand(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = filepath.Join(root, dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// lookAtSources reads the directories of the module, for go test's cache: it
// repeats an old pass if what the test itself has looked at is unchanged, and
// does not see what the go command looks at.
func lookAtSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir() || path == root:
			return nil
		case strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		}
		if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && strings.HasPrefix(path, filepath.Join(root, "integration")) {
			return fs.SkipDir // a module that is not for users
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
