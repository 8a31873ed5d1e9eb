package main

import (
	"cmp"
	"database/sql"
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

// id derives the ID of key under the scheme.
func (c *connection) id(key string) (lockID, error) {
	s, err := schemeOf(c.scheme)
	if err != nil {
		return lockID{}, err
	}
	id, err := s.id(c.namespace + key)
	if err != nil {
		return lockID{}, usage("key %q: %w, which --scheme %s needs", c.namespace+key, err, s.name)
	}
	return id, nil
}

// manager makes a manager in the space of id, whose keys all have this ID.
func manager(db *sql.DB, id lockID, opts ...pglock.Option) *pglock.Manager {
	return pglock.NewManager(pgxlock.NewPool(db), append(opts, id.option())...)
}
