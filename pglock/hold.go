package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

const (
	// beatsPerWindow, lostAfterBeats: a hold is checked each W/5 and lost when
	// 3W/5 have passed since the sending of the last check that was answered.
	// So one check may fail, or take 2W/5, without harm.
	beatsPerWindow = 5
	lostAfterBeats = 3

	// fullCheckEvery is how many checks there are to one that also looks at
	// the lock itself, which costs the server more than a sign of life. With
	// every third, a lock that was dropped under a living session is noticed
	// within 3W/5 and a round trip.
	fullCheckEvery = 3
)

var (
	errSilent = errors.New("the server has not answered for three fifths of the liveness window")
	errDoubt  = errors.New("its session was left in doubt by the work that ran on it")
	errGone   = errors.New("the server no longer had the lock")
)

// hold is one granted lock. Its session belongs to one goroutine, the keeper,
// which watches it, lends it, and settles it at the end. A release that finds the
// keeper at rest settles the hold in its place, and who waits for the lock elsewhere
// need not wait for another goroutine to wake. One on a warm session gets its
// keeper when it has lasted for a moment.
//
// With shared sessions, the keeper belongs to a hold without a lock, one for
// each session; the holds of callers have no session, and a carrier settles
// them.
type hold struct {
	m *Manager
	s ports.Session // nil for a hold on shared sessions
	// upkeep is what it takes to keep s; nil without it: there may be very many
	// holds on shared sessions.
	*upkeep
	// carrier is set if others' locks are on the session of this hold.
	carrier *carrier
	// atLeast is how long the hold lasts, however soon it is released.
	atLeast time.Duration
	// settled is what a release found; it is set before finished is given.
	settled error

	// guarded by Manager.mu:
	// done is given when the hold ends for its owner; finished when the server's
	// side of it is settled, too.
	done, finished signal
	parts          []part         // its locks: one, or those of a LockSet
	first          [1]part        // where the only one of them is, or was before others came
	contended      bool           // someone else was in the way of the newest of them
	err            error          // why the hold ended; nil while it is held
	ended          time.Time      // when it did
	told           []*func(error) // what has asked to be told
	later          *time.Timer    // ends a hold that was released before its time
	// of a hold on shared sessions: how many of its locks are not settled yet
	// after its end, and who waits for its next lock, in which queue.
	unsettled int
	next      struct {
		q *queue
		w *waiter
	}
}

// upkeep is what there is to know of a hold with a session.
type upkeep struct {
	// asked and granted are when the server was asked for the lock and when it
	// had granted it, to this hold or to the first of those that have passed it
	// on in memory since; passes counts those.
	asked, granted time.Time
	passes         int
	// word is the sending of what the server had last answered on the session
	// when the hold began.
	word time.Time
	// confirmed is the sending time of the last answered command. Only the
	// keeper uses it.
	confirmed time.Time
	// over is why the session is, if a check has found that. Only the keeper uses
	// it.
	over error

	// guarded by Manager.mu:
	lent bool // somebody else has used the session, or does so
	kept bool // the hold has its keeper, or is settled without one
	// resting is set while the keeper only waits; it calls the watch and the
	// watchdog off. taken: a release settles the hold in the keeper's place. wake
	// tells the keeper that the hold has ended; nil before its first rest. Loans
	// are asked of it by loans; nil before that, or the first of them.
	resting func()
	taken   bool
	wake    chan struct{}
	loans   chan loan
	heir    *hold       // has got the lock and the session
	last    bool        // the hold is being settled, so nobody gets them any more
	bound   *time.Timer // ends the session if a release takes too long
}

var _ interface {
	ports.Lock
	ports.SessionLender
} = (*hold)(nil)

// testimony is what another session says of a hold whose own one is lent.
type testimony struct {
	sent  time.Time
	holds bool
	err   error
}

// loan is one use of the session by somebody else.
type loan struct {
	granted chan bool // false if the session is over
	back    chan bool // whether the session is still to be trusted
	settled chan struct{}
}

// signal is given once. It has a channel, closed when it is given, as soon as
// somebody asks for one: for most holds nobody does. It is guarded by Manager.mu.
type signal struct {
	given bool
	c     chan struct{}
}

func (s *signal) give() {
	s.given = true
	if s.c != nil {
		close(s.c)
	}
}

func (s *signal) channel() <-chan struct{} {
	if s.c == nil {
		s.c = make(chan struct{})
		if s.given {
			close(s.c)
		}
	}
	return s.c
}

