package portstest

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// Pool is the harness of TestSessionPool: one session pool, and a view of its
// server from outside.
type Pool struct {
	// Pool is the implementation under test. Nobody else uses it.
	Pool ports.SessionPool
	// Holders returns the server processes that hold id in this mode now.
	Holders func(id int64, mode ports.Mode) []int
	// Waiters returns how many sessions wait for id now.
	Waiters func(id int64) int
	// Kill has the server end the session of a process.
	Kill func(pid int)
}

// TestSessionPool proves the laws of ports.SessionPool and ports.Session. It
// calls harness once a law; around, if not nil, wraps each law, for example
// into a bubble of testing/synctest.
func TestSessionPool(t *testing.T, around func(*testing.T, func(*testing.T)), harness func(*testing.T) Pool) {
	prove(t, poolLaws, around, harness)
}

// testID is a lock ID that no other test uses.
const testID = 7_404_119_028

var bg = context.Background()

var poolLaws = []law[Pool]{
	{"a free lock is granted", "Lock takes a free lock and tells the server process that holds it.", func(t *testing.T, p Pool) {
		for _, wait := range []time.Duration{0, time.Second} {
			s := p.open(t)
			g := p.lock(t, s, testID, ports.Exclusive, wait)
			if !g.Granted || g.PID == 0 || g.Interrupted {
				t.Fatalf("wait %v: %+v", wait, g)
			}
			p.heldBy(t, testID, ports.Exclusive, g.PID)
			p.unlock(t, s, testID, ports.Exclusive)
			p.heldBy(t, testID, ports.Exclusive)
			s.Recycle(bg)
		}
	}},
	{"a taken lock is refused", "A try for a taken lock is refused without an error, and the session is usable afterwards.", func(t *testing.T, p Pool) {
		a, b := p.open(t), p.open(t)
		p.lock(t, a, testID, ports.Exclusive, 0)
		if g := p.lock(t, b, testID, ports.Exclusive, 0); g.Granted {
			t.Fatal("two sessions hold one lock")
		}
		if g := p.lock(t, b, testID+1, ports.Exclusive, 0); !g.Granted {
			t.Fatal("the refused session cannot take another lock")
		}
		p.unlock(t, b, testID+1, ports.Exclusive)
		p.unlock(t, a, testID, ports.Exclusive)
		a.Recycle(bg)
		b.Recycle(bg)
	}},
	{"a busy session", "A session that is asked very often, in any mode, goes on telling the truth, and goes back to the pool.", func(t *testing.T, p Pool) {
		a, b := p.open(t), p.open(t)
		for i := range 40 {
			mode, id := ports.Mode(i%2), testID+int64(i%3)
			try := ports.LockRequest{ID: id, Mode: mode, HolderID: "laws", Liveness: 15 * time.Second}
			g, err := a.Lock(bg, try)
			if err != nil || !g.Granted {
				t.Fatalf("round %d: a free lock was refused: %v", i, err)
			}
			p.heldBy(t, id, mode, g.PID)
			try.Mode = ports.Exclusive
			if g, err := b.Lock(bg, try); err != nil || g.Granted {
				t.Fatalf("round %d: two sessions hold one lock: %v", i, err)
			}
			p.unlock(t, a, id, mode)
			p.heldBy(t, id, mode)
		}
		for _, s := range []ports.Session{a, b} {
			if !s.Recycle(bg) {
				t.Error("a session that holds nothing was destroyed")
			}
		}
	}},
	{"a wait ends", "A wait in vain ends by itself without an error, leaves nobody in the server's queue, and leaves the session usable.", func(t *testing.T, p Pool) {
		for _, mode := range []ports.Mode{ports.Exclusive, ports.Shared} {
			a, b := p.open(t), p.open(t)
			p.lock(t, a, testID, ports.Exclusive, 0)
			start := time.Now()
			g := p.lock(t, b, testID, mode, soon)
			if g.Granted || time.Since(start) < soon/2 {
				t.Fatalf("%+v after %v", g, time.Since(start))
			}
			if n := p.Waiters(testID); n != 0 {
				t.Fatalf("%d waiters are left", n)
			}
			p.unlock(t, a, testID, ports.Exclusive)
			if g := p.lock(t, b, testID, mode, soon); !g.Granted {
				t.Fatal("the session cannot take the lock that has become free")
			}
			p.unlock(t, b, testID, mode)
			a.Recycle(bg)
			b.Recycle(bg)
		}
	}},
	{"a wait is served", "A waiting session gets the lock when its holder unlocks.", func(t *testing.T, p Pool) {
		a, b := p.open(t), p.open(t)
		p.lock(t, a, testID, ports.Exclusive, 0)
		grants := make(chan ports.Grant, 1)
		go func() {
			for { // an implementation may end a wait sooner than asked
				g, err := b.Lock(bg, ports.LockRequest{ID: testID, Wait: 10 * time.Second})
				if g.Granted || err != nil {
					grants <- g
					return
				}
			}
		}()
		eventually(t, "b waits", func() bool { return p.Waiters(testID) == 1 })
		p.unlock(t, a, testID, ports.Exclusive)
		g := receive(t, "the grant", grants)
		p.heldBy(t, testID, ports.Exclusive, g.PID)
		p.unlock(t, b, testID, ports.Exclusive)
		a.Recycle(bg)
		b.Recycle(bg)
	}},
	{"unlock tells the truth", "Unlock says whether the session had the lock.", func(t *testing.T, p Pool) {
		s := p.open(t)
		p.lock(t, s, testID, ports.Exclusive, 0)
		p.unlock(t, s, testID, ports.Exclusive)
		held, err := s.Unlock(bg, testID, ports.Exclusive)
		must(t, err)
		if held {
			t.Fatal("a lock was unlocked twice")
		}
		s.Destroy()
	}},
	{"shared beside shared", "Shared holders stand beside each other and beside no exclusive one, and unlock as shared.", func(t *testing.T, p Pool) {
		a, b, c := p.open(t), p.open(t), p.open(t)
		ga, gb := p.lock(t, a, testID, ports.Shared, 0), p.lock(t, b, testID, ports.Shared, time.Second)
		if !ga.Granted || !gb.Granted {
			t.Fatal("shared locks exclude each other")
		}
		if g := p.lock(t, c, testID, ports.Exclusive, 0); g.Granted {
			t.Fatal("an exclusive lock stands beside shared ones")
		}
		p.heldBy(t, testID, ports.Shared, ga.PID, gb.PID)
		p.unlock(t, a, testID, ports.Shared)
		p.unlock(t, b, testID, ports.Shared)
		p.heldBy(t, testID, ports.Shared)
		if g := p.lock(t, c, testID, ports.Exclusive, 0); !g.Granted {
			t.Fatal("the lock is not free")
		}
		if g := p.lock(t, a, testID, ports.Shared, 0); g.Granted {
			t.Fatal("a shared lock stands beside an exclusive one")
		}
		p.unlock(t, c, testID, ports.Exclusive)
		for _, s := range []ports.Session{a, b, c} {
			s.Recycle(bg)
		}
	}},
	{"any ID", "Every int64 is an ID, through lock, wait, check and unlock.", func(t *testing.T, p Pool) {
		s := p.open(t)
		for _, id := range []int64{math.MinInt64, math.MinInt64 + 1, -1 << 32, -1, 0, 1, 1 << 31, 1 << 32, math.MaxInt64} {
			for _, wait := range []time.Duration{0, soon} {
				g := p.lock(t, s, id, ports.Exclusive, wait)
				if !g.Granted {
					t.Fatalf("%d is not granted", id)
				}
				p.heldBy(t, id, ports.Exclusive, g.PID)
				p.check(t, s)
				p.unlock(t, s, id, ports.Exclusive)
				p.heldBy(t, id, ports.Exclusive)
			}
		}
		s.Recycle(bg)
	}},
	{"several locks", "A session carries several locks; one is unlocked, or waited for in vain, without the others.", func(t *testing.T, p Pool) {
		s, rival := p.open(t), p.open(t)
		p.lock(t, rival, testID+3, ports.Exclusive, 0)
		g := p.lock(t, s, testID, ports.Exclusive, 0)
		p.lock(t, s, testID+1, ports.Shared, 0)
		p.lock(t, s, testID+2, ports.Exclusive, soon)
		if g := p.lock(t, s, testID+3, ports.Exclusive, soon); g.Granted {
			t.Fatal("two sessions hold one lock")
		}
		p.check(t, s)
		p.unlock(t, s, testID+2, ports.Exclusive)
		p.heldBy(t, testID, ports.Exclusive, g.PID)
		p.heldBy(t, testID+1, ports.Shared, g.PID)
		p.heldBy(t, testID+2, ports.Exclusive)
		p.check(t, s)
		p.unlock(t, s, testID+1, ports.Shared)
		p.unlock(t, s, testID, ports.Exclusive)
		p.unlock(t, rival, testID+3, ports.Exclusive)
		s.Recycle(bg)
		rival.Recycle(bg)
	}},
	{"recycle keeps nothing", "A session that goes back to the pool holds nothing; one that still does is ended.", func(t *testing.T, p Pool) {
		s := p.open(t)
		p.lock(t, s, testID, ports.Exclusive, 0)
		s.Recycle(bg)
		p.freed(t, testID)
		p.unused(t)
	}},
	{"recycled sessions serve again", "A session that was given back holding nothing serves the next caller.", func(t *testing.T, p Pool) {
		for range 50 {
			s := p.open(t)
			g := p.lock(t, s, testID, ports.Exclusive, 0)
			if !g.Granted {
				t.Fatal("not granted")
			}
			p.unlock(t, s, testID, ports.Exclusive)
			s.Recycle(bg)
		}
		p.unused(t)
	}},
	{"destroy frees", "Destroy frees what the session holds; later commands say that it is over; a second Destroy, and a Recycle, do nothing.", func(t *testing.T, p Pool) {
		s := p.open(t)
		p.lock(t, s, testID, ports.Exclusive, 0)
		s.Destroy()
		p.freed(t, testID)
		_, err := s.Lock(bg, ports.LockRequest{ID: testID})
		wraps(t, err, ports.ErrSessionEnded)
		_, err = s.Unlock(bg, testID, ports.Exclusive)
		wraps(t, err, ports.ErrSessionEnded)
		_, err = s.Check(bg, false)
		wraps(t, err, ports.ErrSessionEnded)
		s.Destroy()
		s.Recycle(bg)
		p.unused(t)
		p.heldBy(t, testID, ports.Exclusive)
	}},
	{"destroy ends a wait", "Destroy makes a command that is running return, and nothing is left of it.", func(t *testing.T, p Pool) {
		a, b := p.open(t), p.open(t)
		p.lock(t, a, testID, ports.Exclusive, 0)
		errs := make(chan error, 1)
		go func() {
			_, err := b.Lock(bg, ports.LockRequest{ID: testID, Wait: 10 * time.Second})
			errs <- err
		}()
		eventually(t, "b waits", func() bool { return p.Waiters(testID) == 1 })
		b.Destroy()
		if err := receive(t, "the end of the wait", errs); err == nil {
			t.Fatal("a destroyed session reports success")
		}
		p.unlock(t, a, testID, ports.Exclusive)
		p.freed(t, testID)
		a.Recycle(bg)
		p.unused(t)
	}},
	{"an end is told", "After the server has ended a session, its commands say so, and its lock is free.", func(t *testing.T, p Pool) {
		for _, command := range []func(ports.Session) error{
			func(s ports.Session) error { _, err := s.Check(bg, false); return err },
			func(s ports.Session) error { _, err := s.Check(bg, true); return err },
			func(s ports.Session) error { _, err := s.Unlock(bg, testID, ports.Exclusive); return err },
			func(s ports.Session) error { _, err := s.Lock(bg, ports.LockRequest{ID: testID + 1}); return err },
			func(s ports.Session) error {
				b, ok := s.(ports.Batcher)
				if !ok {
					return ports.ErrSessionEnded
				}
				_, err := b.Batch(bg, ports.Batch{Unlocks: []ports.Unlock{{ID: testID}}})
				return err
			},
		} {
			s := p.open(t)
			g := p.lock(t, s, testID, ports.Exclusive, 0)
			p.Kill(g.PID)
			p.freed(t, testID)
			wraps(t, command(s), ports.ErrSessionEnded)
			s.Destroy()
		}
		p.unused(t)
	}},
	{"a watch tells the end", "A Watcher notices that the server has ended the session, without a command.", func(t *testing.T, p Pool) {
		s := p.open(t)
		w, ok := s.(ports.Watcher)
		if !ok {
			s.Recycle(bg)
			return // it is optional, and the law is about those who offer it
		}
		g := p.lock(t, s, testID, ports.Exclusive, 0)
		errs := make(chan error, 1)
		go func() { errs <- w.Watch(bg) }()
		p.Kill(g.PID)
		wraps(t, receive(t, "the end of the watch", errs), ports.ErrSessionEnded)
		s.Destroy()
		p.unused(t)
	}},
	{"a watch leaves no trace", "A watch that its context ends leaves the session as usable as before.", func(t *testing.T, p Pool) {
		s := p.open(t)
		g := p.lock(t, s, testID, ports.Exclusive, 0)
		if w, ok := s.(ports.Watcher); ok {
			for range 20 {
				ctx, cancel := context.WithCancel(bg)
				time.AfterFunc(time.Millisecond, cancel)
				must(t, w.Watch(ctx))
				p.check(t, s)
			}
		}
		p.heldBy(t, testID, ports.Exclusive, g.PID)
		p.unlock(t, s, testID, ports.Exclusive)
		s.Recycle(bg)
		p.unused(t)
	}},
	{"tokens grow", "A grant that asks for a fencing token gets one that is greater than every one before it, of any lock, session or pool; one that does not ask gets none.", func(t *testing.T, p Pool) {
		var last ports.Token
		for i := range 10 {
			s := p.open(t)
			for _, wait := range []time.Duration{0, soon} {
				g, err := s.Lock(bg, ports.LockRequest{ID: testID + int64(i%3), Mode: ports.Mode(i % 2), Wait: wait, Fencing: true})
				must(t, err)
				if !g.Granted || g.Token <= last {
					t.Fatalf("%+v after token %d", g, last)
				}
				last = g.Token
				p.unlock(t, s, testID+int64(i%3), ports.Mode(i%2))
			}
			if g := p.lock(t, s, testID, ports.Exclusive, 0); g.Token != 0 {
				t.Fatalf("%+v", g)
			}
			p.unlock(t, s, testID, ports.Exclusive)
			s.Recycle(bg)
		}
	}},
	{"an exchange is a release and a try", "An Exchanger gives one lock back and tries another, whose modes may differ, and tells the truth of both.", func(t *testing.T, p Pool) {
		s, rival := p.open(t), p.open(t)
		ex, ok := s.(ports.Exchanger)
		if !ok {
			s.Recycle(bg)
			rival.Recycle(bg)
			return // it is optional, and the law is about those who offer it
		}
		const liveness = 15 * time.Second
		for _, from := range []ports.Mode{ports.Exclusive, ports.Shared} {
			for _, to := range []ports.Mode{ports.Exclusive, ports.Shared} {
				g, err := s.Lock(bg, ports.LockRequest{ID: testID, Mode: from, HolderID: "laws", Liveness: liveness})
				if err != nil || !g.Granted {
					t.Fatal(g, err)
				}
				next := ports.LockRequest{ID: math.MinInt64, Mode: to, HolderID: "laws", Liveness: liveness}
				for range 10 { // there, and back
					held, got, err := ex.Exchange(bg, testID, from, next)
					if err != nil || !held || !got.Granted || got.PID != g.PID {
						t.Fatal(held, got, err)
					}
					p.heldBy(t, testID, from)
					p.heldBy(t, next.ID, to, g.PID)
					held, got, err = ex.Exchange(bg, next.ID, to, ports.LockRequest{ID: testID, Mode: from, HolderID: "laws", Liveness: liveness})
					if err != nil || !held || !got.Granted {
						t.Fatal(held, got, err)
					}
				}
				// The other lock is taken: then nothing is held.
				p.lock(t, rival, next.ID, ports.Exclusive, 0)
				if held, got, err := ex.Exchange(bg, testID, from, next); err != nil || !held || got.Granted {
					t.Fatal(held, got, err)
				}
				p.heldBy(t, testID, from)
				p.unlock(t, rival, next.ID, ports.Exclusive)
				// The one is not there to be given back: then the other is not taken.
				if held, got, err := ex.Exchange(bg, testID, from, next); err != nil || held || got.Granted {
					t.Fatal(held, got, err)
				}
				p.heldBy(t, next.ID, to)
				if _, err := s.Check(bg, true); err != nil {
					t.Error(err)
				}
			}
		}
		if !s.Recycle(bg) || !rival.Recycle(bg) {
			t.Error("a session that holds nothing was destroyed")
		}
	}},
	{"a batch is answered one by one", "A Batcher gives back and tries many locks in one go, and answers each in its place.", func(t *testing.T, p Pool) {
		s, rival := p.open(t), p.open(t)
		if _, ok := s.(ports.Batcher); !ok {
			s.Recycle(bg)
			rival.Recycle(bg)
			return // it is optional, and the law is about those who offer it
		}
		p.lock(t, rival, testID+1, ports.Exclusive, 0)
		p.lock(t, rival, testID+3, ports.Shared, 0)
		a := p.batch(t, s, nil, []ports.Try{{ID: testID}, {ID: testID + 1}, {ID: testID + 2, Mode: ports.Shared}, {ID: testID + 3, Mode: ports.Shared}, {ID: math.MinInt64}, {ID: testID + 3 + 1<<32}})
		if !slices.Equal(a.Granted, []bool{true, false, true, true, true, true}) || len(a.Unlocked) > 0 || a.PID == 0 || a.Token != 0 {
			t.Fatalf("%+v", a)
		}
		p.heldBy(t, testID, ports.Exclusive, a.PID)
		p.heldBy(t, testID+2, ports.Shared, a.PID)
		p.heldBy(t, math.MinInt64, ports.Exclusive, a.PID)
		p.check(t, s)
		p.unlock(t, rival, testID+1, ports.Exclusive)
		p.unlock(t, rival, testID+3, ports.Shared)
		a = p.batch(t, s, []ports.Unlock{{ID: testID}, {ID: testID + 2, Mode: ports.Shared}, {ID: testID + 3, Mode: ports.Shared}, {ID: math.MinInt64}}, []ports.Try{{ID: testID + 1}})
		if !slices.Equal(a.Unlocked, []bool{true, true, true, true}) || !slices.Equal(a.Granted, []bool{true}) {
			t.Fatalf("%+v", a)
		}
		for i := range int64(4) {
			p.heldBy(t, testID+i, ports.Shared)
		}
		p.heldBy(t, testID, ports.Exclusive)
		p.heldBy(t, testID+1, ports.Exclusive, a.PID)
		p.check(t, s)
		a = p.batch(t, s, []ports.Unlock{{ID: testID + 1}, {ID: testID + 3 + 1<<32}}, nil)
		if !slices.Equal(a.Unlocked, []bool{true, true}) {
			t.Fatalf("%+v", a)
		}
		p.heldBy(t, testID+1, ports.Exclusive)
		s.Recycle(bg)
		rival.Recycle(bg)
		p.unused(t)
	}},
	{"a batch gives back first", "The unlocks of a batch come before its tries, which may be for the same locks; one of a lock that the session does not have is told.", func(t *testing.T, p Pool) {
		s := p.open(t)
		if _, ok := s.(ports.Batcher); !ok {
			s.Recycle(bg)
			return
		}
		var pid int
		for i := range 10 {
			mode, other := ports.Mode(i%2), ports.Mode(1-i%2)
			if a := p.batch(t, s, nil, []ports.Try{{ID: testID, Mode: mode}}); !slices.Equal(a.Granted, []bool{true}) {
				t.Fatalf("%+v", a)
			}
			a := p.batch(t, s, []ports.Unlock{{ID: testID, Mode: mode}}, []ports.Try{{ID: testID, Mode: other}})
			if !slices.Equal(a.Unlocked, []bool{true}) || !slices.Equal(a.Granted, []bool{true}) {
				t.Fatalf("%+v", a)
			}
			pid = a.PID
			p.heldBy(t, testID, mode)
			p.heldBy(t, testID, other, pid)
			p.unlock(t, s, testID, other)
			p.heldBy(t, testID, other)
		}
		p.lock(t, s, testID, ports.Exclusive, 0)
		if a := p.batch(t, s, []ports.Unlock{{ID: testID + 1}, {ID: testID}}, nil); !slices.Equal(a.Unlocked, []bool{false, true}) {
			t.Fatalf("%+v", a)
		}
		s.Destroy()
		p.unused(t)
	}},
	{"a batch draws one token", "A batch whose grants ask for a fencing token gets one that is greater than every one before it; one that has no such grant gets none. A lock that is held is not taken a second time.", func(t *testing.T, p Pool) {
		s, rival := p.open(t), p.open(t)
		if _, ok := s.(ports.Batcher); !ok {
			s.Recycle(bg)
			rival.Recycle(bg)
			return
		}
		p.lock(t, rival, testID+1, ports.Exclusive, 0)
		var last ports.Token
		for i := range 10 {
			mode := ports.Mode(i % 2)
			first := p.batch(t, s, nil, []ports.Try{{ID: testID + 1, Fencing: true}, {ID: testID, Mode: mode}})
			second := p.batch(t, s, nil, []ports.Try{{ID: testID, Mode: mode, Held: true, Fencing: true}, {ID: testID + 2, Fencing: true}})
			if first.Token != 0 || second.Token <= last || !slices.Equal(second.Granted, []bool{true, true}) {
				t.Fatalf("%+v, %+v after token %d", first, second, last)
			}
			last = second.Token
			p.batch(t, s, []ports.Unlock{{ID: testID, Mode: mode}, {ID: testID + 2}}, nil)
			p.heldBy(t, testID, mode)
		}
		p.unlock(t, rival, testID+1, ports.Exclusive)
		s.Recycle(bg)
		rival.Recycle(bg)
		p.unused(t)
	}},
	{"usage counts", "Usage counts the sessions in use.", func(t *testing.T, p Pool) {
		before, _ := p.Pool.Usage()
		a, b := p.open(t), p.open(t)
		if n, _ := p.Pool.Usage(); n != before+2 {
			t.Fatalf("%d in use, want %d", n, before+2)
		}
		a.Recycle(bg)
		b.Destroy()
		p.unused(t)
	}},
	{"open obeys its context", "Open with a context that is done fails, and leaves nothing behind.", func(t *testing.T, p Pool) {
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if s, err := p.Pool.Open(ctx); err == nil {
			s.Recycle(bg) // the context may have come too late
		}
		p.unused(t)
	}},
	{"timeouts race grants", "A wait that runs out in the moment of the grant either holds the lock and says so, or holds nothing.", func(t *testing.T, p Pool) {
		for i := range 60 {
			a, b := p.open(t), p.open(t)
			p.lock(t, a, testID, ports.Exclusive, 0)
			const wait = 20 * time.Millisecond
			var wg sync.WaitGroup
			wg.Go(func() {
				time.Sleep(wait + time.Duration(i%20-10)*100*time.Microsecond)
				if held, err := a.Unlock(bg, testID, ports.Exclusive); err != nil || !held {
					t.Errorf("unlock: %v %v", held, err)
				}
			})
			g := p.lock(t, b, testID, ports.Exclusive, wait)
			wg.Wait()
			if g.Granted {
				p.heldBy(t, testID, ports.Exclusive, g.PID)
				p.unlock(t, b, testID, ports.Exclusive)
			}
			p.heldBy(t, testID, ports.Exclusive)
			a.Recycle(bg)
			b.Recycle(bg)
		}
		p.unused(t)
	}},
}

