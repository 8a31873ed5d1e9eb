package main

import (
	"context"
	"database/sql"
	"fmt"
)

// table keeps tenants in a table of PostgreSQL. It implements Tenants; the
// column paused_by is the attempt that has paused the tenant last.
type table struct {
	db   *sql.DB
	name string
}

// createTable makes the table in a schema of its own.
func createTable(ctx context.Context, db *sql.DB, schema string) (*table, error) {
	t := &table{db: db, name: schema + ".tenants"}
	_, err := db.ExecContext(ctx, `CREATE SCHEMA `+schema+`;
		CREATE TABLE `+t.name+` (
			id        text PRIMARY KEY,
			state     text NOT NULL,
			route     text NOT NULL DEFAULT 'source',
			lag       integer NOT NULL,
			paused_by text
		)`)
	return t, err
}

// add puts a tenant into the table.
func (t *table) add(ctx context.Context, tenant string, state State, lag int) error {
	return t.change(ctx, `INSERT INTO `+t.name+` (id, state, lag) VALUES ($1, $2, $3)`, tenant, string(state), lag)
}

// describe says where the tenant's events go, and whether they do.
func (t *table) describe(ctx context.Context, tenant string) (string, error) {
	var route, state string
	var paused bool
	err := t.db.QueryRowContext(ctx, `SELECT route, state, paused_by IS NOT NULL FROM `+t.name+` WHERE id = $1`, tenant).Scan(&route, &state, &paused)
	return fmt.Sprintf("route %s, state %s, writes paused: %v", route, state, paused), err
}

func (t *table) State(ctx context.Context, tenant string) (State, error) {
	var state State
	err := t.db.QueryRowContext(ctx, `SELECT state FROM `+t.name+` WHERE id = $1`, tenant).Scan(&state)
	return state, err
}

func (t *table) Lag(ctx context.Context, tenant string) (int, error) {
	var lag int
	err := t.db.QueryRowContext(ctx, `SELECT lag FROM `+t.name+` WHERE id = $1`, tenant).Scan(&lag)
	return lag, err
}

func (t *table) Pause(ctx context.Context, tenant, attempt string) error {
	// The state is part of the condition so that an actor that lost its lock
	// before it came here cannot pause, and then roll back, what is migrated.
	return t.change(ctx, `UPDATE `+t.name+` SET paused_by = $2 WHERE id = $1 AND state IN ($3, $4)`,
		tenant, attempt, string(DualWrite), string(CutoverPaused))
}

func (t *table) SetState(ctx context.Context, tenant, attempt string, state State) error {
	return t.change(ctx, `UPDATE `+t.name+` SET state = $3 WHERE id = $1 AND paused_by = $2`, tenant, attempt, string(state))
}

func (t *table) SetRoute(ctx context.Context, tenant, attempt string, store Store) error {
	return t.change(ctx, `UPDATE `+t.name+` SET route = $3 WHERE id = $1 AND paused_by = $2`, tenant, attempt, string(store))
}

func (t *table) Resume(ctx context.Context, tenant, attempt string) error {
	return t.change(ctx, `UPDATE `+t.name+` SET paused_by = NULL WHERE id = $1 AND paused_by = $2`, tenant, attempt)
}

// change runs a statement that must change one row.
func (t *table) change(ctx context.Context, statement string, args ...any) error {
	result, err := t.db.ExecContext(ctx, statement, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return ErrOvertaken
}
