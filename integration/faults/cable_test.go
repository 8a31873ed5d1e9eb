//go:build linux

package faults

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// The bound within which a rival gets the lock of a holder whose host has
// vanished, for the window that the tests use. With W = 5 s, a holder's session
// has, in the arithmetic of sqllock's holder.go, idle = interval = 1 s, count = 4
// and tcp_user_timeout = 5 s. The last that the server hears of the holder is no
// later than the cut; its kernel probes from 1 s after that, every second, and
// gives up at the first probe at which 5 s have passed, which may be the one
// after. So the session ends at W, or one interval later. If the cut lets the holder's packets
// through and only loses the server's, then a last check may come up to an
// interval after the cut, and the last statement of a transaction when the holder
// is told, up to three intervals after it; W counts from its answer. The slack is
// for the machine.
const (
	cutWindow    = pglock.MinLivenessWindow
	cutInterval  = cutWindow / 5
	cutSlack     = 2 * time.Second
	takeoverEnd  = cutWindow + 3*cutInterval + cutSlack
	cutsAtOnce   = 8  // of one driver
	cutsByDriver = 10 // unless CUTS says otherwise
)

// network is a network of our own: a server in one namespace, and a namespace
// with a cable of its own for each holder.
type network struct {
	ns       string // the server's
	server   *process
	port     string
	dsn      string // with the password, and the loopback address of the server's namespace
	socket   string // directory of the server's socket, by which a rival is local
	database *sql.DB
	view

	mu    sync.Mutex
	hosts int
}

var networks atomic.Int64

