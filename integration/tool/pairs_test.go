//go:build unix

package tool

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/ports"
)

// place is where a lock is, as JSON has it: one of both.
type place struct {
	ID   *int64
	Pair *[2]int32
}

func (p place) String() string {
	switch {
	case p.ID != nil && p.Pair == nil:
		return fmt.Sprintf("bigint %d", *p.ID)
	case p.Pair != nil && p.ID == nil:
		return fmt.Sprintf("pair %v", *p.Pair)
	}
	return fmt.Sprintf("neither or both: %v, %v", p.ID, p.Pair)
}

// other is a session of software that locks with SQL of its own.
func other(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(bg, dsn)
	must(t, err)
	t.Cleanup(func() { conn.Close(bg) })
	return conn
}

// says runs a statement whose answer is yes or no.
func says(t *testing.T, conn *pgx.Conn, statement string) (yes bool) {
	t.Helper()
	must(t, conn.QueryRow(bg, statement).Scan(&yes))
	return yes
}

// held counts the holders of a lock.
func held(t *testing.T, dsn string, space int, id int64) (n int) {
	t.Helper()
	for _, s := range sessionsIn(t, dsn, space, id) {
		if s.granted {
			n++
		}
	}
	return n
}

func TestLsAndEvictTellTheTwoSpacesApart(t *testing.T) {
	dsn := fresh(t)
	env := environment("DATABASE_URL=" + dsn)
	const id = 1<<32 | 2 // the bits of the pair
	number, pairs := other(t, dsn), other(t, dsn)
	_, err := number.Exec(bg, `SELECT pg_advisory_lock(4294967298)`)
	must(t, err)
	_, err = pairs.Exec(bg, `SELECT pg_advisory_lock(1, 2), pg_advisory_lock_shared(-1, -2)`)
	must(t, err)
	waiter := startIn(t, env, "run", "1,2", "--scheme=pair", "--", "sh", "-c", "echo running; exec sleep 600")
	eventually(t, "one waits for the pair", func() bool { return len(sessionsIn(t, dsn, ofPair, id)) == 2 })

	lines := func(args ...string) (names []string) {
		t.Helper()
		out, stderr := startIn(t, env, append([]string{"ls"}, args...)...).end(0)
		for line := range strings.Lines(out) {
			if name, rest, _ := strings.Cut(line, " "); strings.Contains(rest, " held ") || strings.Contains(rest, "free") {
				names = append(names, name+" "+strings.Fields(rest)[0])
			}
		}
		if stderr != "" {
			t.Error(stderr)
		}
		return names
	}
	if got := lines(); !slices.Equal(got, []string{"4294967298 held", "-1,-2 held", "1,2 held"}) {
		t.Errorf("all: %q", got)
	}
	if got := lines("--scheme=pair", "--", "1,2", "2,1", "-1,-2"); !slices.Equal(got, []string{"1,2 held", "2,1 free", "-1,-2 held"}) {
		t.Errorf("pairs: %q", got)
	}
	if got := lines("--scheme=number", "4294967298", "12884901892"); !slices.Equal(got, []string{"4294967298 held", "12884901892 free"}) {
		t.Errorf("bigints: %q", got)
	}
	out, _ := startIn(t, env, "ls", "--json").end(0)
	var found []string
	for _, l := range fromJSON[[]struct {
		place
		Holders []holder
	}](t, out) {
		found = append(found, fmt.Sprintf("%v %s %d", l, l.Holders[0].Mode, l.Holders[0].PID))
	}
	if want := []string{
		fmt.Sprintf("bigint 4294967298 exclusive %d", number.PgConn().PID()),
		fmt.Sprintf("pair [-1 -2] shared %d", pairs.PgConn().PID()),
		fmt.Sprintf("pair [1 2] exclusive %d", pairs.PgConn().PID()),
	}; !slices.Equal(found, want) {
		t.Errorf("%q, want %q", found, want)
	}

	evict := func(want string, args ...string) {
		t.Helper()
		if out, stderr := startIn(t, env, append([]string{"evict"}, args...)...).end(0); out != want+"\n" || stderr != "" {
			t.Errorf("stdout %q, stderr %q, want %q", out, stderr, want)
		}
	}
	evict(`nobody holds "2,1"`, "--scheme=pair", "2,1")
	evict(`ended 1 of the sessions that held "4294967298"`, "--scheme=number", "4294967298")
	eventually(t, "the holder of the bigint is gone", func() bool { return number.Ping(bg) != nil && held(t, dsn, ofBigint, id) == 0 })
	if pairs.Ping(bg) != nil || held(t, dsn, ofPair, id) != 1 {
		t.Error("the holder of the pair was ended")
	}
	evict(`ended 1 of the sessions that held "1,2"`, "--scheme=pair", "1,2")
	eventually(t, "the holder of the pair is gone", func() bool { return pairs.Ping(bg) != nil })
	if line := waiter.line(); line != "running" || held(t, dsn, ofPair, id) != 1 {
		t.Errorf("the next is not the one that waited: %q", line)
	}
	evict(`ended 1 of the sessions that held "1,2"`, "--scheme=pair", "1,2")
	waiter.end(exitLost)
}

