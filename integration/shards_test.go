package integration

import (
	"context"
	"database/sql"
	"testing"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
)

// Two databases are two shards: they exclude independently, and RunTx runs on the
// one that has the lock.
func TestALockOfAShardRunsTransactionsOnItsServer(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		worlds := map[string]world{"one": w, "two": newWorld(t, w.setup)}
		var shards []pglock.Shard
		for name, w := range worlds {
			shards = append(shards, pglock.Shard{Name: name, Locks: w.manager(t, w.db(t, 4))})
		}
		locks := pglock.Sharded(shards...)
		must(t, locks.Verify(bg))
		keys := make(map[string]string)
		for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			keys[locks.ShardOf(key).Name] = key
		}
		if len(keys) != 2 {
			t.Fatalf("the keys are on %v only", keys)
		}
		for name, key := range keys {
			lock, err := locks.Acquire(bg, key)
			must(t, err)
			for other, w := range worlds {
				want := 0
				if other == name {
					want = 1
				}
				if n := w.held(t, key); n != want {
					t.Errorf("%q of shard %s is held by %d on %s, want %d", key, name, n, other, want)
				}
			}
			must(t, sqllock.RunTx(bg, lock, nil, func(ctx context.Context, tx *sql.Tx) error {
				var pid, oid int
				if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid(), oid::int FROM pg_database WHERE datname = current_database()`).Scan(&pid, &oid); err != nil {
					return err
				}
				if pid != lock.Info().PID || oid != worlds[name].oid {
					t.Errorf("it ran in process %d of database %d, the lock is process %d's of %d", pid, oid, lock.Info().PID, worlds[name].oid)
				}
				return nil
			}))
			must(t, lock.Release(bg))
		}
	})
}