// event is what ends the rest of a keeper.
type event int

const (
	roused      event = iota // the hold has ended
	takenOver                // and a release settles it
	sessionOver              // the watch has found that
	borrowed                 // somebody asks for a loan
	beatDue
)

// part is one lock of a hold.
type part struct {
	q    *queue
	info ports.LockInfo
}

// newHold makes a hold that has no lock yet.
func newHold(m *Manager, s ports.Session, atLeast time.Duration, sent time.Time) *hold {
	var both struct { // one allocation
		hold   hold
		upkeep upkeep
	}
	both.upkeep = upkeep{asked: sent, granted: time.Now(), word: sent, confirmed: sent}
	both.hold = hold{m: m, s: s, upkeep: &both.upkeep, atLeast: atLeast}
	return &both.hold
}

// add puts a lock that was granted on the books. The caller holds m.mu.
func (h *hold) add(q *queue, info ports.LockInfo) {
	m := h.m
	if len(h.parts) == 0 {
		h.parts = h.first[:0]
	}
	h.parts = append(h.parts, part{q, info})
	q.holds = append(q.holds, h)
	m.byKey[info.Key] = append(slices.DeleteFunc(m.byKey[info.Key], func(h *hold) bool { return !h.live() }), h)
	m.stats.Held++
	m.stats.Acquired++
}

// infos describes the locks of the hold.
func (h *hold) infos() []ports.LockInfo {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	infos := make([]ports.LockInfo, len(h.parts))
	for i, p := range h.parts {
		infos[i] = p.info
	}
	return infos
}

// newest describes the lock that was added last, and says whether someone else
// was in its way.
func (h *hold) newest() (info ports.LockInfo, contended bool) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.parts[len(h.parts)-1].info, h.contended
}

// Info implements ports.Lock. It needs no lock, since the first of the hold's
// locks stays where it is.
func (h *hold) Info() ports.LockInfo { return h.first[0].info }

// Done implements ports.Lock.
func (h *hold) Done() <-chan struct{} {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.done.channel()
}

// Err implements ports.Lock.
func (h *hold) Err() error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.err
}

// live reports whether the hold has not ended. The caller holds Manager.mu.
func (h *hold) live() bool { return h.err == nil }

// Release implements ports.Lock.
func (h *hold) Release(ctx context.Context) error {
	if h.postpone() {
		return nil
	}
	return h.release(ctx)
}

