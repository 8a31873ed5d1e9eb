package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// closeGrace bounds each polite step of ending a session: telling the server,
// or waiting for a driver to obey its context.
const closeGrace = time.Second

// shortWait is a wait at the server that is worth a remark if it was meant to
// be longer. A small deadlock_timeout makes waits short, but not that short.
const shortWait = 50 * time.Millisecond

// nameAge is how old the time in the name of a holder's session may be that gets
// another lock: the name shows whole seconds, and renewing it would double the
// cost of a lock that is free.
const nameAge = 500 * time.Millisecond

// watchAfter is how long a session is left alone before it is watched: to start
// and stop a watch takes some calls of the operating system, too many for a hold
// of a moment.
const watchAfter = 10 * time.Millisecond

// prepareAfter is how many locks a session is used again for before the statements
// about one lock are prepared. To prepare one costs a round trip, and to forget it
// another; to have it planned each time costs a quarter of one. A session that is
// used again at all is a busy manager's.
const prepareAfter = 3

// instead says what to do where session locks are unsafe.
const instead = "use session pooling, a direct connection, or transaction locks (sqllock.AcquireTx)"

var errRecovery = fmt.Errorf("%w: the server is in recovery (a hot standby), and its locks do not exclude holders on the primary; connect to the primary",
	ports.ErrUnsafeConnection)

var errOver = fmt.Errorf("%w: it was given up", ports.ErrSessionEnded)

// pool implements ports.SessionPool on a *sql.DB.
type pool struct {
	db     *sql.DB
	driver Driver
	form   form
}

var _ ports.PairPool = (*pool)(nil)

// Pairs implements ports.PairPool.
func (p *pool) Pairs() ports.SessionPool {
	return &pool{db: p.db, driver: p.driver, form: p.form | ofPairs}
}

// Usage implements ports.SessionPool.
func (p *pool) Usage() (inUse, limit int) {
	stats := p.db.Stats()
	return stats.InUse, stats.MaxOpenConnections
}

// Open implements ports.SessionPool. It sends nothing: the first command finds
// out whether the connection works.
func (p *pool) Open(ctx context.Context) (ports.Session, error) {
	s, err := p.open(ctx)
	switch {
	case err != nil:
		return nil, err
	case p.driver.Watch != nil:
		return &watchedSession{s}, nil
	}
	return s, nil
}

