package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

const doctorHelp = `Find out whether locks work on the database, and what may stop them: whether
sessions exclude each other, a pooler, a server in recovery, how long the lock
of a vanished host stays, room in the lock table, and room for connections.`

// The outcomes of a check.
const (
	good    = "ok"
	warning = "warning"
	wrong   = "wrong"
)

var colourOf = map[string]string{good: green, warning: yellow, wrong: red}

// check is what doctor has to say about one thing.
type check struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	Finding string `json:"finding"`
	Advice  string `json:"advice"`
}

// report is all that doctor has to say.
type report struct {
	OK     bool    `json:"ok"`
	Checks []check `json:"checks"`
}

func doctorCommand(c *connection) *cobra.Command {
	var asJSON bool
	var connections int
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Find out whether locks work here",
		Long:  doctorHelp,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("doctor takes no arguments")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if connections < 0 {
				return usage("--connections %d is negative", connections)
			}
			db, err := c.open()
			if err != nil {
				return err
			}
			defer db.Close()
			r, err := examine(cmd.Context(), db, connections)
			if err != nil {
				return unavailable(err)
			}
			if asJSON {
				err = printJSON(os.Stdout, r, false)
			} else {
				r.print(os.Stdout)
			}
			if err == nil && !r.OK {
				return &exit{code: exitWrong}
			}
			return unavailable(err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&connections, "connections", 0, "`N` that services may open: replicas times pool size")
	return cmd
}

// print prints a report for people.
func (r report) print(w io.Writer) {
	var rows [][]cell
	for _, c := range r.Checks {
		rows = append(rows,
			[]cell{{c.Status, colourOf[c.Status]}, {text: c.Name}, {text: c.Finding}},
			[]cell{{}, {}, {text: c.Advice}})
	}
	printTable(w, rows)
}

// examine makes every check. It returns an error only if the server does not
// answer.
func examine(ctx context.Context, db *sql.DB, connections int) (report, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*lookTimeout)
	defer cancel()
	server, pooled, err := look(ctx, db)
	if err != nil {
		return report{}, err
	}
	locks := pglock.NewManager(pgxlock.NewPool(db))
	defer locks.Close(context.Background())
	verified := locks.Verify(ctx)
	if verified != nil && !errors.Is(verified, ports.ErrUnsafeConnection) {
		return report{}, verified
	}
	keepalive, err := keepaliveCheck(ctx, locks, verified)
	if err != nil {
		return report{}, err
	}
	r := report{OK: true, Checks: []check{
		verificationCheck(verified), poolerCheck(pooled, verified), recoveryCheck(server),
		keepalive, lockTableCheck(server), connectionsCheck(server, connections),
	}}
	for _, c := range r.Checks {
		r.OK = r.OK && c.Status != wrong
	}
	return r, nil
}

// look asks the server about itself; pooled says that another process answers
// than the one that greeted the driver, as behind a pooler.
func look(ctx context.Context, db *sql.DB) (server sqllock.ServerInfo, pooled bool, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return server, false, err
	}
	defer conn.Close()
	var greeted uint32
	if err := conn.Raw(func(dc any) error { greeted = dc.(*stdlib.Conn).Conn().PgConn().PID(); return nil }); err != nil {
		return server, false, err
	}
	server, err = sqllock.Examine(ctx, conn)
	return server, int64(greeted) != int64(server.PID), err
}

func verificationCheck(err error) check {
	const name = "verification"
	if err != nil {
		return check{name, wrong, oneLine(err), "Use session pooling or a direct connection to the primary, or transaction locks."}
	}
	return check{name, good, "two sessions excluded each other", "Managers prove this before their first lock; do not turn that off."}
}

func poolerCheck(pooled bool, verified error) check {
	const name = "pooler"
	switch {
	case !pooled:
		return check{name, good, "the connection is direct", "If you add a pooler, use it in session mode."}
	case verified != nil:
		return check{name, wrong, "a pooler or proxy stands between, and locks do not work through it", "Set pool_mode to session for this database, or go around the pooler."}
	}
	return check{name, warning, "a pooler or proxy stands between, and seems to keep sessions",
		"Give the pooler keepalives of a few seconds: it sees a host vanish, the server does not."}
}