// postpone has the hold end by itself when its least time has passed, if that
// has not, and reports whether it did so.
func (h *hold) postpone() bool {
	if h.atLeast <= 0 {
		return false
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	last := h.parts[len(h.parts)-1].info
	left := time.Until(last.AcquiredAt.Add(h.atLeast))
	if left <= 0 || !h.live() || h.m.closed {
		return false
	}
	if h.later == nil {
		h.later = time.AfterFunc(left, func() { _ = h.release(context.Background()) })
	}
	return true
}

// release ends the hold now.
func (h *hold) release(ctx context.Context) error {
	first := h.end(ports.ErrReleased)
	if !first && !errors.Is(h.Err(), ports.ErrLost) {
		return h.confirm(ctx) // of an earlier release, which was told
	}
	if h.carrier != nil {
		return h.confirm(ctx) // no lock of anybody
	}
	told := h.m.observers.release(ctx, h)
	if first && h.s != nil {
		if h.pass(h.word, false) {
			h.rouse()
		} else {
			h.settleHere(ctx)
		}
	}
	err := h.confirm(ctx)
	told(err)
	return err
}

// confirm waits for what the server says to the end of the hold.
func (h *hold) confirm(ctx context.Context) error {
	h.m.mu.Lock()
	h.forget()
	known := h.finished.given
	var finished <-chan struct{}
	if !known {
		finished = h.finished.channel()
	}
	h.m.mu.Unlock()
	var err error
	switch {
	case known || within(ctx, finished, h.m.releaseBound()):
		err = h.settled
	case ctx.Err() != nil:
		err = fmt.Errorf("the server has not confirmed the unlock yet: %w", ended(ctx))
	default:
		err = fmt.Errorf("the server did not confirm the unlock within %v, and its session is being ended", h.m.releaseBound())
	}
	if err != nil {
		return &ports.LockError{Op: "release", Key: h.Info().Key, Err: err}
	}
	return nil
}

// end ends the hold for its owner, if nothing has yet, and reports whether it
// did. What remains to be done at the server is the keeper's.
func (h *hold) end(why error) bool {
	h.m.mu.Lock()
	first := h.endNow(why)
	h.m.mu.Unlock()
	if first {
		h.m.observers.ended(h, why)
	}
	return first
}

// endNow is end for a caller who holds Manager.mu. It tells no observers.
func (h *hold) endNow(why error) bool {
	if h.err != nil {
		return false
	}
	h.err, h.ended = why, time.Now()
	if h.later != nil {
		h.later.Stop()
	}
	h.m.stats.Held -= len(h.parts)
	released := errors.Is(why, ports.ErrReleased)
	switch {
	case released && h.s != nil:
		h.bound = time.AfterFunc(h.m.releaseBound(), h.s.Destroy)
	case !released && h.carrier == nil:
		h.m.stats.Lost++
	}
	h.done.give()
	for _, tell := range h.told {
		(*tell)(why)
	}
	switch {
	case h.carrier != nil:
		h.carrier.ended(h)
		h.rouseNow()
	case h.s == nil:
		h.m.giveUp(h)
	case !released: // otherwise, release decides who settles it
		h.rouseNow()
	}
	return true
}

// rouse tells the keeper, if there is one, that the hold has ended.
func (h *hold) rouse() {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.rouseNow()
}

// rouseNow is rouse for a caller who holds Manager.mu.
func (h *hold) rouseNow() {
	select {
	case h.wake <- struct{}{}:
	default: // it knows already, or it will look before it waits
	}
}

// whenEnded has f called with the cause when the hold has ended, before anybody
// else can get the lock from this manager; at once, if it has. It is called under
// Manager.mu, or from here. What it returns takes that back.
func (h *hold) whenEnded(f func(why error)) (never func()) {
	h.m.mu.Lock()
	why := h.err
	if why == nil {
		h.told = append(h.told, &f)
	}
	h.m.mu.Unlock()
	if why != nil {
		f(why)
	}
	return func() {
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		h.told = slices.DeleteFunc(h.told, func(other *func(error)) bool { return other == &f })
	}
}

// lose ends the hold because of cause, unless it has ended already.
func (h *hold) lose(cause error) {
	switch ended := h.end(fmt.Errorf("%w: %w", ports.ErrLost, cause)); {
	case ended && h.carrier != nil:
		h.carrier.report()
	case ended:
		h.log(slog.LevelError, "lock lost", cause)
	}
}

// forget takes a hold that was released, or whose loss was told, off the books. The
// caller holds Manager.mu.
func (h *hold) forget() {
	for _, p := range h.parts {
		holds := slices.DeleteFunc(h.m.byKey[p.info.Key], func(other *hold) bool { return other == h })
		if len(holds) == 0 {
			delete(h.m.byKey, p.info.Key)
		} else {
			h.m.byKey[p.info.Key] = holds
		}
	}
}

// log reports what has happened to the hold.
func (h *hold) log(level slog.Level, msg string, err error) {
	h.m.logger.Log(context.Background(), level, msg,
		"key", h.m.logKey(h.Info().Key), "id", h.Info().ID, "database", h.Info().Database, "pid", h.Info().PID, "error", err)
}

// keep is the life of the keeper, from the grant to the end of the session.
func (h *hold) keep() {
	for h != nil {
		h = h.attend()
	}
}

// attend keeps one hold until it has ended, and returns the one that has got its
// session, if any.
func (h *hold) attend() (next *hold) {
	beatEvery := h.m.window / beatsPerWindow
	lostAfter := lostAfterBeats * beatEvery
	// The watchdog works also while the keeper is stuck in a driver that
	// ignores its context; ending the session gets the keeper out.
	watchdog := time.AfterFunc(time.Until(h.confirmed.Add(lostAfter)), func() {
		h.lose(errSilent)
		h.headStart()
		h.s.Destroy()
	})
	defer watchdog.Stop()
	beat := time.NewTimer(beatEvery)
	defer beat.Stop()

	for beats := 1; ; {
		over, hush, stop := h.watch()
		e, l := h.rest(over, beat.C, func() { watchdog.Stop(); hush() })
		if e == roused {
			watchdog.Stop()
		}
		err := stop()
		switch e {
		case takenOver:
			return nil // the unlock finds out by itself if the session is over
		case roused:
			return h.settle(err, false)
		case sessionOver:
			h.lose(err)
		case borrowed:
			lent := time.Now()
			h.lend(l, err, watchdog)
			if time.Since(lent) >= beatEvery {
				beat.Reset(beatEvery) // many short loans must not put the checks off
			}
		case beatDue:
			if err != nil {
				h.lose(err)
				continue
			}
			full := beats >= fullCheckEvery
			if h.check(full) && full {
				beats = 0 // without an answer, the next check is a full one again
			}
			beats++
			beat.Reset(beatEvery)
		}
		if ok, left := h.remaining(lostAfter); ok {
			watchdog.Reset(left)
		}
	}
}

// rest waits for the next thing to do. Meanwhile, a release may take over; it calls
// callOff then.
func (h *hold) rest(over <-chan struct{}, beat <-chan time.Time, callOff func()) (e event, l loan) {
	if !h.lieDown(callOff) {
		return roused, l
	}
	select {
	case <-h.wake:
		e = roused
	case <-over:
		e = sessionOver
	case l = <-h.loans:
		e = borrowed
	case <-beat:
		e = beatDue
	}
	if h.getUp() {
		return e, l
	}
	if e == borrowed {
		l.granted <- false
	}
	return takenOver, l
}

// lieDown lets a release take over, unless the hold has ended; then it returns
// false.
func (h *hold) lieDown(callOff func()) bool {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.wake == nil {
		h.wake = make(chan struct{}, 1)
	}
	h.takeLoans()
	if h.live() {
		h.resting = callOff
	}
	return h.live()
}

// takeLoans sees to it that loans can be asked for. The caller holds Manager.mu.
func (h *hold) takeLoans() {
	if h.loans == nil {
		h.loans = make(chan loan)
	}
}

// getUp reports whether no release has taken over.
func (h *hold) getUp() bool {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.resting = nil
	return !h.taken
}

// takeOver reports whether a release may settle the hold in place of the keeper.
// The caller holds Manager.mu.
func (h *hold) takeOver() bool {
	if h.resting == nil || !interruptible(h.s) {
		return false
	}
	h.resting()
	h.resting, h.taken = nil, true
	return true
}

// headStart gives the work that ran under a hold a beat to stop, if nothing but
// silence has ended it: the server may still have the lock, and hear of the end
// of the session at once, although we hear nothing of it.
func (h *hold) headStart() {
	h.m.mu.Lock()
	silent, end := errors.Is(h.err, errSilent), h.ended.Add(h.m.window/beatsPerWindow)
	h.m.mu.Unlock()
	if silent {
		time.Sleep(time.Until(end))
	}
}

// remaining is the time until a live hold is lost if nothing is heard.
func (h *hold) remaining(lostAfter time.Duration) (live bool, left time.Duration) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return h.live(), time.Until(h.confirmed.Add(lostAfter))
}

