package sqllock

import (
	"context"
	"database/sql"
	"time"
)

// ServerInfo is what a server says of itself and of one session, as far as it
// bears on locks.
type ServerInfo struct {
	// Version is the server's version, as it puts it itself.
	Version string
	// PID is the server process of the session.
	PID int
	// InRecovery says that the server is a hot standby, or recovers from a
	// crash: its locks exclude nobody on the primary.
	InRecovery bool
	// Network says that the session came over TCP, rather than over a socket of
	// the server's own host.
	Network bool
	// KeepaliveBound is how long the server takes at most to notice that the
	// client of this session has vanished with its host; 0 where it is not
	// known, as without a network.
	KeepaliveBound time.Duration
	// MaxConnections is how many sessions the server takes,
	// ReservedConnections how many of them it keeps for privileged roles, and
	// Connections how many there are.
	MaxConnections, ReservedConnections, Connections int
	// LockSlots is how many locks of all kinds the server's lock table has room
	// for, by its documentation, and Locks how many are in it.
	LockSlots, Locks int
}

// Queryer is what Examine needs of a *sql.DB, *sql.Conn or *sql.Tx.
type Queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Examine asks a server for its ServerInfo, in one statement that any role may
// run. What it says of the session holds for the one that q uses: to learn how
// long a holder's session can be silent, run it through RunConn.
func Examine(ctx context.Context, q Queryer) (ServerInfo, error) {
	var info ServerInfo
	var seconds int64
	err := q.QueryRowContext(ctx, examine).Scan(&info.Version, &info.PID, &info.InRecovery, &info.Network, &seconds,
		&info.MaxConnections, &info.ReservedConnections, &info.Connections, &info.LockSlots, &info.Locks)
	info.KeepaliveBound = time.Duration(seconds) * time.Second
	return info, err
}
