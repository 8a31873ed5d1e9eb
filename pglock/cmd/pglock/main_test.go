package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// What a user sees is tested in integration/tool; here is what takes a server in
// trouble, or time, to see.

func TestChecksTellGoodFromWrong(t *testing.T) {
	unsafe := fmt.Errorf("%w: one server process", ports.ErrUnsafeConnection)
	server := func(connections, locks int) sqllock.ServerInfo {
		return sqllock.ServerInfo{MaxConnections: 103, ReservedConnections: 3, Connections: connections, LockSlots: 1000, Locks: locks}
	}
	for i, c := range []struct {
		check check
		want  string
	}{
		{verificationCheck(nil), good},
		{verificationCheck(unsafe), wrong},
		{poolerCheck(false, nil), good},
		{poolerCheck(true, nil), warning},
		{poolerCheck(true, unsafe), wrong},
		{recoveryCheck(sqllock.ServerInfo{}), good},
		{recoveryCheck(sqllock.ServerInfo{InRecovery: true}), wrong},
		{lockTableCheck(server(1, 500)), good},
		{lockTableCheck(server(1, 501)), warning},
		{lockTableCheck(server(1, 800)), warning},
		{lockTableCheck(server(1, 801)), wrong},
		{connectionsCheck(server(75, 1), 0), good},
		{connectionsCheck(server(76, 1), 0), warning},
		{connectionsCheck(server(90, 1), 0), warning},
		{connectionsCheck(server(91, 1), 0), wrong},
		{connectionsCheck(server(1, 1), 100), good},
		{connectionsCheck(server(1, 1), 101), wrong},
		{keepaliveOf(sqllock.ServerInfo{}), good},
		{keepaliveOf(sqllock.ServerInfo{Network: true}), warning},
		{keepaliveOf(sqllock.ServerInfo{Network: true, KeepaliveBound: 18 * time.Second}), good},
		{keepaliveOf(sqllock.ServerInfo{Network: true, KeepaliveBound: 19 * time.Second}), wrong},
	} {
		if c.check.Status != c.want {
			t.Errorf("check %d: %+v, want %s", i, c.check, c.want)
		}
	}
}

func TestTheKeyAndTheCommandAreFound(t *testing.T) {
	for _, c := range []struct {
		dash int // as cobra counts
		args []string
		key  string
		argv []string
	}{
		{1, []string{"k", "true"}, "k", []string{"true"}},
		{1, []string{"k", "env", "--", "-x"}, "k", []string{"env", "--", "-x"}},
		{1, []string{"", "true"}, "", []string{"true"}},
		{0, []string{"-k", "--", "env", "--", "-x"}, "-k", []string{"env", "--", "-x"}},
		{-1, []string{"k", "true"}, "", nil},
		{0, []string{"k", "true"}, "", nil},
		{0, []string{"-k", "--"}, "", nil},
		{2, []string{"k", "l", "true"}, "", nil},
	} {
		key, argv, err := splitRunArgs(c.dash, c.args)
		if key != c.key || !slices.Equal(argv, c.argv) || (err == nil) != (c.argv != nil) {
			t.Errorf("%d %q: %q, %q, %v", c.dash, c.args, key, argv, err)
		}
	}
}

func TestAgesHaveTwoUnits(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		-time.Minute:                    "0s", // the server's clock is ahead
		1999 * time.Millisecond:         "1s",
		61 * time.Second:                "1m01s",
		time.Hour - 1:                   "59m59s",
		25*time.Hour - time.Second:      "1d00h",
		23*time.Hour + 59*time.Minute:   "23h59m",
		100*24*time.Hour + 22*time.Hour: "100d22h",
	} {
		if got := age(now.Add(-d), now); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	if got := age(time.Time{}, now); got != "-" {
		t.Errorf("not known: %s", got)
	}
}

func TestNothingInATableCanDriveATerminal(t *testing.T) {
	evil := "\x1b[31m\nroot"
	rows := lockRows([]lock{{Key: evil, lockID: bigintID(1), Holders: []ports.SessionInfo{{Granted: true, HolderID: evil, User: evil, Client: "10.0.0.1"}}, Waiters: []ports.SessionInfo{{Application: evil}}}}, time.Now())
	var b strings.Builder
	printTable(&b, rows)
	if strings.Contains(b.String(), "\x1b") || strings.Count(b.String(), "\n") != 3 {
		t.Errorf("%q", b.String())
	}
}

func TestAnErrorIsOneLine(t *testing.T) {
	if got := oneLine(errors.New("failed to connect:\n\t127.0.0.1: refused\r\n")); got != "failed to connect: 127.0.0.1: refused" {
		t.Errorf("%q", got)
	}
	if e := usage("%w", ports.ErrClosed); !errors.Is(e, ports.ErrClosed) {
		t.Error(e)
	}
}

func TestEverySchemeHasItsName(t *testing.T) {
	for _, s := range schemes {
		found, err := schemeOf(s.name)
		if err != nil || found.from != s.from || s.name == "" || s.from == "" {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestAnIDIsShownAsItsSchemeTakesIt(t *testing.T) {
	for _, n := range []int64{0, 1, -1, 1<<32 | 2, -1 << 32, math.MaxUint32, math.MinInt64, math.MaxInt64} {
		for take, id := range map[*scheme]lockID{find(t, "number"): bigintID(n), find(t, "pair"): pairID(n)} {
			again, err := take.id(id.String())
			if err != nil || again.String() != id.String() || (again.Pair == nil) != (id.Pair == nil) {
				t.Errorf("%s shows %v, and takes that for %v: %v", take.name, id, again, err)
			}
		}
	}
	for id, want := range map[lockID]string{bigintID(-42): `{"id":-42}`, bigintID(0): `{"id":0}`, pairID(1<<32 | math.MaxUint32): `{"pair":[1,-1]}`, pairID(0): `{"pair":[0,0]}`} {
		if got, err := json.Marshal(id); err != nil || string(got) != want {
			t.Errorf("%v for programs: %s, %v, want %s", id, got, err, want)
		}
	}
}

func TestLocksAreListedInTheOrderOfTheirNumbers(t *testing.T) {
	for _, c := range []struct {
		space func(int64) lockID
		ids   []int64
		want  string
	}{
		{bigintID, []int64{math.MinInt64, 7, -1, 0}, "-9223372036854775808 -1 0 7"},
		{pairID, []int64{ports.PairID(-1, 5), ports.PairID(7, 0), ports.PairID(7, 2), ports.PairID(7, -2), ports.PairID(7, -1)}, "-1,5 7,-2 7,-1 7,0 7,2"},
	} {
		var found []pglock.Inspection
		for _, id := range c.ids {
			found = append(found, pglock.Inspection{ID: id})
		}
		var got []string
		for _, l := range listed(found, c.space) {
			got = append(got, l.String())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("listed as %v, want %s", got, c.want)
		}
	}
}

func TestOnlyTwoNumbersOf32BitsAreAPair(t *testing.T) {
	for _, key := range []string{"", ",", "1", "1,", ",2", "1,2,3", "1, 2", "1;2", "x,2", "1,2147483648", "-2147483649,2", "0x1,2", "1_0,2"} {
		if id, err := find(t, "pair").id(key); err == nil {
			t.Errorf("%q is taken for %v", key, id)
		}
	}
}

func find(t *testing.T, name string) *scheme {
	t.Helper()
	s, err := schemeOf(name)
	if err != nil {
		t.Fatal(err)
	}
	return &s
}