// newNetwork makes a network with a server in it.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("this machine has no ip command (iproute2)")
	}
	s := breakable(t, map[string]string{"max_connections": "300"})
	must(t, s.StopMode("fast"))
	home, user := homeOf(t, s)
	u, err := url.Parse(s.DSN())
	must(t, err)

	n := &network{ns: fmt.Sprintf("holdfast%d.%d", os.Getpid(), networks.Add(1)), port: u.Port(), dsn: s.DSN(), socket: filepath.Join(home, "sockets")}
	if out, err := exec.Command("ip", "netns", "add", n.ns).CombinedOutput(); err != nil {
		t.Skipf("this machine lets nobody make network namespaces: %s", out)
	}
	t.Cleanup(func() { ip(t, "netns", "del", n.ns) })
	ip(t, "-n", n.ns, "link", "set", "lo", "up")

	must(t, os.Mkdir(n.socket, 0o755))
	must(t, os.Chmod(home, 0o755))
	if user != nil {
		must(t, os.Chown(n.socket, int(user.Uid), int(user.Gid)))
	}
	hba, err := os.OpenFile(filepath.Join(s.DataDir(), "pg_hba.conf"), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = hba.WriteString("host all all 10.0.0.0/8 password\n")
	must(t, err)
	must(t, hba.Close())
	cmd := exec.Command(filepath.Join(s.BinDir(), "postgres"), "-D", s.DataDir(),
		"-c", "port="+n.port, "-c", "listen_addresses=*", "-c", "unix_socket_directories="+n.socket)
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	log, err := os.Create(filepath.Join(home, "log of the network"))
	must(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	n.server = start(t, cmd, user, n.ns)
	t.Cleanup(func() { n.server.end(t, syscall.SIGQUIT) })

	n.database = observer(t, n.local())
	eventually(t, "the server takes connections", func() bool { return n.database.Ping() == nil })
	n.view = viewOf(t, n.database, strings.TrimPrefix(u.Path, "/"))
	return n
}

// local is the DSN of those that are where the server is.
func (n *network) local() string { return overSocket(n.dsn, n.socket) }

// ip runs the command of that name.
func ip(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// host is a machine on the network, on the end of a cable.
type host struct {
	n         *network
	ns        string
	near, far string // the cable's ends: the server's and the host's
	addresses [2]string
	macs      [2]string
}

// newHost adds a host, and takes it away when the test ends.
func (n *network) newHost(t testing.TB) *host {
	t.Helper()
	n.mu.Lock()
	n.hosts++
	i := n.hosts
	n.mu.Unlock()
	h := &host{
		n: n, ns: fmt.Sprintf("%sh%d", n.ns, i),
		near: fmt.Sprintf("s%d", i), far: fmt.Sprintf("h%d", i),
		addresses: [2]string{fmt.Sprintf("10.%d.%d.1", 64+i/256, i%256), fmt.Sprintf("10.%d.%d.2", 64+i/256, i%256)},
		macs:      [2]string{fmt.Sprintf("02:00:00:01:%02x:%02x", i/256, i%256), fmt.Sprintf("02:00:00:02:%02x:%02x", i/256, i%256)},
	}
	ip(t, "netns", "add", h.ns)
	t.Cleanup(func() { ip(t, "netns", "del", h.ns) }) // the cable goes with it
	ip(t, "link", "add", h.near, "address", h.macs[0], "netns", n.ns, "type", "veth",
		"peer", "name", h.far, "address", h.macs[1], "netns", h.ns)
	ip(t, "-n", h.ns, "link", "set", "lo", "up")
	for end, ns := range []string{n.ns, h.ns} {
		link := []string{h.near, h.far}[end]
		ip(t, "-n", ns, "address", "add", h.addresses[end]+"/30", "dev", link)
		ip(t, "-n", ns, "link", "set", link, "up")
	}
	return h
}

// dsn is the server's as the host sees it.
func (h *host) dsn() string { return at(h.n.dsn, net.JoinHostPort(h.addresses[0], h.n.port)) }

// A cut is a way to break a cable, and to mend it.
type cut struct {
	name      string
	cut, mend func(testing.TB, *host)
}

// noOne is an address of hardware that does not exist: what is sent there
// arrives nowhere, and no kernel notices that.
const noOne = "02:00:00:ff:ff:ff"

func (h *host) link(t testing.TB, end int, state string) {
	ip(t, "-n", []string{h.n.ns, h.ns}[end], "link", "set", []string{h.near, h.far}[end], state)
}

// forget has both ends look each other up anew, without the failures of before.
func (h *host) forget(t testing.TB) {
	ip(t, "-n", h.n.ns, "neighbour", "flush", "dev", h.near)
	ip(t, "-n", h.ns, "neighbour", "flush", "dev", h.far)
}

// neighbour sets where one end sends what is for the other one.
func (h *host) neighbour(t testing.TB, end int, mac string) {
	ip(t, "-n", []string{h.n.ns, h.ns}[end], "neighbour", "replace", h.addresses[1-end], "lladdr", mac, "nud", "permanent", "dev", []string{h.near, h.far}[end])
}

var cuts = []cut{
	{"both ways, silently",
		func(t testing.TB, h *host) { h.neighbour(t, 0, noOne); h.neighbour(t, 1, noOne) },
		func(t testing.TB, h *host) { h.neighbour(t, 0, h.macs[1]); h.neighbour(t, 1, h.macs[0]) }},
	{"the host's end is down",
		func(t testing.TB, h *host) { h.link(t, 1, "down") },
		func(t testing.TB, h *host) { h.link(t, 1, "up"); h.forget(t) }},
	{"the server's end is down",
		func(t testing.TB, h *host) { h.link(t, 0, "down") },
		func(t testing.TB, h *host) { h.link(t, 0, "up"); h.forget(t) }},
	{"from the host only",
		func(t testing.TB, h *host) { h.neighbour(t, 1, noOne) },
		func(t testing.TB, h *host) { h.neighbour(t, 1, h.macs[0]) }},
	{"from the server only",
		func(t testing.TB, h *host) { h.neighbour(t, 0, noOne) },
		func(t testing.TB, h *host) { h.neighbour(t, 0, h.macs[1]) }},
}

// takeover is what one cut has shown.
type takeover struct {
	how        string
	told, took time.Duration // after the cut: when the holder knew, and when the rival had it
}

func (o takeover) margin() time.Duration { return o.took - o.told }

// The holder is told before a rival can get in, and the rival gets in within
// the bound, whatever the moment and the kind of the cut, within RunTx too.
func TestAHolderIsToldOfACutCableBeforeARivalGetsIn(t *testing.T) {
	t.Parallel()
	total := cutsByDriver
	if s := os.Getenv("CUTS"); s != "" {
		var err error
		total, err = strconv.Atoi(s)
		must(t, err)
	}
	n := newNetwork(t)
	t.Run("drivers", func(t *testing.T) {
		for _, s := range drivers {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				rivals := s.manager(t, s.open(t, n.local(), 2*cutsAtOnce), pglock.WithHolderID("rival"))
				var mu sync.Mutex
				var all []takeover
				var wg sync.WaitGroup
				slots := make(chan struct{}, cutsAtOnce)
				for i := range total {
					slots <- struct{}{}
					wg.Go(func() {
						defer func() { <-slots }()
						role := []string{holderRole, borrowerRole}[i%2]
						o := n.cutCable(t, s, rivals, role, fmt.Sprintf("%s %d, %s", s.name, i, role), cuts[i%len(cuts)])
						mu.Lock()
						defer mu.Unlock()
						all = append(all, o)
					})
				}
				wg.Wait()
				if t.Failed() || len(all) == 0 {
					return
				}
				least := slices.MinFunc(all, func(a, b takeover) int { return int(a.margin() - b.margin()) })
				longest := slices.MaxFunc(all, func(a, b takeover) int { return int(a.took - b.took) })
				t.Logf("%d cuts: smallest margin %v (%s), longest takeover %v (%s), bound %v",
					len(all), least.margin().Round(time.Millisecond), least.how, longest.took.Round(time.Millisecond), longest.how, takeoverEnd)
			})
		}
	})
	if held := n.locks(t); held != 0 {
		t.Errorf("%d locks are left", held)
	}
}

