package pglock

import "time"

// KeepWarm has m keep its sessions warm from the after-th lock in a row on, for d.
func KeepWarm(m *Manager, after int, d time.Duration) { m.warmAfter, m.keepWarm = after, d }
