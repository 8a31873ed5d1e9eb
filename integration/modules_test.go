package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A user of one adapter gets one driver, and nothing of the tests.
func TestAnImporterOfOneAdapterGetsOneDriver(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	must(t, err)
	for adapter, want := range map[string]struct{ driver, not string }{
		"pqlock":  {"github.com/lib/pq", "github.com/jackc/pgx"},
		"pgxlock": {"github.com/jackc/pgx/v5", "github.com/lib/pq"},
		"sqllock": {"", "github.com/jackc/pgx github.com/lib/pq"},
	} {
		dir := t.TempDir()
		write := func(name, content string) {
			t.Helper()
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
		}
		write("go.mod", "module example.com/user\n\ngo 1.25.0\n\nrequire github.com/holdfast-go/holdfast v0.0.0\n\nreplace github.com/holdfast-go/holdfast => "+root+"\n")
		write("main.go", "package main\n\nimport \"github.com/holdfast-go/holdfast/adapters/"+adapter+"\"\n\nfunc main() { "+adapter+".New(nil) }\n")
		for _, args := range [][]string{{"mod", "tidy"}, {"build", "-o", os.DevNull, "."}} {
			cmd := exec.Command("go", args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		must(t, err)
		if want.driver != "" && !strings.Contains(string(mod), want.driver+" v") {
			t.Errorf("%s: no %s in go.mod:\n%s", adapter, want.driver, mod)
		}
		for _, not := range append(strings.Fields(want.not), "dockertest", "embedded-postgres", "go.opentelemetry.io", "go-sqlmock", "goleak", "go.etcd.io") {
			if strings.Contains(string(mod), not) {
				t.Errorf("%s: %s is in go.mod:\n%s", adapter, not, mod)
			}
		}
	}
}