// watch looks out for the end of the session where it can be noticed without a
// query: then over is closed. hush ends the watch, which then frees the session
// for commands; stop also waits for that, and returns why the session is over, if
// it is.
func (h *hold) watch() (over <-chan struct{}, hush func(), stop func() error) {
	w, ok := h.s.(ports.Watcher)
	if !ok {
		return nil, func() {}, func() error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = w.Watch(ctx)
	}()
	return ended, cancel, func() error {
		cancel()
		<-ended
		return err
	}
}

// check asks the server for a sign of life, and reports whether it got one. No
// answer is not a loss, that is the watchdog's to say; a definite one is.
func (h *hold) check(full bool) (confirmed bool) {
	sent := time.Now()
	switch _, err := h.s.Check(context.Background(), full); {
	case err == nil:
		h.confirmed = sent
	case errors.Is(err, ports.ErrSessionEnded):
		h.lose(err)
		h.over = err
	default:
		h.log(slog.LevelWarn, "lock check failed", err)
	}
	return h.confirmed.Equal(sent)
}

// LendSession implements ports.SessionLender.
func (h *hold) LendSession(ctx context.Context, use func(ports.Session) bool) error {
	if h.s == nil {
		return &ports.LockError{Op: "run", Key: h.Info().Key, Err: fmt.Errorf("%w: this lock has no session of its own; leave out WithSharedSessions to give it one", ports.ErrUnsupported)}
	}
	h.m.mu.Lock()
	h.takeLoans()
	h.startKeeper()
	over := h.done.channel()
	h.m.mu.Unlock()
	l := loan{granted: make(chan bool, 1), back: make(chan bool, 1), settled: make(chan struct{})}
	var err error
	select {
	case h.loans <- l:
		if !<-l.granted {
			err = h.Err()
		}
	case <-over:
		err = h.Err()
	case <-ctx.Done():
		err = ended(ctx)
	}
	if err != nil {
		return &ports.LockError{Op: "run", Key: h.Info().Key, Err: err}
	}
	trusted := false
	defer func() { // also if use panics or ends its goroutine
		l.back <- trusted
		<-l.settled
	}()
	trusted = use(h.s)
	return nil
}