// open pins a connection.
func (p *pool) open(ctx context.Context) (*session, error) {
	// On a goroutine of its own, because a driver may ignore the context while
	// it connects (lib/pq does, once the socket is open).
	type opened struct {
		conn *sql.Conn
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		conn, err := p.db.Conn(ctx)
		done <- opened{conn, err}
	}()
	var o opened
	select {
	case o = <-done:
	case <-ctx.Done():
		go func() {
			if o := <-done; o.err == nil {
				o.conn.Close() // it has done nothing, so the pool may have it
			}
		}()
		return nil, context.Cause(ctx)
	}
	if sqlState(o.err) == outOfMemory { // it is shared with whoever connects
		return nil, tableFull(o.err)
	}
	if o.err != nil {
		return nil, o.err
	}
	s := &session{pool: p, conn: o.conn, idle: make(chan struct{}, 1), locks: make(map[int64]ports.Mode)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	// The driver's connection is kept for one use only: to end it.
	if err := o.conn.Raw(func(dc any) error { s.driverConn = dc; return nil }); err != nil {
		s.cancel()
		o.conn.Close()
		return nil, err
	}
	if p.driver.Interrupt != nil {
		s.interrupt = p.driver.Interrupt(s.driverConn)
	}
	s.idle <- struct{}{}
	return s, nil
}

// Inspect implements ports.Inspector.
func (p *pool) Inspect(ctx context.Context, id int64) ([]ports.SessionInfo, error) {
	statement, args := p.form.bind(inspect, id)
	locks, err := p.inspect(ctx, statement, args)
	return locks[id], err
}

// List implements ports.Lister.
func (p *pool) List(ctx context.Context) (map[int64][]ports.SessionInfo, error) {
	statement, args := p.form.bind(inspectAll)
	return p.inspect(ctx, statement, args)
}

// inspect runs one of the inspect statements.
func (p *pool) inspect(ctx context.Context, statement string, args []any) (map[int64][]ports.SessionInfo, error) {
	rows, err := p.db.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	locks := make(map[int64][]ports.SessionInfo)
	for rows.Next() {
		var id int64
		var i ports.SessionInfo
		var shared bool
		var waits sql.NullFloat64
		if err := rows.Scan(&id, &i.PID, &i.Granted, &shared, &i.Database, &i.User, &i.Application, &i.Client, &i.State, &waits); err != nil {
			return nil, err
		}
		if shared {
			i.Mode = ports.Shared
		}
		if waits.Valid {
			i.Since = time.UnixMicro(int64(waits.Float64 * 1e6))
		}
		if holder, since, ok := holderOf(i.Application); ok {
			i.HolderID = holder
			if i.Granted {
				i.Since = since
			}
		}
		locks[id] = append(locks[id], i)
	}
	return locks, rows.Err()
}

// Evict implements ports.Inspector.
func (p *pool) Evict(ctx context.Context, id int64, pid int) (bool, error) {
	statement, args := p.form.bind(evict, idArray([]int64{id}), int64(pid))
	var ended bool
	err := p.db.QueryRowContext(ctx, statement, args...).Scan(&ended)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if sqlState(err) == insufficientPrivilege {
		return false, fmt.Errorf("this role may not end the session of process %d; use its own role, or one with pg_signal_backend: %w", pid, err)
	}
	return ended, err
}

// Holds implements ports.Witness.
func (p *pool) Holds(ctx context.Context, pid int, ids []int64) (bool, error) {
	for {
		s, err := p.open(ctx)
		if err != nil {
			inUse, limit := p.Usage()
			if !sessionEnded(err) || limit > 0 && inUse >= limit {
				err = fmt.Errorf("%w: %w", ports.ErrPoolExhausted, err)
			}
			return false, err
		}
		stop := context.AfterFunc(ctx, s.Destroy)
		held, err := s.holds(pid, ids)
		stop()
		s.Recycle(context.Background())
		if !s.ended || ctx.Err() != nil {
			return held == len(ids), err
		}
		// An idle connection that the server had closed long ago says nothing.
	}
}

// holds counts which of the locks ids process pid has.
func (s *session) holds(pid int, ids []int64) (held int, err error) {
	ctx, end, err := s.begin(context.Background())
	if err != nil {
		return 0, err
	}
	defer end()
	return held, s.queryUnbound(ctx, countHeldBy, []any{idArray(ids), int64(pid)}, &held)
}

// session implements ports.Session on a pinned *sql.Conn.
type session struct {
	pool       *pool
	conn       *sql.Conn
	driverConn any
	interrupt  func()          // makes a command return at once; nil if nothing does
	ctx        context.Context // ends when the session is destroyed
	cancel     context.CancelFunc

	// idle holds a token while no command runs. Who has taken it owns the
	// fields below.
	idle chan struct{}

	locks map[int64]ports.Mode // what Lock and Batch have granted and not taken back
	pid   int                  // the server process; 0 before its first answer
	// prepared has what queryOften was asked, as a prepared statement from the
	// second time on; reused is for how many locks the session was kept.
	prepared map[string]*sql.Stmt
	reused   int
	// before has the settings that Lock has changed, as a JSON object; empty
	// if there are none.
	before string
	// liveness is the window that the server was asked to keep; 0 if none.
	liveness time.Duration
	// named is when the name of a holder's session last got the time.
	named time.Time
	// database is where the session is; empty before it has held a lock.
	database string
	// doubt: a command failed while it could have taken a lock, or somebody
	// else's statements ran. Such a session never goes back to the pool.
	doubt bool
	ended bool // the server's side is known to be over
	over  bool // recycled or destroyed
	// escaped: a borrower has closed the *sql.Conn, which put the connection
	// into the pool with the lock on it.
	escaped bool
	// borrowed: somebody else's statements have run.
	borrowed bool
	// unfit: a lock is gone or may be, so the session must not carry on.
	unfit bool

	destroying sync.Once
	// lent: a borrower has the session, and may be doing nothing with it.
	lent atomic.Bool
}

// watchedSession is a session whose driver can notice its end.
type watchedSession struct{ *session }

// Interruptible implements ports.Interruptible.
func (s *session) Interruptible() bool { return s.interrupt != nil }

// begin takes the session for one command and gives the context for it. It
// returns an error if the session is over.
func (s *session) begin(ctx context.Context) (context.Context, func(), error) {
	<-s.idle
	if s.over || s.unfit || s.ctx.Err() != nil {
		s.idle <- struct{}{}
		return nil, nil, errOver
	}
	if s.interrupt != nil {
		// Destroy can end a command without a context, and a context that
		// cannot end saves database/sql and the driver a goroutine each.
		return ctx, func() { s.idle <- struct{}{} }, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel(); s.idle <- struct{}{} }, nil
}

// query runs a statement that returns one row. The caller has begun.
func (s *session) query(ctx context.Context, statement string, args []any, dest ...any) error {
	return s.failed(s.conn.QueryRowContext(ctx, statement, args...).Scan(dest...))
}

// queryOften is query, with arguments that are not bound yet, for a statement
// that takes the server longer to plan than to run, or that comes again and again.
// From the second time on it is prepared, which a pinned connection may do whatever
// its driver does by itself.
func (s *session) queryOften(ctx context.Context, statement string, args []any, dest ...any) error {
	prepared, again := s.prepared[statement]
	if !again {
		if s.prepared == nil {
			s.prepared = make(map[string]*sql.Stmt)
		}
		s.prepared[statement] = nil
		return s.queryUnbound(ctx, statement, args, dest...)
	}
	if prepared == nil {
		text, _ := (asArguments | s.pool.form).bind(statement)
		var err error
		if prepared, err = s.conn.PrepareContext(ctx, text); err != nil {
			return s.failed(err)
		}
		s.prepared[statement] = prepared
	}
	return s.failed(prepared.QueryRowContext(ctx, args...).Scan(dest...))
}

// queryUnbound is query, with arguments that are not bound yet.
func (s *session) queryUnbound(ctx context.Context, statement string, args []any, dest ...any) error {
	statement, args = s.pool.form.bind(statement, args...)
	return s.query(ctx, statement, args, dest...)
}

// queryLock is queryUnbound for a statement about one lock, of which a session may be
// asked very many. A driver that takes arguments prepares it by itself.
func (s *session) queryLock(ctx context.Context, statement string, args []any, dest ...any) error {
	if s.reused > prepareAfter && s.pool.form&asArguments == 0 {
		return s.queryOften(ctx, statement, args, dest...)
	}
	return s.queryUnbound(ctx, statement, args, dest...)
}

// queryWait is query, with arguments that are not bound yet, for a statement that
// will mostly fail, when its time is up.
func (s *session) queryWait(ctx context.Context, statement string, args []any, dest ...any) error {
	statement, args = s.pool.form.bind(statement, args...)
	if u := s.pool.driver.Unprepared; u != nil {
		args = slices.Insert(args, 0, u)
	}
	return s.query(ctx, statement, args, dest...)
}

// failed says what the error of a statement means, and keeps it in mind.
func (s *session) failed(err error) error {
	if err == nil {
		return nil
	}
	switch {
	case sessionEnded(err):
		s.ended = true
		return fmt.Errorf("%w: %w", ports.ErrSessionEnded, err)
	case sqlState(err) == outOfMemory:
		return tableFull(err)
	case clashed(err):
		s.unfit = true
		return fmt.Errorf("%w: prepared statements clash (%w), as behind a pooler in transaction or statement mode; %s", ports.ErrUnsafeConnection, err, instead)
	}
	return err
}

// samePID notes the server process that answered. If it is another one than
// before, a pooler spreads the statements of one connection.
func (s *session) samePID(pid int) error {
	if s.pid == 0 {
		s.pid = pid
	}
	if s.pid != pid {
		s.doubt, s.unfit = true, true
		return fmt.Errorf("%w: two statements on one connection were answered by two server processes (%d and %d), as behind a pooler in transaction or statement mode; %s",
			ports.ErrUnsafeConnection, s.pid, pid, instead)
	}
	return nil
}

// Lock implements ports.Session.
func (s *session) Lock(ctx context.Context, r ports.LockRequest) (ports.Grant, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return ports.Grant{}, err
	}
	defer end()

	args := []any{r.ID}
	if r.Wait > 0 {
		args = append(args, milliseconds(r.Wait))
	}
	state := s.tenancy(r)
	switch state {
	case arriving:
		args = append(args, holderName(r.HolderID))
	case settled, renewing:
		s.reused++
	}
	var answer struct {
		outcome, token           int64
		database, before, ignore sql.NullString
	}
	dest := append(make([]any, 0, 5), &answer.outcome)
	if r.Fencing {
		dest = append(dest, &answer.token)
	}
	if state == arriving {
		dest = append(dest, &answer.database, &answer.before, &answer.ignore)
	}
	doubted := s.doubt
	s.doubt = true // until the answer says what the session holds
	sent := time.Now()
	if statement := lockStatement(r, state); r.Wait > 0 {
		err = s.queryWait(ctx, statement, args, dest...)
	} else {
		err = s.queryLock(ctx, statement, args, dest...)
	}
	if waitEnded(err) {
		early := sqlState(err) != lockTimeout || time.Since(sent) < min(r.Wait/2, shortWait)
		if err := s.clear(ctx, r); err != nil {
			return ports.Grant{}, err
		}
		s.doubt = doubted
		return ports.Grant{PID: s.pid, Interrupted: early}, nil
	}
	if err != nil {
		return ports.Grant{}, err
	}
	// A driver may report success although the context has ended and the
	// connection is dying (lib/pq): then the doubt stays.
	if err := ctx.Err(); err != nil {
		return ports.Grant{}, context.Cause(ctx)
	}
	pid, fate := readOutcome(answer.outcome)
	if err := s.samePID(pid); err != nil {
		return ports.Grant{}, err
	}
	s.doubt = doubted
	if answer.before.Valid {
		s.before, s.liveness = answer.before.String, r.Liveness
		s.database = answer.database.String
		s.named = sent
	}
	grant, err := s.answered(r, state, sent, fate)
	grant.Token = ports.Token(answer.token)
	return grant, err
}

