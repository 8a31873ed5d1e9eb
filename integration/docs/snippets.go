package docs

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// preamble is what snippets may take as given: these packages, and these names of the
// reader's own program.
const preamble = `package snippets

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/DATA-DOG/go-sqlmock"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/adapters/mocklock"
	"github.com/holdfast-go/holdfast/adapters/otellock"
	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/pglock/keys"
	"github.com/holdfast-go/holdfast/ports"
)

var (
	ctx      context.Context
	db       *sql.DB
	pool     *pgxpool.Pool
	locks    *pglock.Manager
	items    []string
	body     string
	hostname string
)

func runScheduler(context.Context) error
func report(context.Context) error
func copyTenant(context.Context, int) error
func importItem(context.Context, string) error
func upload(ctx context.Context, token int64) error
func migrateUp(context.Context) error
func hashOf(key string) string

`

// checker type-checks snippets.
type checker struct {
	fset     *token.FileSet
	importer types.Importer
}

// newChecker asks the go command for all that snippets import, and does that once.
var newChecker = sync.OnceValues(func() (*checker, error) {
	c := &checker{fset: token.NewFileSet()}
	given, err := parser.ParseFile(c.fset, "the preamble", preamble, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, spec := range given.Imports {
		args = append(args, strings.Trim(spec.Path.Value, `"`))
	}
	var stderr bytes.Buffer
	cmd := exec.Command("go", args...)
	cmd.Dir = root // what a user of the module gets, and no more
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	compiled := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		path, export, _ := strings.Cut(strings.TrimSpace(line), " ")
		compiled[path] = export
	}
	c.importer = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(compiled[path])
	})
	return c, nil
})

// check reports what the compiler would find wrong in a snippet: statements of a
// function that returns an error, behind the preamble. That something is not used is
// not wrong.
func (c *checker) check(b block) error {
	// The positions in errors are those of the page.
	text := preamble + fmt.Sprintf("func _() error {\n//line %s:%d\n%s\nreturn nil\n}\n", b.page, b.line, b.text)
	file, err := parser.ParseFile(c.fset, "snippet", text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	var errs []error
	config := types.Config{Importer: c.importer, Error: func(err error) {
		if typeErr := (types.Error{}); errors.As(err, &typeErr) && !typeErr.Soft && !strings.Contains(typeErr.Msg, "missing function body") {
			errs = append(errs, err)
		}
	}}
	_, _ = config.Check("snippets", c.fset, []*ast.File{file}, nil) // its error is the first of errs
	return errors.Join(errs...)
}

// module is the path of the root module.
const module = "github.com/holdfast-go/holdfast/"

// exports returns what a package of this repository exports at its top, by its name
// alone; nil if there is no such package.
func exports(pkg string) (names map[string]bool, err error) {
	for _, dir := range []string{pkg, "adapters/" + pkg, "pglock/" + pkg} {
		files, _ := filepath.Glob(filepath.Join(root, dir, "*.go"))
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			if names == nil {
				names = make(map[string]bool)
			}
			for _, d := range parsed.Decls {
				for _, name := range declared(d) {
					names[name.Name] = name.IsExported()
				}
			}
		}
	}
	return names, nil
}

// declared are the names that a declaration at the top of a file makes; methods are
// none.
func declared(d ast.Decl) (names []*ast.Ident) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			names = append(names, d.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name)
			case *ast.ValueSpec:
				names = append(names, spec.Names...)
			}
		}
	}
	return names
}