// lend stands aside while somebody else uses the session, and then decides
// whether it can carry the hold on. watchErr is why the session is over, if it
// is.
func (h *hold) lend(l loan, watchErr error, watchdog *time.Timer) {
	defer close(l.settled)
	if watchErr != nil {
		h.lose(watchErr)
	}
	h.m.mu.Lock()
	live := h.live()
	h.lent = h.lent || live
	h.m.mu.Unlock()
	l.granted <- live
	if !live {
		return
	}
	trusted := h.standAside(l.back, watchdog)
	watchdog.Stop()
	if trusted {
		h.confirmed = time.Now()
		return
	}
	watchdog.Reset(h.m.releaseBound())
	if !h.check(true) {
		h.lose(errDoubt)
	}
}

// standAside waits for a borrower to be done, and returns whether the session is
// still to be trusted. The borrower may do nothing with it for long; so each
// beat another session of the pool is asked for the hold, and the loss that it
// knows of, or the silence of the server, is told as at any other time. A pool
// without room for that says nothing of the hold: the watchdog is put off.
func (h *hold) standAside(back <-chan bool, watchdog *time.Timer) (trusted bool) {
	w, ok := h.m.pool.(ports.Witness)
	if !ok {
		watchdog.Stop()
		return <-back
	}
	every := h.m.window / beatsPerWindow
	beat := time.NewTicker(every)
	defer beat.Stop()
	heard := make(chan testimony, 1)
	due, asking := false, false
	for {
		if due && !asking {
			due, asking = false, true
			h.m.mu.Lock()
			h.m.start(func() { heard <- h.ask(w, every) })
			h.m.mu.Unlock()
		}
		select {
		case trusted := <-back:
			return trusted
		case <-beat.C:
			due = true
		case t := <-heard:
			asking = false
			switch {
			case t.err == nil && !t.holds:
				h.lose(errGone)
			case t.err == nil, errors.Is(t.err, ports.ErrPoolExhausted):
				h.confirmed = t.sent
				if live, left := h.remaining(lostAfterBeats * every); live {
					watchdog.Reset(left)
				}
			default:
				h.log(slog.LevelWarn, "lock check on another session failed", t.err)
			}
		}
	}
}

// ask has another session say whether the server has the locks of h.
func (h *hold) ask(w ports.Witness, limit time.Duration) testimony {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var ids []int64
	for _, info := range h.infos() {
		ids = append(ids, info.ID)
	}
	t := testimony{sent: time.Now()}
	t.holds, t.err = w.Holds(ctx, h.Info().PID, ids)
	return t
}

// settle ends the session of a hold that has ended for its owner, and starts
// whoever waits for the key in this process; or it returns the hold that has got
// its session next. watchErr is why the session is over, if it is. The caller is
// the keeper, or here is true, and the next one has none yet.
func (h *hold) settle(watchErr error, here bool) (next *hold) {
	m := h.m
	m.mu.Lock()
	why := h.err
	released := errors.Is(why, ports.ErrReleased)
	if watchErr == nil && released && h.successor() != nil {
		m.mu.Unlock()
		if h.passChecked(here) {
			return h.heir
		}
		m.mu.Lock()
	}
	next = h.heir
	h.last = true
	ex := h.exchange()
	m.mu.Unlock()
	if next != nil {
		if over := cmp.Or(watchErr, h.over); over != nil {
			next.lose(over)
		}
		return next
	}
	if released {
		why = h.unlock(watchErr, ex)
		if errors.Is(why, ports.ErrLost) {
			m.mu.Lock()
			m.stats.Lost++
			m.mu.Unlock()
			m.observers.lost(h, why)
		}
		if why != nil {
			h.log(slog.LevelError, "lock release failed", why)
		}
	}
	warm := why == nil && m.staysWarm(h) && ex == nil
	switch {
	case warm, why == nil && ex != nil: // its next user will come, or is there
	case why == nil:
		// Whoever releases waits for it, too: of the time that is left, half.
		m.recycleWithin(h.s, (m.releaseBound()-time.Since(h.ended))/2)
	default:
		h.headStart()
		m.destroy(h.s, why)
	}
	h.settled = why
	m.mu.Lock()
	h.finished.give()
	for _, p := range h.parts {
		p.q.holds = slices.DeleteFunc(p.q.holds, func(other *hold) bool { return other == h })
		m.advance(p.q)
	}
	if warm {
		m.park(h.s)
	}
	if ex != nil && why != nil {
		ex.comeBack()
		ex = nil
	}
	if ex == nil {
		m.freeSession()
	}
	m.exit()
	m.mu.Unlock()
	if ex != nil {
		return ex.goOn(h.s, here || m.hot(h.s, ex.a.sent))
	}
	return nil
}