// cutCable has a holder on a new host lose its network while a rival waits, and
// mends it.
func (n *network) cutCable(t *testing.T, s setup, rivals *pglock.Manager, role, key string, how cut) takeover {
	h := n.newHost(t)
	holder := startHolder(t, role, s, h.dsn(), key, cutWindow, h.ns)
	in := make(chan time.Duration, 1)
	go func() {
		lock, err := rivals.Acquire(bg, key, ports.WithTimeout(patience))
		got := monotonic()
		if err != nil {
			t.Errorf("%s: the rival: %v", key, err)
		} else if err := lock.Release(bg); err != nil {
			t.Errorf("%s: the rival: %v", key, err)
		}
		in <- got
	}()
	eventually(t, "the rival waits", func() bool { return n.waiting(t, key) == 1 })
	if role == borrowerRole {
		// The kernel may delay the acknowledgement of its last answer by 200 ms; a
		// cut before that is the case in which RunTx promises no takeover by then.
		time.Sleep(400 * time.Millisecond)
	}
	time.Sleep(rand.N(cutWindow)) // at any moment between two checks, full ones too
	at := monotonic()
	how.cut(t, h)
	o := takeover{how: how.name + ", " + role, told: holder.lost(t) - at, took: receive(t, "the rival", in) - at}
	if o.margin() <= 0 {
		t.Errorf("%s: %s: the rival got in %v after the cut, and the holder was told after %v", key, how.name, o.took, o.told)
	}
	if o.took > takeoverEnd {
		t.Errorf("%s: %s: the rival got in %v after the cut, later than %v", key, how.name, o.took, takeoverEnd)
	}
	if limit := 4*cutWindow/5 + cutSlack; o.told > limit {
		t.Errorf("%s: %s: the holder was told %v after the cut, later than %v", key, how.name, o.told, limit)
	}
	how.mend(t, h)
	holder.again(t) // without a restart of the program
	eventually(t, "nothing is held", func() bool { return n.held(t, key) == 0 })
	holder.end(t, syscall.SIGTERM)
	return o
}

// The lock outlived a vanished host: its network is gone, and then the host.
func TestCase16AVanishedHostsLockIsFreeWithinTheBound(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	t.Run("drivers", func(t *testing.T) {
		for _, s := range drivers {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				rivals := s.manager(t, s.open(t, n.local(), 2*cutsAtOnce), pglock.WithHolderID("rival"))
				var mu sync.Mutex
				var longest time.Duration
				var wg sync.WaitGroup
				for i, how := range cuts {
					wg.Go(func() {
						key := fmt.Sprintf("%s %d", s.name, i)
						h := n.newHost(t)
						holder := startHolder(t, holderRole, s, h.dsn(), key, cutWindow, h.ns)
						later := acquireLater(rivals, key)
						eventually(t, "the rival waits", func() bool { return n.waiting(t, key) == 1 })
						time.Sleep(rand.N(cutWindow))
						at := time.Now()
						how.cut(t, h)
						if i%2 == 0 {
							time.Sleep(rand.N(cutInterval))
						}
						holder.end(t, syscall.SIGKILL)
						r := receive(t, "the lock", later)
						if r.err != nil {
							t.Errorf("%s: %v", how.name, r.err)
							return
						}
						took := r.at.Sub(at)
						if how.name != "from the server only" && took < cutWindow-cutSlack/2 {
							t.Errorf("%s: free after %v, so the server heard of it", how.name, took)
						}
						if took > takeoverEnd {
							t.Errorf("%s: free after %v, later than %v", how.name, took, takeoverEnd)
						}
						if err := r.lock.Release(bg); err != nil {
							t.Errorf("%s: %v", how.name, err)
						}
						mu.Lock()
						defer mu.Unlock()
						longest = max(longest, took)
					})
				}
				wg.Wait()
				t.Logf("longest takeover %v, bound %v", longest.Round(time.Millisecond), takeoverEnd)
			})
		}
	})
	if held := n.locks(t); held != 0 {
		t.Errorf("%d locks are left", held)
	}
}
