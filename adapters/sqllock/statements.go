package sqllock

import (
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// All SQL of Holdfast stands in this file. Every statement is one round trip
// and leaves no setting changed.

// answerable starts each statement that takes a session lock: which server
// process answers, in which database, and whether it is in recovery. A server in recovery grants
// locks that exclude nobody on the primary, so the CASE that follows takes none
// there. PostgreSQL evaluates a CASE lazily and in order, and does not fold
// volatile functions.
const answerable = `SELECT pg_backend_pid(), current_database(), pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN false `

// limitWait sets lock_timeout for this statement alone: the third argument of
// set_config makes it local to the transaction, which is the statement. It is
// kept below half of deadlock_timeout, whatever that is on this server, so that
// no wait lives to see the deadlock detector; and above 0, which would be no
// limit at all.
const limitWait = `set_config('lock_timeout', greatest(1, least($2::bigint, (extract(epoch FROM current_setting('deadlock_timeout')::interval) * 500)::bigint))::text, true)`

const (
	tryExclusive  = answerable + `ELSE pg_try_advisory_lock($1::bigint) END`
	tryShared     = answerable + `ELSE pg_try_advisory_lock_shared($1::bigint) END`
	waitExclusive = answerable + `WHEN ` + limitWait + ` IS NULL THEN false ELSE pg_advisory_lock($1::bigint) IS NOT NULL END`
	waitShared    = answerable + `WHEN ` + limitWait + ` IS NULL THEN false ELSE pg_advisory_lock_shared($1::bigint) IS NOT NULL END`

	unlockExclusive = `SELECT pg_advisory_unlock($1::bigint)`
	unlockShared    = `SELECT pg_advisory_unlock_shared($1::bigint)`
	// thenAll, behind an unlock, takes whatever else the session holds: counts
	// that were stacked, locks of the caller's own SQL.
	thenAll   = `, pg_advisory_unlock_all()::text IS NULL`
	unlockAll = `SELECT pg_advisory_unlock_all()::text IS NULL`

	// ownLocks are the advisory locks of this session in the bigint space of
	// this database. pg_locks shows the halves of the number as unsigned OIDs;
	// shifting the high one left wraps to the signed number.
	ownLocks = ` FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted AND objsubid = 1` +
		` AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	ownID = `((classid::bigint << 32) | objid::bigint)`

	// The clear statements give one lock back if the session has it, and
	// log no warning if it does not.
	clearExclusive = `SELECT coalesce(bool_and(pg_advisory_unlock($1::bigint)), true)` + ownLocks + ` AND mode = 'ExclusiveLock' AND ` + ownID + ` = $1::bigint`
	clearShared    = `SELECT coalesce(bool_and(pg_advisory_unlock_shared($1::bigint)), true)` + ownLocks + ` AND mode = 'ShareLock' AND ` + ownID + ` = $1::bigint`

	signOfLife = `SELECT pg_backend_pid()`
	// countHeld counts which of the IDs in $1 the session holds.
	countHeld = `SELECT pg_backend_pid(), count(DISTINCT ` + ownID + `)` + ownLocks + ` AND ` + ownID + ` = ANY ($1::text::bigint[])`
	// pinHeld counts the same, and has the transaction that it runs in hold each
	// lock too, until it ends: a session may have a lock twice.
	pinHeld = `SELECT pg_backend_pid(), count(*) FROM (SELECT DISTINCT ` + ownID + ` AS id, mode` + ownLocks + ` AND ` + ownID + ` = ANY ($1::text::bigint[])) AS held` +
		` WHERE CASE mode WHEN 'ShareLock' THEN pg_try_advisory_xact_lock_shared(id) ELSE pg_try_advisory_xact_lock(id) END`
	// whichTransaction names the transaction that it runs in. Two of them in a
	// row have different names unless a transaction block is open.
	whichTransaction = `SELECT virtualtransaction FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'virtualxid' LIMIT 1`
	// endSession has the session end itself, for drivers whose connection may
	// outlive its Close in a pool of the driver's own. Any role may do that.
	endSession = `SELECT pg_terminate_backend(pg_backend_pid())`
	// evict ends the session of process $2 if it still holds one of the IDs in
	// $1: process IDs are used again.
	evict    = `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND pid = $2::bigint AND ` + ownID + ` = ANY ($1::text::bigint[]) LIMIT 1`
	rollback = `ROLLBACK`

	// The answer to a try in a transaction travels as a number of rows: 2 in
	// recovery, 1 if it is granted, 0 if not. So it needs no result set, and
	// drivers send it without preparing it, which would clash behind a pooler
	// in transaction mode.
	txTry          = `SELECT FROM generate_series(1, CASE WHEN pg_is_in_recovery() THEN 2 WHEN `
	txTryExclusive = txTry + `pg_try_advisory_xact_lock($1::bigint) THEN 1 ELSE 0 END)`
	txTryShared    = txTry + `pg_try_advisory_xact_lock_shared($1::bigint) THEN 1 ELSE 0 END)`
	// A transaction's own lock_timeout must be found again after the wait; if
	// the wait fails, ROLLBACK TO puts it back. The materialised row is read
	// before the settings change.
	txBefore        = `WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS lock_timeout) SELECT CASE WHEN ` + limitWait + ` IS NULL THEN NULL WHEN `
	txAfter         = ` IS NULL THEN NULL ELSE set_config('lock_timeout', before.lock_timeout, true) IS NOT NULL END FROM before`
	txWaitExclusive = txBefore + `pg_advisory_xact_lock($1::bigint)` + txAfter
	txWaitShared    = txBefore + `pg_advisory_xact_lock_shared($1::bigint)` + txAfter

	txSavepoint = `SAVEPOINT holdfast_wait`
	txRollback  = `ROLLBACK TO SAVEPOINT holdfast_wait`
	txRelease   = `RELEASE SAVEPOINT holdfast_wait`
)

// exclusiveOr picks a statement by mode.
func exclusiveOr(mode ports.Mode, exclusive, shared string) string {
	if mode == ports.Shared {
		return shared
	}
	return exclusive
}

// form is how a driver takes the numbers of a statement fastest.
type form bool

const (
	inText      form = false // as literals: one round trip where parameters need a prepared statement
	asArguments form = true  // as arguments: one round trip where the driver caches prepared statements
)

// bind gives statement its arguments: $1, $2, in order.
func (f form) bind(statement string, args ...any) (string, []any) {
	if f == asArguments {
		return statement, args
	}
	for i, arg := range args {
		var literal string
		switch v := arg.(type) {
		case int64:
			// Quoted, because the smallest int64 has no unquoted literal.
			literal = "'" + strconv.FormatInt(v, 10) + "'"
		case string: // digits, signs, commas and braces; see idArray
			literal = "'" + v + "'"
		}
		statement = strings.ReplaceAll(statement, "$"+strconv.Itoa(i+1), literal)
	}
	return statement, nil
}

// idArray writes ids as the text of a bigint[].
func idArray(ids []int64) string {
	b := []byte{'{'}
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return string(append(b, '}'))
}

// milliseconds rounds d up to what lock_timeout can say.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
