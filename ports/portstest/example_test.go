package portstest_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
	"github.com/holdfast-go/holdfast/ports/portstest"
)

// The body of a test of a decorator, or of a double: each law runs on a server
// of its own, in the virtual time of synctest. Give nil instead of
// synctest.Test if the server is a real one.
func ExampleTestManager() {
	var t *testing.T // the test's

	portstest.TestManager(t, synctest.Test, func(t *testing.T) portstest.Manager {
		server := memlock.NewServer()
		return portstest.Manager{
			New: func() ports.LockManager {
				locks := memlock.New(server)
				t.Cleanup(func() {
					if err := locks.Close(context.Background()); err != nil {
						t.Error(err)
					}
				})
				return locks // or what you have built around it
			},
			Holders: func(key string, mode ports.Mode) int {
				n := 0
				for _, holder := range server.Holders(pglock.SHA256Key(key)) {
					if holder.Mode == mode {
						n++
					}
				}
				return n
			},
			Lose: func(lock ports.Lock) { server.Kill(lock.Info().PID) },
		}
	})
}

// The body of a test of an adapter. One for a real server gives nil instead of
// synctest.Test, and looks into pg_locks and pg_stat_activity on a connection
// of its own.
func ExampleTestSessionPool() {
	var t *testing.T // the test's

	portstest.TestSessionPool(t, synctest.Test, func(t *testing.T) portstest.Pool {
		server := memlock.NewServer()
		return portstest.Pool{
			Pool: server.Pool(),
			Holders: func(id int64, mode ports.Mode) []int {
				var pids []int
				for _, holder := range server.Holders(id) {
					if holder.Mode == mode {
						pids = append(pids, holder.PID)
					}
				}
				return pids
			},
			Waiters: server.Waiters,
			Kill:    func(pid int) { server.Kill(pid) },
		}
	})
}
