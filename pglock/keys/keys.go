// Package keys derives lock IDs as other software does that locks with
// PostgreSQL's advisory locks, so that a manager and that software exclude each
// other. The neighbour needs no change, and does not notice.
//
// PostgreSQL has two spaces of advisory locks that never meet: that of one bigint
// and that of two 32-bit integers. Functions here that give an int64 are about the
// first; use one with pglock.WithKeyFunc and sqllock.TxKeyID:
//
//	locks := pgxlock.New(db, pglock.WithKeyFunc(keys.GoodJob))
//
// Functions that give two int32 are about the second; use one with
// pglock.WithTwoIntegerKeys and sqllock.TxTwoIntegerKeys. What locks one thing
// only, such as a migration, has one number, for a manager of its own:
//
//	locks := pgxlock.New(db, pglock.WithKeyFunc(keys.Always(keys.Goose)))
//
// A manager is in one space, with one derivation; a service that locks in several
// ways makes a manager for each, on one *sql.DB.
//
// A derivation promises the number that the named software computes today, in the
// versions that its comment tells of. It cannot promise that a later version of
// that software computes the same, so test yours. All of them work within one
// database: advisory locks of two databases never meet.
package keys

import (
	"crypto/hkdf"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Always returns a key function that gives id for every key: all locks of its
// manager are one lock.
func Always(id int64) func(key string) int64 {
	return func(string) int64 { return id }
}

// AlwaysPair is Always in the space of two integers.
func AlwaysPair(first, second int32) func(key string) (int32, int32) {
	return func(string) (int32, int32) { return first, second }
}

// RailsMigration is the lock that migrations of Ruby on Rails hold, from
// Rails 5: 2053462845 times the CRC-32 of the name of the database.
//
// Source: ActiveRecord::Migrator, generate_migrator_advisory_lock_id.
func RailsMigration(database string) int64 {
	return 2053462845 * int64(crc(database))
}

// SQLxMigrate is the lock that migrations of sqlx for Rust hold: 0x3d32ad9e times
// the CRC-32 of the name of the database.
//
// Source: sqlx-postgres, src/migrate.rs, generate_lock_id.
func SQLxMigrate(database string) int64 {
	return 0x3d32ad9e * int64(crc(database))
}

// SQLx is PgAdvisoryLock::new of sqlx for Rust: eight bytes, little-endian, that
// HKDF-SHA-256 derives from the key without a salt, for the use "SQLx (Rust)
// Postgres advisory lock".
//
// Source: sqlx-postgres, src/advisory_lock.rs.
func SQLx(key string) int64 {
	b, err := hkdf.Key(sha256.New, []byte(key), nil, "SQLx (Rust) Postgres advisory lock", 8)
	if err != nil {
		panic(err) // only for more bytes, or in a mode of FIPS 140 that forbids short keys
	}
	return int64(binary.LittleEndian.Uint64(b))
}

// River is how River hashes what it locks: the 64-bit FNV-1 hash, taken as a
// signed number. With a prefix other than 0, as in its Config.AdvisoryLockPrefix,
// the prefix is the high half and the 32-bit FNV-1 hash the low half.
//
// Source: riverqueue/river, internal/hashutil.
func River(prefix int32) func(key string) int64 {
	if prefix == 0 {
		return func(key string) int64 {
			h := fnv.New64()
			h.Write([]byte(key))
			return int64(h.Sum64())
		}
	}
	return func(key string) int64 {
		h := fnv.New32()
		h.Write([]byte(key))
		// River widens the prefix with its sign; the shift drops that.
		return int64(uint64(prefix)<<32 | uint64(h.Sum32()))
	}
}

// GoodJob is how GoodJob locks a text: the first eight bytes of its MD5 sum,
// big-endian, taken as a signed number. The text of a job's lock is the table, a
// hyphen and the job's ID.
//
// Source: GoodJob::AdvisoryLockable, which has the server compute
// ('x' || substr(md5(key), 1, 16))::bit(64)::bigint.
func GoodJob(key string) int64 {
	sum := md5.Sum([]byte(key))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// DjangoPGLock is how django-pglock locks a string: the first eight bytes of its
// SHA-256 sum, little-endian, taken as a signed number.
//
// Source: pglock.core, _cast_lock_id.
func DjangoPGLock(key string) int64 {
	sum := sha256.Sum256([]byte(key))
	return int64(binary.LittleEndian.Uint64(sum[:8]))
}

// DjangoPGLocks is how django-pglocks, which is other software, locks a string:
// its CRC-32, taken as a signed number of 32 bits, as a bigint. A number it locks
// as it is, and a tuple of two in the space of two integers (AlwaysPair).
//
// Source: django_pglocks.advisory_lock, 1.0.
func DjangoPGLocks(key string) int64 { return int64(int32(crc(key))) }

// GolangMigrate is the lock that golang-migrate's drivers for PostgreSQL hold,
// from its version 4: the CRC-32 of the schema, the table of migrations and the
// database, with NUL bytes between them, times 1486364155, modulo 2³². Its
// defaults are the schema that the connection is in, and schema_migrations.
//
// The database is the DatabaseName in the driver's Config or, where that is empty,
// the one that the connection is in. A driver that is opened by a URL, as by
// migrate.New and by the command migrate, has the path of the URL there, with the
// slash: "/app" for postgres://host/app, and not "app".
//
// Source: golang-migrate/migrate, database/util.go, GenerateAdvisoryLockId.
func GolangMigrate(database, schema, table string) int64 {
	return int64(crc(schema+"\x00"+table+"\x00"+database) * 1486364155)
}

// Goose is the lock of goose's session locker, if it is given no other: the
// CRC-32 of "goose". The first releases with a session locker had another one.
//
// Source: pressly/goose, lock.DefaultLockID.
const Goose int64 = 4097083626

// Prisma is the lock of Prisma Migrate: a number of no further meaning.
//
// Source: prisma-engines, the SQL schema connector's flavour for PostgreSQL.
const Prisma int64 = 72707369

// Flyway is the lock that Flyway holds while it migrates: 77431708279161, which
// spells "Flyway", plus Java's hash of the quoted names of the schema and the
// table of its history, as in "public"."flyway_schema_history". With
// flyway.postgresql.transactional.lock it is a transaction's lock, on the same
// number.
//
// Source: org.flywaydb.database.postgresql, PostgreSQLConnection.lock and
// PostgreSQLAdvisoryLockTemplate. Flyway 4 and early releases of 5 locked the first
// number alone.
func Flyway(schema, table string) int64 {
	const magic = 'F'<<40 + 'l'<<32 + 'y'<<24 + 'w'<<16 + 'a'<<8 + 'y'
	return magic + int64(javaHash(`"`+schema+`"."`+table+`"`))
}

// javaHash is java.lang.String.hashCode.
func javaHash(s string) (h int32) {
	for _, unit := range utf16.Encode([]rune(s)) {
		h = 31*h + int32(unit)
	}
	return h
}

// DistributedLock is the key that the .NET library DistributedLock makes of a
// name, where it may hash (allowHashing). The name decides about the space:
//   - one of at most nine ASCII characters is a pair, of seven bits a character;
//   - two hexadecimal numbers of eight digits with a comma between them are a
//     pair;
//   - one hexadecimal number of sixteen digits is a bigint;
//   - of any other, the first eight bytes of the SHA-1 sum, little-endian, are a
//     bigint.
//
// Of a pair, id is what ports.PairID makes.
//
// Source: madelson/DistributedLock, PostgresAdvisoryLockKey.
func DistributedLock(name string) (id int64, pair bool) {
	if id, ok := packASCII(name); ok {
		return id, true
	}
	high, low, pair := strings.Cut(name, ",")
	if !pair && len(name) == 16 {
		high, low = name[:8], name[8:]
	}
	first, isFirst := hexadecimal(high)
	second, isSecond := hexadecimal(low)
	if isFirst && isSecond {
		return int64(first<<32 | second), pair
	}
	sum := sha1.Sum([]byte(name))
	return int64(binary.LittleEndian.Uint64(sum[:8])), false
}

// packASCII puts at most nine ASCII characters into 63 bits. A zero ends them,
// and ones fill what is left.
func packASCII(name string) (id int64, ok bool) {
	const most, bits, ones = 9, 7, 1<<7 - 1
	if len(name) > most {
		return 0, false
	}
	for _, c := range []byte(name) {
		if c > ones {
			return 0, false
		}
		id = id<<bits | int64(c)
	}
	id <<= 1
	for range most - len(name) {
		id = id<<bits | ones
	}
	return id, true
}

// hexadecimal reads eight hexadecimal digits.
func hexadecimal(digits string) (n uint64, ok bool) {
	n, err := strconv.ParseUint(digits, 16, 32)
	return n, err == nil && len(digits) == 8
}

// WithAdvisoryLock is how the Ruby gem with_advisory_lock locks a name, which it
// does in the space of two integers: 31 bits of the CRC-32 of the name, and 0. In
// the place of the 0 is the environment variable WITH_ADVISORY_LOCK_PREFIX, if it
// is set there and begins with a number.
//
// Source: ClosureTree/with_advisory_lock, lock_keys_for.
func WithAdvisoryLock(name string) (first, second int32) {
	return int32(crc(name) & 0x7fffffff), 0
}

// HashText is pg_advisory_lock(hashtext(key)): PostgreSQL's 32-bit hash of a text,
// taken as a signed number, as a bigint. HashTextExtended says where it holds.
//
// Source: PostgreSQL, hash_any in src/common/hashfn.c, unchanged since 8.4.
func HashText(key string) int64 {
	_, hash := lookup3(key, 0)
	return int64(int32(hash))
}

// HashTextPair is pg_advisory_lock(first, hashtext(key)), which has a first number
// for each kind of thing that is locked.
func HashTextPair(first int32) func(key string) (int32, int32) {
	return func(key string) (int32, int32) { return first, int32(HashText(key)) }
}

// HashTextExtended is pg_advisory_lock(hashtextextended(key, seed)): PostgreSQL's
// 64-bit hash of a text; most people give it the seed 0.
//
// It is the server's number where the server's processor is little-endian, as
// nearly all are, its encoding is UTF-8, and the text has a deterministic
// collation, as it has unless someone has made another one. A text in PostgreSQL
// holds no NUL byte, so such a key has no counterpart.
//
// Source: PostgreSQL, hash_any_extended in src/common/hashfn.c, from 11.
func HashTextExtended(seed int64) func(key string) int64 {
	return func(key string) int64 {
		high, low := lookup3(key, uint64(seed))
		return int64(uint64(high)<<32 | uint64(low))
	}
}

// crc is the CRC-32 that zlib computes.
func crc(s string) uint32 { return crc32.ChecksumIEEE([]byte(s)) }