// answered acts upon the answer to a request that was sent in this state.
func (s *session) answered(r ports.LockRequest, state tenancy, sent time.Time, fate fate) (ports.Grant, error) {
	if state == renewing {
		s.named = sent
	}
	granted := false
	switch fate {
	case inRecovery:
		return ports.Grant{}, errRecovery
	case taken:
		s.locks[r.ID] = r.Mode
		granted = true
	}
	return ports.Grant{Granted: granted, PID: s.pid, Database: s.database}, nil
}

// tenancy is what the session has to become for a request.
func (s *session) tenancy(r ports.LockRequest) tenancy {
	switch {
	case r.Liveness <= 0 || len(s.locks) > 0:
		return passing
	case s.before == "":
		return arriving
	case time.Since(s.named) > nameAge:
		return renewing
	}
	return settled
}

// clear makes sure that nothing is held of a request whose wait the server ended
// with an error. Such an error can come in the moment of the grant, with the
// lock held.
func (s *session) clear(ctx context.Context, r ports.LockRequest) error {
	statement, args := unlockAll, []any(nil)
	if len(s.locks) > 0 {
		statement, args = exclusiveOr(r.Mode, clearExclusive, clearShared), []any{r.ID}
	}
	var ok bool
	return s.queryUnbound(ctx, statement, args, &ok)
}

