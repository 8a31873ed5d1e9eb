package sqllock

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// All SQL of Holdfast stands in this file. Every statement is one round trip
// and leaves no setting changed.

// limitWait sets lock_timeout for this statement alone: the third argument of
// set_config makes it local to the transaction, which is the statement. It is
// kept below half of deadlock_timeout, whatever that is on this server, so that
// no wait lives to see the deadlock detector; and above 0, which would be no
// limit at all.
const limitWait = `set_config('lock_timeout', greatest(1, least($2::bigint, (extract(epoch FROM current_setting('deadlock_timeout')::interval) * 500)::bigint))::text, true)`

// What takes the lock $1, and is null if the server is in recovery: it grants
// locks that exclude nobody on the primary then, so none is taken. A CASE is
// evaluated lazily and in order, and volatile functions are not folded.
const (
	onPrimary     = `CASE WHEN NOT pg_is_in_recovery()`
	tryExclusive  = onPrimary + ` THEN pg_try_advisory_lock($1::bigint) END`
	tryShared     = onPrimary + ` THEN pg_try_advisory_lock_shared($1::bigint) END`
	waitExclusive = onPrimary + ` AND ` + limitWait + ` IS NOT NULL THEN pg_advisory_lock($1::bigint) IS NOT NULL END`
	waitShared    = onPrimary + ` AND ` + limitWait + ` IS NOT NULL THEN pg_advisory_lock_shared($1::bigint) IS NOT NULL END`
)

// lockToken is the fencing token: the timeline, which grows with each failover,
// in the top 16 bits, and 48 bits of the transaction's number. The message makes
// the transaction one that is flushed to disk when it commits, so its number is
// not given out again after a crash.
const lockToken = `CASE WHEN granted IS NOT TRUE` + tokenThen
const tokenThen = ` OR pg_logical_emit_message(true, 'holdfast', '') IS NULL` +
	` OR set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'local' ELSE current_setting('synchronous_commit') END, true) IS NULL THEN 0` +
	` ELSE (('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint << 48) | (pg_current_xact_id()::text::bigint & 281474976710655) END`

// A holder's application_name is holderPrefix, the time of the grant and the
// holder ID, so that an operator can read them there: holderTimeSQL and
// holderTime are the format of the time in the server's notation and in Go's.
const (
	holderPrefix  = `holdfast `
	holderTimeSQL = `YYYY-MM-DD"T"HH24:MI:SS"Z"`
	holderTime    = `2006-01-02T15:04:05Z`
	holderNow     = `'` + holderPrefix + `' || to_char(clock_timestamp() AT TIME ZONE 'UTC', '` + holderTimeSQL + `')`
)

// renewName writes the time into the name of a session that has one.
var renewName = `set_config('application_name', ` + holderNow +
	` || substr(current_setting('application_name'), ` + strconv.Itoa(len(holderPrefix+holderTime)+1) + `), false)`

// tenancy says in which state a session is that is asked for a lock.
type tenancy int

const (
	passing  tenancy = iota // it keeps its settings
	arriving                // it is to get those of a holder
	settled                 // it has them
	renewing                // it has them, and is to get a new time in its name
)

// fate is what has become of a lock.
type fate int64

const (
	notHeld    fate = iota // only of an exchange: the first lock was not there, and the second was not tried
	inRecovery             // nor was it here
	refused
	taken
)

// An outcome is one number, since each column of an answer takes some time on its
// way: the server process, and in the lowest two bits the fate of what stands between
// outcomeOf and outcomeEnd, which is something that takes a lock.
const (
	outcomeOf  = `pg_backend_pid()::bigint << 2 | CASE `
	outcomeEnd = ` WHEN true THEN 3 WHEN false THEN 2 ELSE 1 END`
)

// readOutcome takes an outcome apart.
func readOutcome(outcome int64) (pid int, f fate) { return int(outcome >> 2), fate(outcome & 3) }

