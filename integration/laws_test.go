package integration

import (
	"testing"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
	"github.com/holdfast-go/holdfast/ports/portstest"
)

func TestSessionPoolsKeepTheLaws(t *testing.T) {
	each(t, setups, provePool)
}

func TestManagersKeepTheLaws(t *testing.T) {
	each(t, setups, proveManager)
}

func TestTheLawsHoldForPairs(t *testing.T) {
	each(t, setups[:len(drivers)+2], func(t *testing.T, w world) {
		t.Run("pool", func(t *testing.T) { provePool(t, w.inPairs()) })
		t.Run("manager", func(t *testing.T) { proveManager(t, w.inPairs()) })
	})
}

func provePool(t *testing.T, w world) {
	portstest.TestSessionPool(t, nil, func(t *testing.T) portstest.Pool {
		return portstest.Pool{
			Pool:    w.pool(w.db(t, 8)),
			Holders: func(id int64, mode ports.Mode) []int { return w.holders(t, id, mode) },
			Waiters: func(id int64) int { return w.waitingFor(t, id) },
			Kill:    func(pid int) { kill(t, pid) },
		}
	})
}

func proveManager(t *testing.T, w world) {
	portstest.TestManager(t, nil, func(t *testing.T) portstest.Manager {
		return portstest.Manager{
			New: func() ports.LockManager {
				m := w.manager(t, w.db(t, 16), pglock.WithLivenessWindow(pglock.MinLivenessWindow))
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