// Batch implements ports.Batcher.
func (s *session) Batch(ctx context.Context, b ports.Batch) (ports.BatchAnswer, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return ports.BatchAnswer{}, err
	}
	defer end()

	order, arrives := orderOf(b), b.Liveness > 0 && s.before == ""
	statement, plain := batchStatement(fencingOf(b), arrives, b.Liveness)
	args := order.args()
	if arrives {
		args = append(args, holderName(b.HolderID))
	}
	var pid, room int
	var database, answers string
	var token int64
	var before, ignore sql.NullString
	doubted := s.doubt
	s.doubt = true // until the answer says what the session holds
	dest := []any{&pid, &database, &answers}
	if !plain {
		dest = append(dest, &token, &room, &before, &ignore)
	}
	err = s.queryOften(ctx, statement, args, dest...)
	switch {
	case err == nil && ctx.Err() != nil: // see Lock
		err = context.Cause(ctx)
	case err == nil:
		err = s.samePID(pid)
	}
	if err != nil {
		return ports.BatchAnswer{}, err
	}
	if before.Valid {
		s.before, s.liveness = before.String, b.Liveness
	}
	if strings.Contains(answers, "NULL") {
		return ports.BatchAnswer{}, errRecovery
	}
	a, ok := order.answers(b, answers)
	if !ok {
		return ports.BatchAnswer{}, fmt.Errorf("the server answered %q to %d unlocks and %d tries", answers, len(b.Unlocks), len(b.Tries))
	}
	s.doubt = doubted
	a.PID, a.Database, a.Token, a.LockTable = pid, database, ports.Token(token), room
	for _, u := range b.Unlocks {
		delete(s.locks, u.ID)
	}
	for i, t := range b.Tries {
		if a.Granted[i] {
			s.locks[t.ID] = t.Mode
		}
	}
	return a, nil
}