// lockStatement builds the statement of one request. Its arguments are the ID,
// the wait in milliseconds if it waits, and the holder's name if it is arriving.
// It answers with the outcome; then, with fencing, the token; and for one that
// arrives, the database, the settings as they were, and something that says nothing.
//
// Where the order of events matters, it is built of selects around each other.
// PostgreSQL computes the row of an inner one before it looks at the outer one;
// OFFSET 0 keeps the planner from merging them. A try changes settings only when
// the lock was granted. A wait does so before it waits, since others wait for
// its lock from then on; if it is in vain, the statement fails, and takes the
// settings with it.
func lockStatement(r ports.LockRequest, t tenancy) string {
	const answer, within = `SELECT ` + outcomeOf, ` OFFSET 0) AS q`
	if !r.Fencing && (t == passing || t == settled) { // the plain case has to be short
		if r.Wait > 0 {
			return exclusiveOr(r.Mode, answer+waitExclusive+outcomeEnd, answer+waitShared+outcomeEnd)
		}
		return exclusiveOr(r.Mode, answer+tryExclusive+outcomeEnd, answer+tryShared+outcomeEnd)
	}
	lock := exclusiveOr(r.Mode, tryExclusive, tryShared)
	if r.Wait > 0 {
		lock = exclusiveOr(r.Mode, waitExclusive, waitShared)
	}
	lock += ` AS granted`
	answers := answer + `granted` + outcomeEnd
	if r.Fencing {
		answers += `, ` + lockToken
	}
	if t == arriving && r.Wait > 0 {
		arrival, was := holderSettings(r.Liveness, 3)
		q := `SELECT ` + onPrimary + ` THEN ` + was + ` END AS before`
		q = `SELECT before, CASE WHEN before IS NOT NULL THEN ` + arrival + ` END AS arrival FROM (` + q + within
		q = `SELECT before, arrival, ` + lock + ` FROM (` + q + within
		return answers + `, current_database()::text, before, arrival FROM (` + q + within
	}
	if t == arriving {
		arrival, was := holderSettings(r.Liveness, 2)
		q := `SELECT granted, CASE WHEN granted THEN ` + was + ` END AS before FROM (SELECT ` + lock + within
		return answers + `, current_database()::text, before, CASE WHEN before IS NOT NULL THEN ` + arrival + ` END FROM (` + q + within
	}
	q := `SELECT `
	if t == renewing {
		q += renewName + ` AS name, `
	}
	return answers + ` FROM (` + q + lock + within
}

// The statement of a batch has all its IDs in one list, $1, by what is done about
// them: see task. $2 to $6 are the ends of the tasks in that list. It goes through
// the list in order, so the tries come after the unlocks: an ID may be in both. A try
// of a server in recovery has null as its answer, as above.
//
// The answer is the server process, the database, and a list of booleans. If there
// is more to do than that, selects stand around it, as above, and the answer goes on
// with the token, the size of the lock table, the settings as they were, and
// something that says nothing. The token comes when all locks are taken: the
// transaction's number is drawn when it is first asked for, and a lock that was taken
// after that may have had a holder meanwhile whose number is greater.
const (
	batchAnswers = `SELECT pg_backend_pid() AS pid, current_database()::text AS database, ARRAY(SELECT` +
		` CASE WHEN n <= $2::bigint THEN pg_advisory_unlock(id) WHEN n <= $3::bigint THEN pg_advisory_unlock_shared(id)` +
		` WHEN pg_is_in_recovery() THEN NULL` +
		` WHEN n <= $4::bigint THEN pg_try_advisory_lock(id) WHEN n <= $5::bigint THEN pg_try_advisory_lock_shared(id)` +
		` WHEN n <= $6::bigint THEN pg_try_advisory_lock(id) ELSE pg_try_advisory_lock_shared(id) END` +
		` FROM unnest($1::text::bigint[]) WITH ORDINALITY AS u (id, n))`
	batchGranted       = `true = ANY (answers[$3::int + 1:])`
	batchFencedGranted = `true = ANY (answers[$5::int + 1:])`

	// lockTable is how many locks the server has room for, at the least.
	lockTable = `current_setting('max_locks_per_transaction')::bigint * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint)`
)

// task is what a batch does about an ID.
type task int

const (
	toUnlock task = iota
	toUnlockShared
	toTry
	toTryShared
	toTryFenced
	toTryFencedShared
	tasks // how many there are
)

// fencing says whether a batch draws a token.
type fencing int

const (
	unfenced    fencing = iota
	onGrant             // if one of its fenced tries is granted
	fencedAtAll         // anyway
)

// settledBatch has the statements of batches on a session that is not arriving, by
// what they draw.
var settledBatch = [...]string{
	unfenced:    batchAnswers + `::text`,
	onGrant:     newBatch(onGrant, false, 0),
	fencedAtAll: newBatch(fencedAtAll, false, 0),
}