// unlock gives the locks back at the server, the last one first, or exchanges the
// only one, and returns what a release has to say about it.
func (h *hold) unlock(watchErr error, ex *exchange) error {
	if watchErr != nil {
		return fmt.Errorf("%w: %w", ports.ErrLost, watchErr)
	}
	held, err := true, error(nil)
	for _, p := range slices.Backward(h.parts) { // it has ended, so none is added
		var had bool
		if ex != nil {
			had, err = ex.ask(p.info)
		} else {
			had, err = h.s.Unlock(context.Background(), p.info.ID, p.info.Mode)
		}
		held = held && had
		if err != nil {
			break
		}
	}
	switch inTime := h.bound.Stop(); {
	case err == nil && held:
		return nil
	case !inTime:
		return fmt.Errorf("the server did not confirm the unlock within %v, and its session was ended: %v", h.m.releaseBound(), err)
	case err == nil:
		return fmt.Errorf("%w: %w", ports.ErrLost, errGone)
	case errors.Is(err, ports.ErrSessionEnded):
		return fmt.Errorf("%w: %w", ports.ErrLost, err)
	default:
		return fmt.Errorf("the server did not confirm the unlock, and its session was ended: %w", err)
	}
}

// bounded runs one command of s. A session that does not answer within limit is
// ended, which ends the command; that it is over is our doing then, and no
// reason to try again.
func bounded[T any](s ports.Session, limit time.Duration, command func() (T, error)) (T, error) {
	timer := time.AfterFunc(limit, s.Destroy)
	answer, err := command()
	if inTime := timer.Stop(); !inTime {
		var none T
		return none, fmt.Errorf("the server did not answer within %v, and its session was ended (%v)", limit, err)
	}
	return answer, err
}

// lock is Session.Lock with a bound.
func (m *Manager) lock(ctx context.Context, s ports.Session, r ports.LockRequest) (ports.Grant, error) {
	return bounded(s, r.Wait+m.releaseBound(), func() (ports.Grant, error) { return s.Lock(ctx, r) })
}

// unlock is Session.Unlock with a bound.
func (m *Manager) unlock(ctx context.Context, s ports.Session, id int64, mode ports.Mode) (bool, error) {
	return bounded(s, m.releaseBound(), func() (bool, error) { return s.Unlock(ctx, id, mode) })
}

// recycle gives a session that holds nothing back to the pool.
func (m *Manager) recycle(s ports.Session) { m.recycleWithin(s, m.releaseBound()) }

// recycleWithin is recycle with a bound of its own.
func (m *Manager) recycleWithin(s ports.Session, limit time.Duration) {
	recycled, _ := bounded(s, limit, func() (bool, error) { return s.Recycle(context.Background()), nil })
	m.mu.Lock()
	delete(m.pinned, s)
	if !recycled {
		m.stats.Destroyed++
	}
	m.mu.Unlock()
	m.observers.sessionClosed(SessionEnd{Destroyed: !recycled})
}

// destroy ends a session because of err.
func (m *Manager) destroy(s ports.Session, err error) {
	s.Destroy()
	m.mu.Lock()
	delete(m.pinned, s)
	m.stats.Destroyed++
	level := slog.LevelWarn
	if m.closed {
		level = slog.LevelDebug
	}
	m.mu.Unlock()
	m.logger.Log(context.Background(), level, "lock session ended", "error", err)
	m.observers.sessionClosed(SessionEnd{Destroyed: true, Err: err})
}