// open opens a session.
func (p Pool) open(t *testing.T) ports.Session {
	t.Helper()
	s, err := p.Pool.Open(bg)
	must(t, err)
	t.Cleanup(s.Destroy)
	return s
}

// lock asks for a lock and expects no error.
func (p Pool) lock(t *testing.T, s ports.Session, id int64, mode ports.Mode, wait time.Duration) ports.Grant {
	t.Helper()
	g, err := s.Lock(bg, ports.LockRequest{ID: id, Mode: mode, Wait: wait})
	must(t, err)
	return g
}

// batch sends a batch and expects no error.
func (p Pool) batch(t *testing.T, s ports.Session, unlocks []ports.Unlock, tries []ports.Try) ports.BatchAnswer {
	t.Helper()
	a, err := s.(ports.Batcher).Batch(bg, ports.Batch{Unlocks: unlocks, Tries: tries, HolderID: "laws", Liveness: 15 * time.Second})
	must(t, err)
	return a
}

// check makes a full check and expects a server process.
func (p Pool) check(t *testing.T, s ports.Session) {
	t.Helper()
	if pid, err := s.Check(bg, true); err != nil || pid == 0 {
		t.Fatalf("process %d: %v", pid, err)
	}
}

// unlock gives a lock back and expects that it was held.
func (p Pool) unlock(t *testing.T, s ports.Session, id int64, mode ports.Mode) {
	t.Helper()
	held, err := s.Unlock(bg, id, mode)
	must(t, err)
	if !held {
		t.Fatal("the server did not have the lock")
	}
}

// heldBy asserts who holds a lock now.
func (p Pool) heldBy(t *testing.T, id int64, mode ports.Mode, pids ...int) {
	t.Helper()
	got := p.Holders(id, mode)
	slices.Sort(got)
	slices.Sort(pids)
	if !slices.Equal(got, pids) {
		t.Fatalf("lock %d is held %v by %v, want %v", id, mode, got, pids)
	}
}

// freed waits until nobody holds a lock: a server may take a moment to notice
// that a client has gone.
func (p Pool) freed(t *testing.T, id int64) {
	t.Helper()
	eventually(t, "the lock is free", func() bool {
		return len(p.Holders(id, ports.Exclusive))+len(p.Holders(id, ports.Shared)) == 0
	})
}

// unused asserts that no session is in use.
func (p Pool) unused(t *testing.T) {
	t.Helper()
	eventually(t, "no session is in use", func() bool { n, _ := p.Pool.Usage(); return n == 0 })
}
