package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// lookTimeout bounds one look at the server.
const lookTimeout = 30 * time.Second

const lsHelp = `List who holds a lock, and who waits: of each KEY, or of all advisory locks in
the database, also those of other programs. The server knows IDs only, so a key
is shown where it was given.`

// ls is one use of the command ls.
type ls struct {
	json, watch bool
	every       time.Duration
}

func lsCommand(c *connection) *cobra.Command {
	var l ls
	cmd := &cobra.Command{
		Use:   "ls [KEY...] [flags]",
		Short: "List holders and waiters",
		Long:  lsHelp,
		RunE: func(cmd *cobra.Command, keys []string) error {
			if l.every <= 0 {
				return usage("--every %v is not positive", l.every)
			}
			db, locks, err := c.operator(keys...)
			if err != nil {
				return err
			}
			defer db.Close()
			for {
				if err := l.look(cmd.Context(), locks, keys); err != nil || !l.watch {
					return err
				}
				time.Sleep(l.every)
			}
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&l.json, "json", false, "print JSON; with --watch, a line for each look")
	flags.BoolVar(&l.watch, "watch", false, "look again and again, until interrupted")
	flags.DurationVar(&l.every, "every", 2*time.Second, "with --watch, from one look to the next")
	return cmd
}

// look asks the server once and prints what it says.
func (l *ls) look(ctx context.Context, locks *pglock.Manager, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	all, err := inspect(ctx, locks, keys)
	if err != nil {
		return unavailable(err)
	}
	if l.json {
		return unavailable(printJSON(os.Stdout, all, l.watch))
	}
	if l.watch && onTerminal() {
		fmt.Print(clear)
	}
	if len(all) == 0 {
		fmt.Println("nobody holds a lock or waits for one")
		return nil
	}
	printTable(os.Stdout, lockRows(all, time.Now()))
	return nil
}

// inspect asks for keys, or for all locks if there are none.
func inspect(ctx context.Context, locks *pglock.Manager, keys []string) ([]pglock.Inspection, error) {
	if len(keys) == 0 {
		return locks.InspectAll(ctx)
	}
	var all []pglock.Inspection
	for _, key := range keys {
		in, err := locks.Inspect(ctx, key)
		if err != nil {
			return nil, err
		}
		all = append(all, in)
	}
	return all, nil
}

// lockRows makes a table of inspections.
func lockRows(all []pglock.Inspection, now time.Time) [][]cell {
	rows := [][]cell{{{text: "LOCK"}, {text: "STATUS"}, {text: "MODE"}, {text: "AGE"}, {text: "PID"}, {text: "HOLDER"}, {text: "USER"}, {text: "CLIENT"}}}
	for _, in := range all {
		name := strconv.FormatInt(in.ID, 10)
		if in.Key != "" {
			name = shown(in.Key)
		}
		if len(in.Holders)+len(in.Waiters) == 0 {
			rows = append(rows, []cell{{text: name}, {text: "free"}})
		}
		for _, s := range in.Holders {
			rows = append(rows, sessionRow(name, cell{"held", green}, s, now))
		}
		for _, s := range in.Waiters {
			rows = append(rows, sessionRow(name, cell{"waiting", yellow}, s, now))
		}
	}
	return rows
}

func sessionRow(name string, status cell, s ports.SessionInfo, now time.Time) []cell {
	client := s.Client
	if client == "" {
		client = "-" // on the server's own host, or not to be seen
	}
	return []cell{{text: name}, status, {text: s.Mode.String()}, {text: age(s.Since, now)},
		{text: strconv.Itoa(s.PID)}, {text: holderName(s)}, {text: shown(s.User)}, {text: client}}
}
