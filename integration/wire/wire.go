// Package wire counts what a driver sends to the server: connections,
// statements and round trips. These numbers are the same on every machine, so
// that tests can hold them to a limit, where times are noisy.
//
// It reads the messages of PostgreSQL's protocol as they leave the driver, so
// nothing that the library under test says about itself is believed. It
// understands connections without TLS, as tests and benchmarks have.
package wire

import (
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
)

// The drivers that Open knows, by their names in database/sql.
const (
	PQ  = "postgres"
	PGX = "pgx"
)

// Counter counts what is sent on the connections of the databases that it has
// opened. It is safe for concurrent use, and its zero value is ready.
type Counter struct {
	connections, statements, roundTrips atomic.Int64
}

// Counts are totals, or the difference of two.
type Counts struct {
	// Connections counts those opened, also those that only cancel a statement.
	Connections int64
	// Statements counts those executed: simple queries, which may be several
	// statements in one text, and executions of prepared ones.
	Statements int64
	// RoundTrips counts the times that the driver asked for an answer: simple
	// queries, and what ends in a Sync or a Flush, such as the preparation of a
	// statement. Those that open a connection do not count.
	RoundTrips int64
}

// Sub returns what has been counted since c was before.
func (c Counts) Sub(before Counts) Counts {
	return Counts{c.Connections - before.Connections, c.Statements - before.Statements, c.RoundTrips - before.RoundTrips}
}

// Counts returns the totals so far.
func (c *Counter) Counts() Counts {
	return Counts{c.connections.Load(), c.statements.Load(), c.roundTrips.Load()}
}

// Open is sql.Open with counted connections. dsn must not ask for TLS.
func (c *Counter) Open(driver, dsn string) (*sql.DB, error) {
	switch driver {
	case PQ:
		connector, err := pq.NewConnector(dsn)
		if err != nil {
			return nil, err
		}
		connector.Dialer(pqDialer{c})
		return sql.OpenDB(connector), nil
	case PGX:
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		config.DialFunc = c.dial
		return stdlib.OpenDB(*config), nil
	default:
		return nil, fmt.Errorf("wire: no driver %q: want %s or %s", driver, PQ, PGX)
	}
}

func (c *Counter) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.connections.Add(1)
	return &conn{Conn: nc, counter: c, starting: true}, nil
}

// pqDialer is what lib/pq asks for.
type pqDialer struct{ c *Counter }

func (d pqDialer) Dial(network, address string) (net.Conn, error) {
	return d.c.dial(context.Background(), network, address)
}

func (d pqDialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.c.dial(ctx, network, address)
}

func (d pqDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return d.c.dial(ctx, network, address)
}

// sslRequest is the code of the message that asks for TLS.
const sslRequest = 80877103

// conn follows the messages that are written to it.
type conn struct {
	net.Conn
	counter *Counter

	mu sync.Mutex // guards what follows
	// starting: the next message is one that opens a connection, which has a
	// code behind its length, and no type in front of it.
	starting bool
	head     []byte // of the next message, as far as it has been written
	rest     int    // bytes of the message under way that are still to come
}

// Write counts the messages that begin in b before it sends them, so that they
// have been counted when the answer comes.
func (c *conn) Write(b []byte) (int, error) {
	c.follow(b)
	return c.Conn.Write(b)
}

func (c *conn) follow(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(b) > 0 {
		if c.rest > 0 {
			n := min(c.rest, len(b))
			c.rest -= n
			b = b[n:]
			continue
		}
		size := 1 + 4 // type and length
		if c.starting {
			size = 4 + 4 // length and code
		}
		n := min(size-len(c.head), len(b))
		c.head = append(c.head, b[:n]...)
		b = b[n:]
		if len(c.head) < size {
			return
		}
		if c.starting {
			c.rest = int(binary.BigEndian.Uint32(c.head)) - 8
			// A server without TLS says no, and is asked without it.
			c.starting = binary.BigEndian.Uint32(c.head[4:]) == sslRequest
		} else {
			c.rest = int(binary.BigEndian.Uint32(c.head[1:])) - 4
			c.count(c.head[0])
		}
		c.head = c.head[:0]
	}
}

// count counts a message by its type.
func (c *conn) count(kind byte) {
	switch kind {
	case 'Q': // Query
		c.counter.statements.Add(1)
		c.counter.roundTrips.Add(1)
	case 'E': // Execute
		c.counter.statements.Add(1)
	case 'S', 'H': // Sync, Flush
		c.counter.roundTrips.Add(1)
	}
}
