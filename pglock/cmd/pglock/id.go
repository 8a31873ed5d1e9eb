package main

import (
	"os"

	"github.com/spf13/cobra"
)

// keyID is the ID of a key under one scheme.
type keyID struct {
	Scheme string `json:"scheme"`
	lockID
	From string `json:"from"`
}

func idCommand(c *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "id KEY [flags]",
		Short: "Show the lock ID of a key under every scheme",
		Long:  "Show the ID that KEY has under every scheme, to find it in pg_locks, or to take\nthe lock that another program takes. Two numbers with a comma between them are\na lock of two integers. It asks no database.",
		Args:  oneKey,
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := schemeOf(c.scheme); err != nil {
				return err
			}
			ids := idsOf(c.namespace + args[0])
			if asJSON {
				return unavailable(printJSON(os.Stdout, ids, false))
			}
			rows := [][]cell{{{text: "SCHEME"}, {text: "ID"}, {text: "FROM"}}}
			for _, id := range ids {
				rows = append(rows, []cell{{text: id.Scheme}, {text: id.String()}, {text: id.From}})
			}
			printTable(os.Stdout, rows)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// idsOf derives the IDs of a key, without the schemes that do not know it.
func idsOf(key string) []keyID {
	var ids []keyID
	for _, s := range schemes {
		if id, err := s.id(key); err == nil {
			ids = append(ids, keyID{s.name, id, s.from})
		}
	}
	return ids
}
