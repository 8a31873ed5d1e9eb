package main

import (
	"cmp"
	"database/sql"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/adapters/pgxlock"
	"github.com/holdfast-go/holdfast/pglock"
)

// connectTimeout is how long a server may take to answer, if the user has not
// said it.
const connectTimeout = 10 * time.Second

// connection is what the flags say of the database and its locks.
type connection struct {
	url       string
	scheme    string
	namespace string
}

// open opens the database. It does not connect yet.
func (c *connection) open() (*sql.DB, error) {
	config, err := pgx.ParseConfig(cmp.Or(c.url, os.Getenv("DATABASE_URL"))) // "" is for the PG* variables
	if err != nil {
		return nil, usage("%w; say which database in --database-url, DATABASE_URL or the PG* variables", err)
	}
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, connectTimeout)
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "pglock"
	}
	// Few statements are sent, and poolers can handle those that are not
	// prepared.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	db := stdlib.OpenDB(*config)
	db.SetMaxIdleConns(1) // the proof of a setup needs two, a lock one
	return db, nil
}

// checkKeys finds out whether the scheme can derive an ID from each key.
func (c *connection) checkKeys(keys ...string) error {
	s, err := schemeOf(c.scheme)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if _, err := s.id(c.namespace + key); err != nil {
			return usage("key %q: %w, which --scheme %s needs", c.namespace+key, err, s.name)
		}
	}
	return nil
}

// manager makes a manager whose keys checkKeys has accepted.
func (c *connection) manager(db *sql.DB, opts ...pglock.Option) (*pglock.Manager, error) {
	s, err := schemeOf(c.scheme)
	if err != nil {
		return nil, err
	}
	derive := func(key string) int64 {
		id, err := s.id(key)
		if err != nil {
			panic(fmt.Sprintf("pglock: key %q was not checked: %v", key, err))
		}
		return id
	}
	return pglock.NewManager(pgxlock.NewPool(db), append(opts, pglock.WithKeyFunc(derive), pglock.WithNamespace(c.namespace))...), nil
}

// operator opens the database for looking at keys, or at none, rather than for
// taking locks.
func (c *connection) operator(keys ...string) (*sql.DB, *pglock.Manager, error) {
	if err := c.checkKeys(keys...); err != nil {
		return nil, nil, err
	}
	db, err := c.open()
	if err != nil {
		return nil, nil, err
	}
	m, err := c.manager(db)
	return db, m, err
}
