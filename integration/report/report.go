// Package report writes figures that a program has measured into a page, and
// leaves the words around them to people.
package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Write puts figures into the page at path, between two lines that are comments
// in Markdown and carry name. A page that does not exist is made: preamble, and
// the figures behind it.
func Write(path, name, preamble, figures string) error {
	begin, end := "<!-- "+name+": begin -->", "<!-- "+name+": end -->"
	old, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		old, err = []byte(preamble+"\n"+begin+"\n"+end+"\n"), nil
	}
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s does not have the lines %q and %q, in this order; put them back, or remove the page to have it made anew", path, begin, end)
	}
	return os.WriteFile(path, []byte(before+begin+"\n\n"+strings.TrimSpace(figures)+"\n\n"+end+after), 0o644)
}