// Unlock implements ports.Session.
func (s *session) Unlock(ctx context.Context, id int64, mode ports.Mode) (bool, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return false, err
	}
	defer end()

	template := exclusiveOr(mode, unlockExclusive, unlockShared)
	var held bool
	dest := []any{&held}
	// Only somebody else's statements can have taken locks that are not known.
	if _, ours := s.locks[id]; s.borrowed && (len(s.locks) == 0 || ours && len(s.locks) == 1) {
		template += thenAll
		dest = append(dest, new(any)) // it is void
	}
	if err := s.queryLock(ctx, template, []any{id}, dest...); err != nil {
		s.doubt = true
		return false, err
	}
	delete(s.locks, id)
	return held, nil
}

// Exchange implements ports.Exchanger.
func (s *session) Exchange(ctx context.Context, id int64, mode ports.Mode, r ports.LockRequest) (bool, ports.Grant, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return false, ports.Grant{}, err
	}
	defer end()

	if s.before == "" || s.borrowed || r.Fencing || r.Wait > 0 || len(s.locks) > 1 {
		return false, ports.Grant{}, errors.New("this session cannot exchange its lock for that one")
	}
	s.doubt = true // until the answer says what the session holds
	s.reused++
	delete(s.locks, id)
	state, sent := s.tenancy(r), time.Now()
	var outcome int64
	dest := append(make([]any, 0, 2), &outcome)
	if state == renewing {
		dest = append(dest, new(string))
	}
	if err := s.queryLock(ctx, exchangeStatement(mode, r, state), []any{id, r.ID}, dest...); err != nil {
		return false, ports.Grant{}, err
	}
	pid, fate := readOutcome(outcome)
	if err := s.samePID(pid); err != nil {
		return false, ports.Grant{}, err
	}
	s.doubt = false
	grant, err := s.answered(r, state, sent, fate)
	return fate != notHeld, grant, err
}

// Check implements ports.Session.
func (s *session) Check(ctx context.Context, full bool) (int, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	if full {
		return s.pid, s.verify(ctx, countHeld, s.query)
	}
	var pid int
	if err := s.query(ctx, signOfLife, nil, &pid); err != nil {
		return 0, err
	}
	return pid, s.wasMoved(pid)
}

// verify looks whether every lock of the session is there, by countHeld or
// pinHeld, with a query function of the session or of a transaction on it. The
// caller has begun.
func (s *session) verify(ctx context.Context, count string, query func(context.Context, string, []any, ...any) error) error {
	statement, args := s.pool.form.bind(count, idArray(s.ids()))
	var pid, held int
	if err := query(ctx, statement, args, &pid, &held); err != nil {
		return err
	}
	if held < len(s.locks) {
		s.doubt, s.unfit = true, true
		return fmt.Errorf("%w: the session holds %d of its %d locks; something on it has unlocked the others", ports.ErrSessionEnded, held, len(s.locks))
	}
	return s.wasMoved(pid)
}

// wasMoved is samePID for a session that holds locks: they are elsewhere then.
func (s *session) wasMoved(pid int) error {
	if err := s.samePID(pid); err != nil {
		return fmt.Errorf("%w: %w", ports.ErrSessionEnded, err)
	}
	return nil
}

// Watch implements ports.Watcher.
func (w *watchedSession) Watch(ctx context.Context) error {
	s := w.session
	soon := time.NewTimer(watchAfter)
	defer soon.Stop()
	select {
	case <-soon.C:
	case <-s.ctx.Done():
	case <-ctx.Done():
		return nil
	}
	_, end, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	var why error
	err = s.conn.Raw(func(dc any) error {
		why = s.pool.driver.Watch(ctx, dc)
		return nil // Raw would act upon some errors
	})
	switch err := errors.Join(err, why); {
	case err != nil:
		s.ended = true
		return fmt.Errorf("%w: %w", ports.ErrSessionEnded, err)
	case s.ctx.Err() != nil:
		return errOver
	default:
		return nil
	}
}

// Recycle implements ports.Session.
func (s *session) Recycle(ctx context.Context) bool {
	<-s.idle
	reusable := !s.over && !s.doubt && !s.ended && len(s.locks) == 0 && s.ctx.Err() == nil
	if reusable && s.before != "" {
		reusable = s.queryUnbound(ctx, restore, []any{s.before}, new(int)) == nil
	}
	for _, p := range s.prepared {
		if reusable && p != nil {
			reusable = p.Close() == nil
		}
	}
	if reusable {
		s.over = true
		s.cancel()
		s.conn.Close()
	}
	s.idle <- struct{}{}
	if !reusable {
		s.Destroy()
	}
	return reusable
}

