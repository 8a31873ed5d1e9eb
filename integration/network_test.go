package integration

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// proxy stands between client and server. When it is cut, nothing passes any
// more, and nobody is told: as with a cable that is pulled.
type proxy struct {
	listener net.Listener
	backend  string
	cut      chan struct{}

	mu    sync.Mutex
	conns []net.Conn
	wg    sync.WaitGroup
}

// through starts a proxy and returns the DSN that goes through it.
func through(t *testing.T, dsn string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(dsn)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{listener: l, backend: u.Host, cut: make(chan struct{})}
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", p.backend)
			if err != nil {
				client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			p.wg.Go(func() { p.pass(server, client) })
			p.wg.Go(func() { p.pass(client, server) })
		}
	})
	t.Cleanup(p.close)
	u.Host = l.Addr().String()
	return p, u.String()
}

// pass copies until the proxy is cut; then it swallows.
func (p *proxy) pass(to, from net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-p.cut:
			io.Copy(io.Discard, from)
			return
		default:
		}
		if n > 0 {
			to.Write(buf[:n])
		}
		if err != nil {
			to.Close()
			return
		}
	}
}

func (p *proxy) close() {
	p.listener.Close()
	p.mu.Lock()
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// within fails the test unless call returns within a bound that is far from
// what it should take.
func within(t *testing.T, what string, bound time.Duration, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	select {
	case <-done:
	case <-time.After(bound):
		t.Errorf("%s has not returned after %v", what, bound)
	}
}

const window = pglock.MinLivenessWindow

func TestADeadNetworkHangsNobody(t *testing.T) {
	each(t, drivers, func(t *testing.T, w world) {
		p, dsn := through(t, w.dsn)
		db := w.open(t, dsn, 8)
		m := w.new(db, pglock.WithLivenessWindow(window))
		told, released, lent := acquire(t, m, "told"), acquire(t, m, "released"), acquire(t, m, "lent")
		conn := w.lockRaw(t, "theirs")
		waiter := acquireLater(m, "theirs")
		tx := begin(t, db)
		eventually(t, "somebody waits", func() bool { return w.waiting(t, "theirs") == 1 })

		close(p.cut)
		var wg sync.WaitGroup
		wg.Go(func() {
			within(t, "the holder", window, func() { <-told.Done() })
			wraps(t, told.Err(), ports.ErrLost)
			within(t, "a release after the loss", window, func() { wraps(t, told.Release(bg), ports.ErrLost) })
		})
		wg.Go(func() {
			within(t, "a release", window, func() {
				if released.Release(bg) == nil {
					t.Error("the server cannot have confirmed the unlock")
				}
			})
		})
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
			defer cancel()
			within(t, "RunTx", 3*window, func() {
				if sqllock.RunTx(ctx, lent, nil, func(context.Context, *sql.Tx) error { return nil }) == nil {
					t.Error("the server cannot have committed")
				}
			})
		})
		wg.Go(func() {
			within(t, "a wait without a bound", 2*window, func() {
				if r := <-waiter; r.err == nil || errors.Is(r.err, ports.ErrNotAcquired) {
					t.Errorf("%v", r.err)
				}
			})
		})
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
			defer cancel()
			within(t, "a call on a new connection", window, func() {
				_, err := m.Acquire(ctx, "new")
				wraps(t, err, context.DeadlineExceeded)
			})
		})
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(bg, 200*time.Millisecond)
			defer cancel()
			within(t, "AcquireTx", window, func() {
				if sqllock.AcquireTx(ctx, tx, "tx") == nil {
					t.Error("the server cannot have answered")
				}
			})
		})
		wg.Wait()
		within(t, "Close", 2*window, func() { m.Close(bg) })
		p.close() // lets the test's own transaction go
		unlockRaw(t, conn)
		eventually(t, "the server has dropped the sessions", func() bool { return w.locks(t) == 0 })
	})
}
