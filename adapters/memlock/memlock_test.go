package memlock_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
	"github.com/holdfast-go/holdfast/ports/portstest"
)

func poolHarness(server *memlock.Server, pool *memlock.Pool) portstest.Pool {
	return portstest.Pool{
		Pool: pool,
		Holders: func(id int64, mode ports.Mode) (pids []int) {
			for _, h := range server.Holders(id) {
				if h.Mode == mode {
					pids = append(pids, h.PID)
				}
			}
			return pids
		},
		Waiters: server.Waiters,
		Kill:    func(pid int) { server.Kill(pid) },
	}
}

func TestPoolKeepsTheLaws(t *testing.T) {
	for name, opts := range map[string][]memlock.PoolOption{"watching": nil, "blind": {memlock.WithoutWatch()}} {
		t.Run(name, func(t *testing.T) {
			portstest.TestSessionPool(t, synctest.Test, func(t *testing.T) portstest.Pool {
				server := memlock.NewServer()
				return poolHarness(server, server.Pool(opts...))
			})
		})
	}
}

func TestAPoolOfPairsKeepsTheLaws(t *testing.T) {
	portstest.TestSessionPool(t, synctest.Test, func(t *testing.T) portstest.Pool {
		pairs := memlock.NewServer().Pairs()
		return poolHarness(pairs, pairs.Pool())
	})
}

func TestManagerKeepsTheLaws(t *testing.T) {
	for name, opts := range map[string][]memlock.PoolOption{"watching": nil, "blind": {memlock.WithoutWatch()}, "bounded": {memlock.WithLimit(16)}} {
		t.Run(name, func(t *testing.T) { managerLaws(t, opts, false) })
		for n := range 2 {
			t.Run(fmt.Sprintf("%s, %d shared", name, n+1), func(t *testing.T) {
				managerLaws(t, opts, true, pglock.WithSharedSessions(n+1))
			})
		}
	}
}

func managerLaws(t *testing.T, opts []memlock.PoolOption, merged bool, managerOpts ...pglock.Option) {
	portstest.TestManager(t, synctest.Test, func(t *testing.T) portstest.Manager {
		server := memlock.NewServer()
		return portstest.Manager{
			Merged: merged,
			New: func() ports.LockManager {
				pool := server.Pool(opts...)
				m := pglock.NewManager(pool, managerOpts...)
				t.Cleanup(func() {
					if err := m.Close(t.Context()); err != nil {
						t.Error(err)
					}
					if n, _ := pool.Usage(); n != 0 {
						t.Errorf("%d sessions are still in use", n)
					}
				})
				return m
			},
			Holders: func(key string, mode ports.Mode) (n int) {
				for _, h := range server.Holders(pglock.SHA256Key(key)) {
					if h.Mode == mode {
						n++
					}
				}
				return n
			},
			Lose: func(lock ports.Lock) { server.Kill(lock.Info().PID) },
		}
	})
}
