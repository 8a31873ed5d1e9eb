package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Limits of the wait for a server.
const (
	dsnPatience     = 10 * time.Second // one that should be there already
	startPatience   = 60 * time.Second // one that was just started
	attemptPatience = 5 * time.Second  // one attempt to connect
	attemptPause    = 20 * time.Millisecond
)

// startDSN gives the server in HOLDFAST_DSN.
func startDSN(ctx context.Context, c config) (*Server, error) {
	if c.dsn == "" {
		return nil, errors.New("HOLDFAST_DSN is not set")
	}
	address, err := url.Parse(c.dsn)
	if err != nil || (address.Scheme != "postgres" && address.Scheme != "postgresql") {
		// The address is not repeated: it may have a password in it.
		return nil, errors.New("HOLDFAST_DSN is not a postgres:// URL")
	}
	if address.RawQuery == "" {
		address.ForceQuery = true // so that "&name=value" can be added
	}
	ctx, cancel := context.WithTimeout(ctx, dsnPatience)
	defer cancel()
	conn, err := connect(ctx, address.String(), nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	server := &Server{
		provider: dsnProvider,
		dsn:      address.String(),
		place:    "at " + address.Host,
		remove:   func() error { return nil },
	}
	if err := server.readVersion(ctx, conn, c); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.settings)) {
		var has, raw *string
		const ask = "select current_setting($1, true), (select setting from pg_settings where name = lower($1))"
		if err := conn.QueryRow(ctx, ask, name).Scan(&has, &raw); err != nil {
			return nil, err
		}
		want := c.settings[name]
		if (has == nil || *has != want) && (raw == nil || *raw != want) {
			now := "no such setting"
			if has != nil {
				now = *has
			}
			return nil, fmt.Errorf("the setting %s is to be %q and is %q on the server in HOLDFAST_DSN, which is not reconfigured", name, want, now)
		}
	}
	return server, nil
}

// readVersion fills in the server's version, which must be one that c accepts.
func (s *Server) readVersion(ctx context.Context, conn *pgx.Conn, c config) error {
	const ask = "select current_setting('server_version'), current_setting('server_version_num')::int / 10000"
	if err := conn.QueryRow(ctx, ask).Scan(&s.version, &s.major); err != nil {
		return err
	}
	return c.check(s.major)
}

// connect returns a connection to the server at dsn as soon as it takes one. It
// gives up when ctx ends, when ended is closed, and when the server answers
// with anything but that it is not ready yet.
func connect(ctx context.Context, dsn string, ended <-chan struct{}) (*pgx.Conn, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptPatience)
		conn, err := pgx.Connect(attempt, dsn)
		cancel()
		if err == nil {
			return conn, nil
		}
		const cannotConnectNow = "57P03"
		var refusal *pgconn.PgError
		if errors.As(err, &refusal) && refusal.Code != cannotConnectNow {
			return nil, err
		}
		select {
		case <-ended:
			return nil, errors.New("the server ended while it was starting")
		case <-ctx.Done():
			return nil, fmt.Errorf("the server takes no connections (%w): %w", context.Cause(ctx), err)
		case <-time.After(attemptPause):
		}
	}
}

// oneLine returns err with its text on one line.
func oneLine(err error) error {
	return lineError{err}
}

type lineError struct{ error }

func (e lineError) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }

func (e lineError) Unwrap() error { return e.error }
