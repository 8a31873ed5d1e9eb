package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/integration/wire"
)

// arena is the server that a contestant works on, seen from outside.
type arena interface {
	// connections counts all those of clients.
	connections() (int, error)
	// statements counts those that the contestant has sent, or the commands.
	statements() (int64, error)
	close() error
}

// arena returns the view of the server that c works on at p.
func (b *bench) arena(c contestant, p place) (arena, error) {
	if c.driver == "" {
		client := redis.NewClient(&redis.Options{Addr: p.Redis, PoolSize: 1})
		return redisArena{client}, client.Ping(context.Background()).Err()
	}
	return &sqlArena{b, p.DSN, p.counter}, nil
}

// quiet waits until no connection of the contestant is left, which would cost
// the next one time.
func (b *bench) quiet(server arena, others int) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		n, err := server.connections()
		if err != nil || n <= others {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d connections are left", n-others)
		}
	}
}

type sqlArena struct {
	b       *bench
	dsn     string
	counter *wire.Counter
}

func (a *sqlArena) connections() (n int, err error) {
	err = a.b.admin.QueryRow(`SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = $1`, database(a.dsn)).Scan(&n)
	return n, err
}

func (a *sqlArena) statements() (int64, error) { return a.counter.Counts().Statements, nil }
func (a *sqlArena) close() error               { return nil }

type redisArena struct{ *redis.Client }

func (a redisArena) info(section, field string) (n int64, err error) {
	text, err := a.Info(context.Background(), section).Result()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(redisField(text, field), 10, 64)
}

func (a redisArena) connections() (int, error) {
	n, err := a.info("clients", "connected_clients")
	return int(n), err
}

func (a redisArena) statements() (int64, error) { return a.info("stats", "total_commands_processed") }
func (a redisArena) close() error               { return a.Close() }
