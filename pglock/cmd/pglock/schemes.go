package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/pglock/keys"
	"github.com/holdfast-go/holdfast/ports"
)

// lockID is the ID of a lock: a bigint, or two integers, which are a space of
// locks of their own. One of both is set. Programs get the one that it is, so that
// none takes a pair for a bigint.
type lockID struct {
	ID   *int64    `json:"id,omitempty"`
	Pair *[2]int32 `json:"pair,omitempty"`
}

func bigintID(n int64) lockID { return lockID{ID: &n} }

// pairID unpacks what ports.PairID has packed.
func pairID(packed int64) lockID {
	first, second := ports.IDPair(packed)
	return lockID{Pair: &[2]int32{first, second}}
}

// compare orders the IDs of one space by their numbers.
func (id lockID) compare(other lockID) int {
	if id.Pair != nil {
		return slices.Compare(id.Pair[:], other.Pair[:])
	}
	return cmp.Compare(*id.ID, *other.ID)
}

// String is what the schemes number and pair take.
func (id lockID) String() string {
	if id.Pair != nil {
		return fmt.Sprintf("%d,%d", id.Pair[0], id.Pair[1])
	}
	return strconv.FormatInt(*id.ID, 10)
}

// option gives every key of a manager this ID.
func (id lockID) option() pglock.Option {
	if id.Pair != nil {
		return pglock.WithTwoIntegerKeys(keys.AlwaysPair(id.Pair[0], id.Pair[1]))
	}
	return pglock.WithKeyFunc(keys.Always(*id.ID))
}

// scheme is a way to derive the ID of a lock from a key.
type scheme struct {
	name string
	from string // where it comes from
	id   func(key string) (lockID, error)
}

// schemes are the ways that the tool knows, the default first. To add one, add a
// line.
var schemes = []scheme{
	{"sha256", "pglock.SHA256Key: Holdfast's default, eventsource-py", bigints(pglock.SHA256Key)},
	{"fnv1a", "pglock.FNV1aKey: articles on advisory locks in Go", bigints(pglock.FNV1aKey)},
	{"sqlx", "keys.SQLx: PgAdvisoryLock of sqlx for Rust", bigints(keys.SQLx)},
	{"river", "keys.River(0): River without a prefix", bigints(keys.River(0))},
	{"goodjob", "keys.GoodJob: GoodJob for Ruby", bigints(keys.GoodJob)},
	{"django-pglock", "keys.DjangoPGLock: django-pglock", bigints(keys.DjangoPGLock)},
	{"django-pglocks", "keys.DjangoPGLocks: django-pglocks, other software", bigints(keys.DjangoPGLocks)},
	{"dotnet", "keys.DistributedLock: DistributedLock for .NET", dotnet},
	{"with-advisory-lock", "keys.WithAdvisoryLock: with_advisory_lock for Ruby", withAdvisoryLock},
	{"hashtext", "keys.HashText: pg_advisory_lock(hashtext(key))", bigints(keys.HashText)},
	{"hashtextextended", "keys.HashTextExtended(0): hashtextextended(key, 0)", bigints(keys.HashTextExtended(0))},
	{"number", "the key is the ID, as in pg_advisory_lock(42)", number},
	{"pair", "the key is the ID, as in pg_advisory_lock(1, 2)", pair},
}

// bigints makes an id function of one that takes any key.
func bigints(f func(string) int64) func(string) (lockID, error) {
	return func(key string) (lockID, error) { return bigintID(f(key)), nil }
}

// dotnet derives an ID in the space that the key decides about.
func dotnet(key string) (lockID, error) {
	id, pair := keys.DistributedLock(key)
	if pair {
		return pairID(id), nil
	}
	return bigintID(id), nil
}

func withAdvisoryLock(key string) (lockID, error) {
	first, second := keys.WithAdvisoryLock(key)
	return lockID{Pair: &[2]int32{first, second}}, nil
}

func number(key string) (lockID, error) {
	id, err := strconv.ParseInt(key, 10, 64)
	if err != nil {
		return lockID{}, errors.New("not a number of 64 bits")
	}
	return bigintID(id), nil
}

func pair(key string) (lockID, error) {
	left, right, _ := strings.Cut(key, ",")
	first, err1 := strconv.ParseInt(left, 10, 32)
	second, err2 := strconv.ParseInt(right, 10, 32)
	if err1 != nil || err2 != nil {
		return lockID{}, errors.New("not two signed numbers of 32 bits with a comma between them, as 1,2")
	}
	return lockID{Pair: &[2]int32{int32(first), int32(second)}}, nil
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
