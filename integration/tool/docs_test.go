//go:build unix

package tool

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// page is the tool's page in the documentation.
var page = filepath.Join("..", "..", "docs", "tool.md")

// example is a command in the documentation.
type example struct {
	command string
	output  string
	exact   bool // the output is told
}

// examples reads the commands in a page: a block of sh is one, and in a block of
// console they stand behind a dollar sign, before what they print.
func examples(t *testing.T) (all []example) {
	t.Helper()
	text, err := os.ReadFile(page)
	must(t, err)
	for _, block := range regexp.MustCompile("(?ms)^```(sh|console)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		if block[1] == "sh" {
			all = append(all, example{command: block[2]})
			continue
		}
		for line := range strings.Lines(block[2]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				all = append(all, example{command: command, exact: true})
				continue
			}
			all[len(all)-1].output += line
		}
	}
	return all
}

// alike takes away in what two runs differ: numbers, the width of columns, and
// the name of the database.
func alike(output string) string {
	for _, r := range []struct{ pattern, with string }{
		{`"database": ".*"`, `"database": "N"`}, {`[0-9]+`, "N"}, {`N\.N(Z|\+)`, "N$1"}, {`\+N:N"`, `Z"`}, {` +`, " "},
	} {
		output = regexp.MustCompile(r.pattern).ReplaceAllString(output, r.with)
	}
	return output
}

func TestThePageOfTheToolIsTrue(t *testing.T) {
	if server.Provider() == "dsn" {
		t.Skip("the page shows a server that was started here")
	}
	dir, dsn := t.TempDir(), fresh(t)
	must(t, os.WriteFile(filepath.Join(dir, "report.sh"), []byte("#!/bin/sh\necho reporting\n"), 0o700))
	var web *process
	ran := 0
	for _, e := range examples(t) {
		if strings.Contains(e.command, "--hold-at-least 60s") {
			e.command = strings.Replace(e.command, "60s", "60ms", 1)
		}
		if e.command == "pglock ls\n" {
			web = hold(t, "nightly-report", "--holder=web-1", "--database-url="+dsn)
		}
		cmd := exec.Command("sh", "-ec", e.command)
		cmd.Dir = dir
		cmd.Env = environment("DATABASE_URL="+dsn, "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
		install := strings.HasPrefix(e.command, "go install ")
		if install {
			cmd.Dir, cmd.Env = filepath.Join("..", ".."), append(os.Environ(), "GOBIN="+dir)
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", e.command, err, out)
		}
		switch {
		case install:
			if _, err := os.Stat(filepath.Join(dir, "pglock")); err != nil {
				t.Error(err)
			}
		case !e.exact && !strings.HasSuffix(string(out), "reporting\n"):
			t.Errorf("%s: %q", e.command, out)
		case e.exact && (strings.Contains(e.command, "--help") || strings.Contains(e.command, "pglock id")):
			if string(out) != e.output {
				t.Errorf("%sprints\n%s\nand the page has\n%s", e.command, out, e.output)
			}
		case e.exact && alike(string(out)) != alike(e.output):
			t.Errorf("%sprints something like\n%s\nand the page has\n%s", e.command, alike(string(out)), alike(e.output))
		}
		ran++
	}
	if web == nil || ran < 15 {
		t.Fatalf("%d commands were found in %s", ran, page)
	}
	web.end(exitLost) // it was evicted
}

func TestHelpFitsAScreen(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"run", "--help"}, {"ls", "--help"}, {"evict", "--help"}, {"doctor", "--help"}, {"id", "--help"}} {
		out, _ := start(t, args...).end(0)
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if len(lines) > 24 || len(lines) < 5 {
			t.Errorf("%q: %d lines", args, len(lines))
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > 80 {
				t.Errorf("%q: too wide: %s", args, line)
			}
		}
	}
}