// Destroy implements ports.Session.
func (s *session) Destroy() { s.destroying.Do(s.destroy) }

// destroy ends the session, whatever runs on it.
func (s *session) destroy() {
	s.cancel() // ends the command that runs, if the driver obeys its context
	select {
	case <-s.idle:
	default:
		s.stopCommand()
		<-s.idle
	}
	defer func() { s.idle <- struct{}{} }()
	if s.over {
		return
	}
	s.over = true
	switch d := s.pool.driver; {
	case s.escaped:
		s.evict() // somebody else may be using the connection now
	case d.Close != nil && d.Close(s.driverConn):
	case !s.ended:
		// The driver's Close may only put the connection into a pool of the
		// driver's own, so the session ends itself.
		s.politely(func(ctx context.Context) { _, _ = s.conn.ExecContext(ctx, endSession) })
	}
	// database/sql closes and forgets a connection whose driver calls it bad;
	// otherwise it would go back to the pool. That waits for rows that a
	// borrower has left open.
	s.politely(func(context.Context) { _ = s.conn.Raw(func(any) error { return driver.ErrBadConn }) })
}

// politely runs one step of ending a session and waits for it for closeGrace.
func (s *session) politely(step func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	done := make(chan struct{})
	go func() {
		defer close(done)
		step(ctx)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	cancel()
}

// evict has the server end the session, on another connection.
func (s *session) evict() {
	statement, args := s.pool.form.bind(evict, idArray(s.ids()), int64(s.pid))
	s.politely(func(ctx context.Context) { _, _ = s.pool.db.ExecContext(ctx, statement, args...) })
}

// ids are the locks of the session.
func (s *session) ids() []int64 { return slices.Collect(maps.Keys(s.locks)) }

// stopCommand gets a command that is running to return.
func (s *session) stopCommand() {
	if s.interrupt != nil {
		s.interrupt()
		return
	}
	if s.lent.Load() {
		s.evict() // no context reaches what a borrower does
		return
	}
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case token := <-s.idle:
		s.idle <- token
	case <-grace.C:
		// The driver ignores its context. Closing its connection is the last
		// means there is; without it the command would hold the lock.
		if dc, ok := s.driverConn.(driver.Conn); ok {
			dc.Close()
		}
	}
}

// SQLSTATEs: see "PostgreSQL Error Codes" in the manual of PostgreSQL.
const (
	lockTimeout           = "55P03" // lock_not_available, by lock_timeout
	queryCanceled         = "57014" // by statement_timeout or pg_cancel_backend
	deadlockDetected      = "40P01"
	outOfMemory           = "53200" // of the lock table, mostly
	inFailedTransaction   = "25P02"
	duplicateStatement    = "42P05"
	unknownStatement      = "26000"
	insufficientPrivilege = "42501"
	notSupported          = "0A000" // feature_not_supported
)

// clashed reports whether err says that a prepared statement is there that
// should not be, or is not there that should: the connection shares a server
// session with others.
func clashed(err error) bool {
	state := sqlState(err)
	return state == duplicateStatement || state == unknownStatement
}

// waitEnded reports whether err is the server's end of a wait, which says
// nothing about whether the lock was granted.
func waitEnded(err error) bool {
	switch sqlState(err) {
	case lockTimeout, queryCanceled, deadlockDetected:
		return true
	}
	return false
}

// tableFull names what is full when the server has run out of shared memory.
func tableFull(err error) error {
	return fmt.Errorf("%w: release locks sooner, or raise max_locks_per_transaction at the server: %w", ports.ErrTooManyLocks, err)
}

// sessionEnded reports whether err means that the session is over: what the
// server did not report comes from a broken connection, and of what it did,
// some classes announce the end.
func sessionEnded(err error) bool {
	state := sqlState(err)
	switch state {
	case "": // not from the server
		return !errors.Is(err, sql.ErrNoRows)
	case "57P01", "57P02", "57P03", "57P04", "57P05", // shutdown, crash, cannot connect now, database dropped, idle session
		"25P03", "25P04": // idle in transaction, transaction timeout
		return true
	}
	return state[:2] == "08" // connection exception
}

// sqlState returns the SQLSTATE of a server's error, "" for any other. Both
// lib/pq and pgx offer this method.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) && len(e.SQLState()) == 5 {
		return e.SQLState()
	}
	return ""
}
