package integration

import (
	"testing"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
	"github.com/holdfast-go/holdfast/ports/portstest"
)

func TestSessionPoolsKeepTheLaws(t *testing.T) {
	each(t, setups, poolKeepsTheLaws)
}

func TestManagersKeepTheLaws(t *testing.T) {
	each(t, setups, func(t *testing.T, w world) { keepsTheLaws(t, w, false) })
}

func TestManagersWithSharedSessionsKeepTheLaws(t *testing.T) {
	each(t, setups, func(t *testing.T, w world) { keepsTheLaws(t, w, true, pglock.WithSharedSessions(2)) })
}

func TestPairsKeepTheLaws(t *testing.T) {
	each(t, setups[:len(drivers)+2], func(t *testing.T, w world) {
		w = w.inPairs()
		t.Run("pool", func(t *testing.T) { poolKeepsTheLaws(t, w) })
		t.Run("manager", func(t *testing.T) { keepsTheLaws(t, w, false) })
		t.Run("shared", func(t *testing.T) { keepsTheLaws(t, w, true, pglock.WithSharedSessions(2)) })
	})
}

func poolKeepsTheLaws(t *testing.T, w world) {
	portstest.TestSessionPool(t, nil, func(t *testing.T) portstest.Pool {
		return portstest.Pool{
			Pool:    w.pool(w.db(t, 8)),
			Holders: func(id int64, mode ports.Mode) []int { return w.holders(t, id, mode) },
			Waiters: func(id int64) int { return w.waitingFor(t, id) },
			Kill:    func(pid int) { kill(t, pid) },
		}
	})
}

func keepsTheLaws(t *testing.T, w world, shared bool, opts ...pglock.Option) {
	portstest.TestManager(t, nil, func(t *testing.T) portstest.Manager {
		return portstest.Manager{
			Merged: shared,
			New: func() ports.LockManager {
				m := w.manager(t, w.db(t, 16), append(opts, pglock.WithLivenessWindow(pglock.MinLivenessWindow))...)
				if err := m.Verify(bg); err != nil { // so that no law's time is spent on it
					t.Fatal(err)
				}
				return m
			},
			Holders: func(key string, mode ports.Mode) int { return len(w.holders(t, pglock.SHA256Key(key), mode)) },
			Lose:    func(lock ports.Lock) { kill(t, lock.Info().PID) },
		}
	})
}
