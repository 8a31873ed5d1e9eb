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
		// Modules of their own bring what they adapt, and no driver.
		"gocronlock":  {"github.com/go-co-op/gocron/v2", "github.com/jackc/pgx github.com/lib/pq goose golang-migrate"},
		"gooselock":   {"github.com/pressly/goose/v3", "github.com/jackc/pgx github.com/lib/pq gocron golang-migrate"},
		"migratelock": {"github.com/golang-migrate/migrate/v4", "github.com/jackc/pgx github.com/lib/pq gocron goose"},
	} {
		dir := t.TempDir()
		write := func(name, content string) {
			t.Helper()
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
		}
		const holdfast = "github.com/holdfast-go/holdfast"
		mod := "module example.com/user\n\ngo 1.25.0\n\nrequire " + holdfast + " v0.0.0\n\nreplace " + holdfast + " => " + root + "\n"
		if module := filepath.Join(root, "adapters", adapter); exists(filepath.Join(module, "go.mod")) {
			mod += "\nrequire " + holdfast + "/adapters/" + adapter + " v0.0.0\n\nreplace " + holdfast + "/adapters/" + adapter + " => " + module + "\n"
		}
		write("go.mod", mod)
		write("main.go", "package main\n\nimport _ \""+holdfast+"/adapters/"+adapter+"\"\n\nfunc main() {}\n")
		for _, args := range [][]string{{"mod", "tidy"}, {"build", "-o", os.DevNull, "."}} {
			cmd := exec.Command("go", args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
		tidied, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		must(t, err)
		if want.driver != "" && !strings.Contains(string(tidied), want.driver+" v") {
			t.Errorf("%s: no %s in go.mod:\n%s", adapter, want.driver, tidied)
		}
		for _, not := range append(strings.Fields(want.not), "dockertest", "embedded-postgres", "go.opentelemetry.io", "go-sqlmock", "goleak", "go.etcd.io") {
			if strings.Contains(string(tidied), not) {
				t.Errorf("%s: %s is in go.mod:\n%s", adapter, not, tidied)
			}
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
