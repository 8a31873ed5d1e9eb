//go:build linux

package faults

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
)

// A holder's process is killed, and its kernel closes the connection: whoever
// waits has the lock as soon as with the server's own function.
func TestCase16AKilledHoldersLockIsFreeAtOnce(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		const rounds = 25
		var ours, raw []time.Duration
		m := w.manager(t, w.db(t, 2))
		acquireReleased(t, m)
		conn := w.raw(t)
		for i := range rounds {
			key := fmt.Sprint(i)
			holder := startHolder(t, holderRole, w.setup, w.dsn, key, pglock.DefaultLivenessWindow, "")
			later := acquireLater(m, key)
			eventually(t, "somebody waits", func() bool { return w.waiting(t, key) == 1 })
			killed := time.Now()
			holder.cmd.Process.Signal(syscall.SIGKILL)
			r := receive(t, "the lock", later)
			must(t, r.err)
			ours = append(ours, r.at.Sub(killed))
			must(t, r.lock.Release(bg))

			holder = startHolder(t, rawHolderRole, w.setup, w.dsn, key, 0, "")
			got := make(chan time.Time, 1)
			go func() {
				if _, err := conn.Exec(bg, fmt.Sprintf(`SELECT pg_advisory_lock(%d)`, pglock.SHA256Key(key))); err != nil {
					t.Error(err)
				}
				got <- time.Now()
			}()
			eventually(t, "somebody waits", func() bool { return w.waiting(t, key) == 1 })
			killed = time.Now()
			holder.cmd.Process.Signal(syscall.SIGKILL)
			raw = append(raw, receive(t, "the lock", got).Sub(killed))
			unlockRaw(t, conn)
		}
		slices.Sort(ours)
		slices.Sort(raw)
		t.Logf("takeover after a SIGKILL: median %v, worst %v; the server's own: median %v, worst %v",
			ours[rounds/2], ours[rounds-1], raw[rounds/2], raw[rounds-1])
		if limit := raw[rounds/2] + 500*time.Millisecond; ours[rounds/2] > limit {
			t.Errorf("the median is %v, above %v", ours[rounds/2], limit)
		}
		if worst := ours[rounds-1]; worst > pglock.MinLivenessWindow {
			t.Errorf("the worst is %v", worst)
		}
		if n := w.locks(t); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}

// acquireReleased has a manager prove its setup.
func acquireReleased(t testing.TB, m *pglock.Manager) {
	t.Helper()
	must(t, acquire(t, m, "first").Release(bg))
}