func recoveryCheck(server sqllock.ServerInfo) check {
	const name = "recovery"
	if server.InRecovery {
		return check{name, wrong, "the server is in recovery, as a hot standby is", "Connect to the primary, with target_session_attrs=read-write."}
	}
	return check{name, good, "the server is a primary", "With standbys, use target_session_attrs=read-write to find the primary."}
}

// keepaliveCheck takes a lock that nobody else wants, and looks at its session.
func keepaliveCheck(ctx context.Context, locks *pglock.Manager, verified error) (check, error) {
	if verified != nil {
		return check{keepaliveName, warning, "not known, since no lock can be had", "Mend what is wrong first, and ask again."}, nil
	}
	var server sqllock.ServerInfo
	err := pglock.Do(ctx, locks, "pglock doctor "+rand.Text(), func(ctx context.Context) error {
		lock, _ := pglock.FromContext(ctx)
		return sqllock.RunConn(ctx, lock, func(ctx context.Context, conn *sql.Conn) (err error) {
			server, err = sqllock.Examine(ctx, conn)
			return err
		})
	})
	return keepaliveOf(server), err
}

const keepaliveName = "keepalive"

// keepaliveOf judges the session of a holder.
func keepaliveOf(server sqllock.ServerInfo) check {
	const most = pglock.DefaultLivenessWindow * 6 / 5 // as WithLivenessWindow says
	bound := server.KeepaliveBound
	switch {
	case !server.Network:
		return check{keepaliveName, good, "the server is on this host, and sees at once that a holder has ended", "Ask again from another host, if there are holders on any."}
	case bound <= 0:
		return check{keepaliveName, warning, "the server does not say how long the lock of a vanished host stays", "Set tcp_keepalives_idle, _interval and _count at the server."}
	case bound > most:
		return check{keepaliveName, wrong, fmt.Sprintf("the lock of a vanished host stays for %v", bound), "Set tcp_keepalives_idle, _interval and _count at the server, to a few seconds."}
	}
	return check{keepaliveName, good, fmt.Sprintf("the lock of a vanished host is free after about %v", bound), "Change that with pglock.WithLivenessWindow, if it must be another time."}
}

func lockTableCheck(server sqllock.ServerInfo) check {
	const name = "lock table"
	used, slots := server.Locks, server.LockSlots
	finding := fmt.Sprintf("%d of about %d locks of all kinds are taken", used, slots)
	switch {
	case used > slots*8/10:
		return check{name, wrong, finding, "Raise max_locks_per_transaction: when it is full, statements of all sessions fail."}
	case used > slots/2:
		return check{name, warning, finding, "Raise max_locks_per_transaction at the next restart."}
	}
	return check{name, good, finding, "Alert on this share; when it is full, statements of all sessions fail."}
}

// connectionsCheck looks for room, for what was asked for or else for anybody.
func connectionsCheck(server sqllock.ServerInfo, wanted int) check {
	const name = "connections"
	usable := server.MaxConnections - server.ReservedConnections
	free := usable - server.Connections
	finding := fmt.Sprintf("%d of %d that ordinary roles may open are open", server.Connections, usable)
	advice := fmt.Sprintf("Keep replicas times SetMaxOpenConns below %d: each hold and each wait pins one.", usable)
	switch {
	case wanted > usable:
		return check{name, wrong, fmt.Sprintf("%d are wanted, and ordinary roles may open %d", wanted, usable), "Make the pools smaller, or raise max_connections."}
	case free < usable/10:
		return check{name, wrong, finding, "Make the pools smaller, or raise max_connections."}
	case free < usable/4:
		return check{name, warning, finding, advice}
	}
	return check{name, good, finding, advice}
}
