// Package docs runs what the documentation shows. Its tests take the fenced blocks
// out of README.md and of all pages under docs and do with each what its language
// allows: programs are vetted and run, snippets are type-checked, queries are run on
// a real server beside a lock that is held and one that is waited for, and commands
// are compared with what they name. Links and anchors have to lead somewhere.
//
// What is not promised: that a snippet does what the text around it says.
//
// A block that cannot be tested has the word "untested" and a reason behind its
// language, where a reader of the source sees it; the tests list these blocks.
package docs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// root is the top of the repository, seen from this directory.
const root = "../.."

// block is one fenced block of a page.
type block struct {
	page     string // its file, from the top of the repository
	line     int    // of the first line of text
	language string
	exempt   string // why it is not tested; empty if it is
	text     string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

const (
	fence    = "```"
	untested = "untested"
)

// blocksOf returns the blocks of a page.
func blocksOf(page, text string) (blocks []block, err error) {
	var open *block
	for i, line := range strings.Split(text, "\n") {
		info, fenced := strings.CutPrefix(strings.TrimLeft(line, " "), fence)
		switch {
		case open == nil && fenced:
			language, flag, _ := strings.Cut(strings.TrimSpace(info), " ")
			open = &block{page: page, line: i + 2, language: language}
			if flag == "" {
				continue
			}
			reason, ok := strings.CutPrefix(flag, untested)
			if open.exempt = strings.Trim(reason, ": "); !ok || open.exempt == "" {
				return nil, fmt.Errorf("%s:%d: %q behind the language; it can only be %q and a reason", page, i+1, flag, untested)
			}
		case open != nil && fenced:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: this block does not end", page, open.line)
	}
	return blocks, nil
}

// pages returns the text of every page, by its file.
func pages() (map[string]string, error) {
	files := []string{"README.md", "CHANGELOG.md"}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			path, err = filepath.Rel(root, path)
			files = append(files, filepath.ToSlash(path))
		}
		return err
	})
	texts := make(map[string]string)
	for _, file := range files {
		text, readErr := os.ReadFile(filepath.Join(root, file))
		texts[file], err = string(text), errors.Join(err, readErr)
	}
	return texts, err
}

// allBlocks returns the blocks of all pages, in order.
func allBlocks() (blocks []block, err error) {
	texts, err := pages()
	for page, text := range texts {
		of, pageErr := blocksOf(page, text)
		blocks, err = append(blocks, of...), errors.Join(err, pageErr)
	}
	slices.SortFunc(blocks, func(a, b block) int {
		if c := strings.Compare(a.page, b.page); c != 0 {
			return c
		}
		return a.line - b.line
	})
	return blocks, err
}
