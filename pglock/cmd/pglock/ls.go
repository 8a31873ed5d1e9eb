package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
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
is shown where it was given. A lock of two integers is shown as FIRST,SECOND.`

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
			asked, err := locksOf(c, keys)
			if err != nil {
				return err
			}
			db, err := c.open()
			if err != nil {
				return err
			}
			defer db.Close()
			for {
				if err := l.look(cmd.Context(), db, asked); err != nil || !l.watch {
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

// lock is a lock, and what the server tells of it.
type lock struct {
	Key string `json:"key"` // empty if all locks are listed
	lockID
	Holders []ports.SessionInfo `json:"holders"`
	Waiters []ports.SessionInfo `json:"waiters"`
}

// locksOf are the locks of keys, of which nothing is told yet.
func locksOf(c *connection, keys []string) (locks []lock, err error) {
	if _, err := schemeOf(c.scheme); err != nil {
		return nil, err // even if there are no keys
	}
	for _, key := range keys {
		id, err := c.id(key)
		if err != nil {
			return nil, err
		}
		locks = append(locks, lock{Key: key, lockID: id})
	}
	return locks, nil
}

// look asks the server once and prints what it says.
func (l *ls) look(ctx context.Context, db *sql.DB, asked []lock) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	all, err := inspect(ctx, db, asked)
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

// inspect asks for these locks, or for all if there are none.
func inspect(ctx context.Context, db *sql.DB, asked []lock) ([]lock, error) {
	if len(asked) == 0 {
		return inspectAll(ctx, db)
	}
	var all []lock
	for _, l := range asked {
		in, err := manager(db, l.lockID).Inspect(ctx, l.Key)
		if err != nil {
			return nil, err
		}
		all = append(all, lock{l.Key, l.lockID, in.Holders, in.Waiters})
	}
	return all, nil
}

// inspectAll asks for the locks of both spaces.
func inspectAll(ctx context.Context, db *sql.DB) ([]lock, error) {
	all := []lock{}
	for _, space := range []func(int64) lockID{bigintID, pairID} {
		found, err := manager(db, space(0)).InspectAll(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, listed(found, space)...)
	}
	return all, nil
}

// listed turns what was found in one space into locks, in the order of their
// numbers: that of packed pairs takes the second one for unsigned.
func listed(found []pglock.Inspection, space func(int64) lockID) (locks []lock) {
	for _, in := range found {
		locks = append(locks, lock{"", space(in.ID), in.Holders, in.Waiters})
	}
	slices.SortFunc(locks, func(a, b lock) int { return a.compare(b.lockID) })
	return locks
}

// lockRows makes a table of locks.
func lockRows(all []lock, now time.Time) [][]cell {
	rows := [][]cell{{{text: "LOCK"}, {text: "STATUS"}, {text: "MODE"}, {text: "AGE"}, {text: "PID"}, {text: "HOLDER"}, {text: "USER"}, {text: "CLIENT"}}}
	for _, l := range all {
		name := l.lockID.String()
		if l.Key != "" {
			name = shown(l.Key)
		}
		if len(l.Holders)+len(l.Waiters) == 0 {
			rows = append(rows, []cell{{text: name}, {text: "free"}})
		}
		for _, s := range l.Holders {
			rows = append(rows, sessionRow(name, cell{"held", green}, s, now))
		}
		for _, s := range l.Waiters {
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