// batchStatement is the statement of a batch. It is plain, and answers with no more
// than the booleans, if it draws no token and the session is not arriving. If that
// is, its last argument is the holder's name.
func batchStatement(f fencing, arrives bool, liveness time.Duration) (statement string, plain bool) {
	if arrives {
		return newBatch(f, arrives, liveness), false
	}
	return settledBatch[f], f == unfenced
}

// newBatch is the statement of a batch that is not plain.
func newBatch(f fencing, arrives bool, liveness time.Duration) string {
	token, before, arrival, room := `0::bigint`, `NULL::text`, `NULL::text`, `0::bigint`
	switch f {
	case onGrant:
		token = `CASE WHEN (` + batchFencedGranted + `) IS NOT TRUE` + tokenThen
	case fencedAtAll:
		token = `CASE WHEN false` + tokenThen
	}
	if arrives {
		set, was := holderSettings(liveness, int(tasks)+1)
		before, arrival, room = `CASE WHEN `+batchGranted+` THEN `+was+` END`, `CASE WHEN before IS NOT NULL THEN `+set+` END`, lockTable
	}
	return `SELECT pid, database, answers::text, token, ` + room + `, before, ` + arrival +
		` FROM (SELECT pid, database, answers, ` + token + ` AS token, ` + before + ` AS before` +
		` FROM (` + batchAnswers + ` AS answers OFFSET 0) AS a OFFSET 0) AS b`
}

// order is how a batch travels: its IDs by task, and where each task ends.
type order struct {
	ids  []int64
	ends [tasks]int
}

func unlockTask(u ports.Unlock) task { return exclusiveOr(u.Mode, toUnlock, toUnlockShared) }

// tryTask is for a try of a lock that is not held.
func tryTask(t ports.Try) task {
	if t.Fencing {
		return exclusiveOr(t.Mode, toTryFenced, toTryFencedShared)
	}
	return exclusiveOr(t.Mode, toTry, toTryShared)
}

// orderOf puts a batch into order.
func orderOf(b ports.Batch) (o order) {
	for _, u := range b.Unlocks {
		o.ends[unlockTask(u)]++
	}
	for _, t := range b.Tries {
		if !t.Held {
			o.ends[tryTask(t)]++
		}
	}
	for t := range tasks - 1 {
		o.ends[t+1] += o.ends[t]
	}
	o.ids = make([]int64, o.ends[tasks-1])
	place := o.places()
	for _, u := range b.Unlocks {
		o.ids[place(unlockTask(u))] = u.ID
	}
	for _, t := range b.Tries {
		if !t.Held {
			o.ids[place(tryTask(t))] = t.ID
		}
	}
	return o
}

// places returns a function that gives the next place of a task.
func (o *order) places() func(task) int {
	var next [tasks]int
	copy(next[1:], o.ends[:])
	return func(t task) int {
		next[t]++
		return next[t] - 1
	}
}

// args are the statement's.
func (o *order) args() []any {
	args := []any{idArray(o.ids)}
	for _, end := range o.ends[:tasks-1] {
		args = append(args, int64(end))
	}
	return args
}

// fencingOf says what a batch is to draw.
func fencingOf(b ports.Batch) (f fencing) {
	for _, t := range b.Tries {
		switch {
		case t.Held && t.Fencing:
			f = fencedAtAll
		case t.Fencing:
			f = max(f, onGrant)
		}
	}
	return f
}

// answers reads the server's list of booleans for a batch in this order; an answer
// for what was not asked is yes. It returns false if that is not one boolean for each
// ID.
func (o *order) answers(b ports.Batch, list string) (a ports.BatchAnswer, ok bool) {
	// Each has one letter, with a brace or a comma on both sides.
	ok = len(list) == max(2*len(o.ids)+1, 2) && list[0] == '{' && list[len(list)-1] == '}'
	place := o.places()
	next := func(t task) bool {
		i := 2*place(t) + 1
		ok = ok && (list[i] == 't' || list[i] == 'f') && (list[i+1] == ',' || list[i+1] == '}')
		return ok && list[i] == 't'
	}
	a.Unlocked, a.Granted = make([]bool, len(b.Unlocks)), make([]bool, len(b.Tries))
	for i, u := range b.Unlocks {
		a.Unlocked[i] = next(unlockTask(u))
	}
	for i, t := range b.Tries {
		a.Granted[i] = t.Held || next(tryTask(t))
	}
	return a, ok
}

