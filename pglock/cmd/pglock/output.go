package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/holdfast-go/holdfast/ports"
)

// The colours, as the terminal wants them.
const (
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	plain  = "\x1b[0m"
	clear  = "\x1b[H\x1b[2J"
)

// onTerminal reports whether people look at standard output as it comes.
func onTerminal() bool { return term.IsTerminal(int(os.Stdout.Fd())) }

// coloured reports whether standard output can show colours, and may
// (no-color.org).
func coloured() bool {
	return onTerminal() && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// cell is a piece of a table.
type cell struct{ text, colour string }

// printTable prints rows in columns.
func printTable(w io.Writer, rows [][]cell) {
	var widths []int
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	colours := coloured()
	for _, row := range rows {
		var b strings.Builder
		for i, c := range row {
			text := c.text
			if i < len(row)-1 {
				text += strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+2)
			}
			if c.colour != "" && colours {
				text = c.colour + text + plain
			}
			b.WriteString(text)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// printJSON prints v for programs, over several lines unless it is one of many.
func printJSON(w io.Writer, v any, oneOfMany bool) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	if !oneOfMany {
		encoder.SetIndent("", "  ")
	}
	return encoder.Encode(v)
}

// shown makes a word that a terminal can show of any string.
func shown(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || r == ' ' || !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// holderName is what is known of who is behind a session.
func holderName(s ports.SessionInfo) string {
	switch {
	case s.HolderID != "":
		return shown(s.HolderID)
	case s.Application != "":
		return shown(s.Application)
	}
	return "-"
}

// age is the time since then, to two units.
func age(since, now time.Time) string {
	if since.IsZero() {
		return "-"
	}
	d := max(now.Sub(since), 0) // clocks differ
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}
