package integration

import (
	"context"
	"database/sql"
	"testing"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/integration/wire"
	"github.com/holdfast-go/holdfast/pglock"
)

// Here lib/pq: it prepares nothing by itself, so what is prepared is ours.

func TestABusySessionPreparesItsStatements(t *testing.T) {
	w := newWorld(t, setupOf(wire.PQ))
	m := w.manager(t, w.db(t, 3))
	if n := preparedByHolder(t, m); n != 0 {
		t.Errorf("a new session has %d prepared statements", n)
	}
	eventually(t, "a busy session has a statement prepared for the lock, and one for the unlock", func() bool {
		pairs(t, m) // on one session, unless the machine is held up
		return preparedByHolder(t, m) == 2
	})
}

func TestPreparedStatementsAreForgotten(t *testing.T) {
	for name, opts := range map[string][]pglock.Option{"own session": nil, "shared session": {pglock.WithSharedSessions(1)}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setupOf(wire.PQ))
			db := w.db(t, 3)
			m := w.manager(t, db, opts...)
			pairs(t, m)
			must(t, m.Close(bg))
			if n := m.Stats().Destroyed; n > 0 {
				t.Errorf("%d sessions were closed that might have gone back to the pool", n)
			}
			for range 3 { // each of them
				conn, err := db.Conn(bg)
				must(t, err)
				defer conn.Close()
				if n := preparedOn(t, bg, conn); n != 0 {
					t.Errorf("%d prepared statements were left on a connection of the pool", n)
				}
			}
		})
	}
}

// pairs keeps a session busy.
func pairs(t *testing.T, m *pglock.Manager) {
	t.Helper()
	for range 50 {
		must(t, acquire(t, m, "k").Release(bg))
	}
}

// preparedByHolder counts the prepared statements of the session of a hold, which is
// closed afterwards, since it was lent.
func preparedByHolder(t *testing.T, m *pglock.Manager) (n int) {
	t.Helper()
	lock := acquire(t, m, "k")
	must(t, sqllock.RunConn(bg, lock, func(ctx context.Context, conn *sql.Conn) error {
		n = preparedOn(t, ctx, conn)
		return nil
	}))
	must(t, lock.Release(bg))
	return n
}

func preparedOn(t *testing.T, ctx context.Context, conn *sql.Conn) (n int) {
	t.Helper()
	must(t, conn.QueryRowContext(ctx, `SELECT count(*) FROM pg_prepared_statements`).Scan(&n))
	return n
}