// exchangeStatement gives the lock $1 back and then tries $2. It answers with the
// outcome.
func exchangeStatement(mode ports.Mode, next ports.LockRequest, t tenancy) string {
	const (
		unlock      = `SELECT ` + outcomeOf + `WHEN NOT pg_advisory_unlock($1::bigint)`
		unlockShare = `SELECT ` + outcomeOf + `WHEN NOT pg_advisory_unlock_shared($1::bigint)`
		then        = ` THEN 0 WHEN pg_is_in_recovery() THEN 1`
		toExclusive = then + ` WHEN NOT pg_try_advisory_lock($2::bigint) THEN 2 ELSE 3 END`
		toShared    = then + ` WHEN NOT pg_try_advisory_lock_shared($2::bigint) THEN 2 ELSE 3 END`
	)
	statement := exclusiveOr(mode,
		exclusiveOr(next.Mode, unlock+toExclusive, unlock+toShared),
		exclusiveOr(next.Mode, unlockShare+toExclusive, unlockShare+toShared))
	if t == renewing {
		statement += `, ` + renewName
	}
	return statement
}

const (
	unlockExclusive = `SELECT pg_advisory_unlock($1::bigint)`
	unlockShared    = `SELECT pg_advisory_unlock_shared($1::bigint)`
	// thenAll, behind an unlock, takes whatever else the session holds: counts
	// that were stacked, locks of the caller's own SQL.
	thenAll = `, pg_advisory_unlock_all()`
	// restore puts the settings in $1 back. It is a statement of its own, so
	// that those who wait for the lock do not wait for it.
	restore   = `SELECT count(set_config(key, value, false)) FROM json_each_text($1::json)`
	unlockAll = `SELECT pg_advisory_unlock_all()::text IS NULL`

	// granted are the advisory locks that sessions hold in one space of this
	// database, and ownLocks those of this session. pg_locks shows the
	// halves of the number as unsigned OIDs; shifting the high one left wraps
	// to the signed number.
	granted    = ` FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1` + inDatabase
	ownLocks   = granted + ` AND pid = pg_backend_pid()`
	inDatabase = ` AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	ownID      = `((classid::bigint << 32) | objid::bigint)`

	// The clear statements give one lock back if the session has it, and
	// log no warning if it does not.
	clearExclusive = `SELECT coalesce(bool_and(pg_advisory_unlock($1::bigint)), true)` + ownLocks + ` AND mode = 'ExclusiveLock' AND ` + ownID + ` = $1::bigint`
	clearShared    = `SELECT coalesce(bool_and(pg_advisory_unlock_shared($1::bigint)), true)` + ownLocks + ` AND mode = 'ShareLock' AND ` + ownID + ` = $1::bigint`

	signOfLife = `SELECT pg_backend_pid()`
	// countHeld counts which of the IDs in $1 the session holds. They may be
	// tens of thousands: an ANY would compare each with each.
	countHeld = `SELECT pg_backend_pid(), count(*) FROM (SELECT ` + ownID + ownLocks + ` INTERSECT SELECT unnest($1::text::bigint[])) AS held`
	// countHeldBy counts the same of process $2.
	countHeldBy = `SELECT count(*) FROM (SELECT ` + ownID + granted + ` AND pid = $2::bigint INTERSECT SELECT unnest($1::text::bigint[])) AS held`
	// pinHeld counts what countHeld does, and has the transaction that it runs
	// in hold each lock too, until it ends: a session may have a lock twice.
	// Until then tcp_user_timeout is off: see patient.
	pinHeld = `SELECT pg_backend_pid(), count(set_config('tcp_user_timeout', '0', true)) FROM (SELECT DISTINCT ` + ownID + ` AS id, mode` + ownLocks + ` AND ` + ownID + ` = ANY ($1::text::bigint[])) AS held` +
		` WHERE CASE mode WHEN 'ShareLock' THEN pg_try_advisory_xact_lock_shared(id) ELSE pg_try_advisory_xact_lock(id) END`
	// patient switches tcp_user_timeout, in milliseconds, while a borrower has
	// the session: a result that is read slowly fills the network's buffers,
	// which the kernel does not tell from a client that is gone.
	patient = `SELECT CASE WHEN inet_server_addr() IS NOT NULL THEN set_config('tcp_user_timeout', $1::bigint::text, false) END`
	// whichTransaction names the transaction that it runs in. Two of them in a
	// row have different names unless a transaction block is open.
	whichTransaction = `SELECT virtualtransaction FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'virtualxid' LIMIT 1`
	// endSession has the session end itself, for drivers whose connection may
	// outlive its Close in a pool of the driver's own. Any role may do that.
	endSession = `SELECT pg_terminate_backend(pg_backend_pid())`
	// evict ends the session of process $2 if it still holds one of the IDs in
	// $1: process IDs are used again.
	evict    = `SELECT pg_terminate_backend(pid)` + granted + ` AND pid = $2::bigint AND ` + ownID + ` = ANY ($1::text::bigint[]) LIMIT 1`
	rollback = `ROLLBACK`

	// inspect tells who holds the ID $1 in this database, and who waits; and
	// inspectAll the same of every ID.
	inspect    = inspectAny + ` AND ` + ownID + ` = $1::bigint` + inspectOrder
	inspectAll = inspectAny + inspectOrder
	inspectAny = `SELECT ` + ownID + `, pid, granted, mode = 'ShareLock', current_database()::text, coalesce(usename::text, ''), coalesce(application_name, ''),` +
		` coalesce(host(client_addr), ''), coalesce(state, ''), CASE WHEN NOT granted THEN extract(epoch FROM query_start)::float8 END` +
		` FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)` +
		` WHERE locktype = 'advisory' AND objsubid = 1` + inDatabase
	inspectOrder = ` ORDER BY granted DESC, query_start`

	// examine is what Examine asks. Of the sessions and the lock table, any role
	// sees all that is counted here.
	examine = `SELECT current_setting('server_version'), pg_backend_pid(), pg_is_in_recovery(), inet_server_addr() IS NOT NULL,` +
		` current_setting('tcp_keepalives_idle')::bigint + current_setting('tcp_keepalives_interval')::bigint * current_setting('tcp_keepalives_count')::bigint,` +
		` current_setting('max_connections')::bigint,` +
		` current_setting('superuser_reserved_connections')::bigint + coalesce(current_setting('reserved_connections', true), '0')::bigint,` +
		` (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database WHERE datid <> 0)::bigint,` +
		` current_setting('max_locks_per_transaction')::bigint * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint),` +
		` (SELECT count(*) FROM pg_locks WHERE NOT fastpath)`

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

// exclusiveOr picks by mode.
func exclusiveOr[T any](mode ports.Mode, exclusive, shared T) T {
	if mode == ports.Shared {
		return shared
	}
	return exclusive
}

// form is how a statement is to be sent: how its driver takes numbers fastest,
// and in which space its locks are.
type form uint8

const (
	inText      form = 0 // as literals: one round trip where parameters need a prepared statement
	asArguments form = 1 // as arguments: one round trip where the driver caches prepared statements
	// ofPairs, beside one of the others, has the locks be those of two integers.
	ofPairs form = 2
)

// ofOne finds what a statement says about a lock of one bigint: the argument of a
// lock function.
var ofOne = regexp.MustCompile(`(lock|shared)\((id|\$\d::bigint)\)`)

// pairForms keeps what inPairs has made of each statement. There are few: each has
// its arguments beside it, and only the liveness window in its text.
var pairForms sync.Map

// inPairs turns a statement about locks of one bigint into one about those of two
// integers. The ID stays one number, which the statement splits as ports.IDPair
// does; pg_locks shows both kinds alike but for objsubid.
func inPairs(statement string) string {
	if made, ok := pairForms.Load(statement); ok {
		return made.(string)
	}
	made := ofOne.ReplaceAllString(statement, `$1(($2 >> 32)::int, ($2 << 32 >> 32)::int)`)
	made = strings.ReplaceAll(made, `objsubid = 1`, `objsubid = 2`)
	pairForms.Store(statement, made)
	return made
}

// bind gives statement its arguments: $1, $2, in order. Only the last one may be
// a string with a dollar sign in it.
func (f form) bind(statement string, args ...any) (string, []any) {
	if f&ofPairs != 0 {
		statement = inPairs(statement)
	}
	if f&asArguments != 0 {
		return statement, args
	}
	for i, arg := range args {
		var literal string
		switch v := arg.(type) {
		case int64:
			// Quoted, because the smallest int64 has no unquoted literal.
			literal = "'" + strconv.FormatInt(v, 10) + "'"
		case string:
			// In this form a backslash means one whatever the server's
			// standard_conforming_strings says.
			literal = "E'" + strings.NewReplacer("'", "''", "\\", "\\\\").Replace(v) + "'"
		}
		statement = strings.ReplaceAll(statement, "$"+strconv.Itoa(i+1), literal)
	}
	return statement, nil
}

// idArray writes ids as the text of a bigint[].
func idArray(ids []int64) string {
	b := append(make([]byte, 0, 21*len(ids)+2), '{')
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
