package ports_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// target finds the targets of a Makefile, named what a document tells to make, in
// code of its text or at the beginning of a line of a program.
var (
	target = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
	named  = regexp.MustCompile("(?m)(?:`|^)make ([a-z][a-z-]*)")
)

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// files returns the files of the repository whose names end so, save for Git's own.
func files(t *testing.T, suffix string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".git":
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(d.Name(), suffix):
			name, err := filepath.Rel(root, path)
			names = append(names, filepath.ToSlash(name))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestCommandsThatDocumentsNameExist(t *testing.T) {
	var targets []string
	for _, found := range target.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets = append(targets, found[1])
	}
	found := make(map[string]bool)
	for _, name := range files(t, ".md") {
		for _, command := range named.FindAllStringSubmatch(read(t, name), -1) {
			found[name] = true
			if !slices.Contains(targets, command[1]) {
				t.Errorf("%s names the command %q, and the Makefile has no such target", name, "make "+command[1])
			}
		}
	}
	for _, name := range []string{"README.md", ".github/CONTRIBUTING.md"} {
		if !found[name] {
			t.Errorf("%s names no command", name)
		}
	}
}

func TestTheForgeRunsWhatCIRuns(t *testing.T) {
	if workflow := read(t, ".github/workflows/ci.yml"); !strings.Contains(workflow, "- run: .ci/run\n") {
		t.Error("the workflow does not run .ci/run")
	}
	info, err := os.Stat(filepath.Join(root, ".ci/run"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode()&0o111 == 0 {
		t.Error(".ci/run cannot be run")
	}
}

func TestEveryModuleIsLinted(t *testing.T) {
	_, list, _ := strings.Cut(read(t, "Makefile"), "\nMODULES = ")
	list, _, _ = strings.Cut(list, "\n")
	modules := strings.Fields(list)
	for _, name := range files(t, "go.mod") {
		if dir := filepath.ToSlash(filepath.Dir(name)); !slices.Contains(modules, dir) {
			t.Errorf("the module in %s is not in MODULES of the Makefile", dir)
		}
	}
}
