package main

import (
	"errors"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/pglock/keys"
)

// scheme is a way to derive the ID of a lock from a key.
type scheme struct {
	name string
	from string // where it comes from
	id   func(key string) (int64, error)
}

// schemes are the ways that the tool knows, the default first. To add one, add a
// line.
var schemes = []scheme{
	{"sha256", "pglock.SHA256Key: Holdfast's default, eventsource-py", always(pglock.SHA256Key)},
	{"fnv1a", "pglock.FNV1aKey: articles on advisory locks in Go", always(pglock.FNV1aKey)},
	{"sqlx", "keys.SQLx: PgAdvisoryLock of sqlx for Rust", always(keys.SQLx)},
	{"river", "keys.River(0): River without a prefix", always(keys.River(0))},
	{"goodjob", "keys.GoodJob: GoodJob for Ruby", always(keys.GoodJob)},
	{"django-pglock", "keys.DjangoPGLock: django-pglock", always(keys.DjangoPGLock)},
	{"django-pglocks", "keys.DjangoPGLocks: django-pglocks, other software", always(keys.DjangoPGLocks)},
	{"hashtext", "keys.HashText: pg_advisory_lock(hashtext(key))", always(keys.HashText)},
	{"hashtextextended", "keys.HashTextExtended(0): hashtextextended(key, 0)", always(keys.HashTextExtended(0))},
	{"number", "the key is the ID, as in pg_advisory_lock(42)", number},
}

// always makes an id function of one that takes any key.
func always(f func(string) int64) func(string) (int64, error) {
	return func(key string) (int64, error) { return f(key), nil }
}

func number(key string) (int64, error) {
	id, err := strconv.ParseInt(key, 10, 64)
	if err != nil {
		return 0, errors.New("not a number of 64 bits")
	}
	return id, nil
}

// schemeOf finds a scheme by its name.
func schemeOf(name string) (scheme, error) {
	for _, s := range schemes {
		if s.name == name {
			return s, nil
		}
	}
	return scheme{}, usage("there is no scheme %q; --scheme is one of %s", name, schemeNames())
}

func schemeNames() string {
	var names []string
	for _, s := range schemes {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}
