//go:build linux

package chaos

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// cable is the network between one process and a server: it can be cut, mended
// and slowed down. While it is cut nothing passes and nobody is told; what was
// under way arrives when it is mended, as if it had been sent again. If that
// takes longer than the liveness window, the server has given its sides up.
type cable struct {
	listener net.Listener
	target   func() string // where the server is now
	delay    atomic.Int64

	mu     sync.Mutex
	whole  chan struct{} // closed unless the cable is cut
	links  map[*link]bool
	closed bool
	wg     sync.WaitGroup
}

// link is one connection over a cable.
type link struct {
	client, server net.Conn
	dropped        chan struct{} // closed when the server has given it up
}

func newCable(target func() string) (*cable, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cable{listener: l, target: target, whole: make(chan struct{}), links: make(map[*link]bool)}
	close(c.whole)
	c.wg.Go(c.accept)
	return c, nil
}

func (c *cable) address() string { return c.listener.Addr().String() }

func (c *cable) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.wg.Go(func() { c.connect(client) })
	}
}

// connect carries one connection, from when the cable carries anything.
func (c *cable) connect(client net.Conn) {
	l := &link{client: client, dropped: make(chan struct{})}
	c.mu.Lock()
	c.links[l] = true
	if c.closed {
		client.Close()
	}
	c.mu.Unlock()
	defer func() {
		client.Close()
		c.mu.Lock()
		delete(c.links, l)
		c.mu.Unlock()
	}()
	<-c.isWhole()
	server, err := net.DialTimeout("tcp", c.target(), time.Second)
	if err != nil {
		return
	}
	c.mu.Lock()
	l.server = server
	if c.closed {
		server.Close()
	}
	c.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { c.pass(l, server, client) })
	both.Go(func() { c.pass(l, client, server) })
	both.Wait()
}

// pass copies one direction, and then closes it.
func (c *cable) pass(l *link, to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if d := time.Duration(c.delay.Load()); d > 0 {
			time.Sleep(d) // this is what a slow network does
		}
		<-c.isWhole()
		select {
		case <-l.dropped:
			return
		default:
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				from.Close()
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *cable) isWhole() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.whole
}

// cut cuts the cable.
func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.whole = make(chan struct{})
}

// drop has the server give up its sides of what is connected, of which the
// clients hear when the cable is mended.
func (c *cable) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for l := range c.links {
		if l.server != nil {
			select {
			case <-l.dropped:
			default:
				close(l.dropped)
				l.server.Close()
			}
		}
	}
}

// mend mends the cable.
func (c *cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.whole:
	default:
		close(c.whole)
	}
}

// slow makes every packet late by d; 0 for no more.
func (c *cable) slow(d time.Duration) { c.delay.Store(int64(d)) }

func (c *cable) close() {
	c.mend()
	c.mu.Lock()
	c.closed = true
	for l := range c.links {
		l.client.Close()
		if l.server != nil {
			l.server.Close()
		}
	}
	c.mu.Unlock()
	c.listener.Close()
	c.wg.Wait()
}