func TestRunExcludesTheSQLOfOtherSoftware(t *testing.T) {
	gem := other(t, server.DSN())
	for _, c := range []struct {
		scheme, key, numbers string // as the other software has them
		space                int
		id                   int64
	}{
		{"with-advisory-lock", "my-lock", "1153040885, 0", ofPair, ports.PairID(1153040885, 0)},
		{"dotnet", "my-lock", "-605720883, -118112257", ofPair, ports.PairID(-605720883, -118112257)},
		{"dotnet", "migration:tenant-abc", "5234811584265427027", ofBigint, 5234811584265427027},
		{"pair", "-7,8", "-7, 8", ofPair, ports.PairID(-7, 8)},
	} {
		try, unlock := "SELECT pg_try_advisory_lock("+c.numbers+")", "SELECT pg_advisory_unlock("+c.numbers+")"
		args := func(flags ...string) []string {
			return slices.Concat([]string{"run", "--scheme=" + c.scheme}, flags, []string{"--", c.key, "--", "sh", "-c", `echo "$PGLOCK_KEY"; exec sleep 600`})
		}
		p := start(t, args()...)
		if line := p.line(); line != c.key || held(t, server.DSN(), c.space, c.id) != 1 || says(t, gem, try) {
			t.Errorf("%s %s: %q, and %d hold it", c.scheme, c.key, line, held(t, server.DSN(), c.space, c.id))
		}
		if out, _ := start(t, "evict", "--scheme="+c.scheme, "--", c.key).end(0); !strings.HasPrefix(out, "ended 1 ") {
			t.Error(out)
		}
		p.end(exitLost)

		eventually(t, "the other software has the lock", func() bool { return says(t, gem, try) })
		_, stderr := start(t, args("--wait=0")...).end(exitConflict)
		oneLine(t, stderr, c.key, fmt.Sprintf("server process %d", gem.PgConn().PID()))
		p = start(t, args()...)
		eventually(t, "one waits", func() bool { return len(sessionsIn(t, server.DSN(), c.space, c.id)) == 2 })
		if !says(t, gem, unlock) {
			t.Errorf("%s %s: not held", c.scheme, c.key)
		}
		if line := p.line(); line != c.key {
			t.Errorf("%q", line)
		}
		p.signal(syscall.SIGTERM)
		p.end(128 + int(syscall.SIGTERM))
		if n := len(sessionsIn(t, server.DSN(), c.space, c.id)); n != 0 {
			t.Errorf("%s %s: %d sessions are left", c.scheme, c.key, n)
		}
	}
}
