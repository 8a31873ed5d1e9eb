package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

const evictHelp = `End the server sessions that hold the lock of KEY. Their holders are told that
it is lost, and whoever waits is next. To end a holder whose key is not known,
use the ID that 'pglock ls' shows: pglock evict --scheme number ID, or, where
it is two numbers, pglock evict --scheme pair FIRST,SECOND

The role must be that of the holder, or have pg_signal_backend.`

func evictCommand(c *connection) *cobra.Command {
	return &cobra.Command{
		Use:   "evict KEY [flags]",
		Short: "End the sessions that hold a lock",
		Long:  evictHelp,
		Args:  oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			key := args[0]
			id, err := c.id(key)
			if err != nil {
				return err
			}
			db, err := c.open()
			if err != nil {
				return err
			}
			defer db.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), lookTimeout)
			defer cancel()
			ended, err := manager(db, id).Evict(ctx, key)
			if err != nil {
				return unavailable(err)
			}
			if ended == 0 {
				fmt.Printf("nobody holds %q\n", key)
				return nil
			}
			fmt.Printf("ended %d of the sessions that held %q\n", ended, key)
			return nil
		},
	}
}

// oneKey accepts one key and nothing else.
func oneKey(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usage("there must be one key, and there are %d: write %s", len(args), cmd.UseLine())
	}
	return nil
}
