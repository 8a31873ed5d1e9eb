package wire

import (
	"bytes"
	"context"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/integration/postgres"
)

var server *postgres.Server

func TestMain(m *testing.M) {
	os.Exit(postgres.Main(m, func(s *postgres.Server) { server = s }))
}

// What the drivers do is known: lib/pq sends a text without arguments at once,
// and prepares each one that has some; pgx prepares once.
func TestStatementsAndRoundTripsAreCounted(t *testing.T) {
	for _, test := range []struct {
		name, driver, text string
		args               []any
		want               Counts
	}{
		{"lib/pq, no argument", PQ, "SELECT 1", nil, Counts{Statements: 10, RoundTrips: 10}},
		{"lib/pq, an argument", PQ, "SELECT $1::int", []any{1}, Counts{Statements: 10, RoundTrips: 20}},
		{"pgx, no argument", PGX, "SELECT 1", nil, Counts{Statements: 10, RoundTrips: 10}},
		{"pgx, an argument", PGX, "SELECT $1::int", []any{1}, Counts{Statements: 10, RoundTrips: 10}},
		{"several in one text", PQ, "SELECT 1; SELECT 2", nil, Counts{Statements: 10, RoundTrips: 10}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c Counter
			db, err := c.Open(test.driver, server.DSN())
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			run := func() {
				if _, err := conn.ExecContext(context.Background(), test.text, test.args...); err != nil {
					t.Fatal(err)
				}
			}
			run() // opens what is to be opened, and prepares what is to be kept
			before := c.Counts()
			if before.Connections != 1 {
				t.Errorf("%d connections were opened, want 1", before.Connections)
			}
			for range 10 {
				run()
			}
			if got := c.Counts().Sub(before); got != test.want {
				t.Errorf("ten times %q made %+v, want %+v", test.text, got, test.want)
			}
		})
	}
}

// A message may come in any pieces, and a type's letter in its contents means
// nothing.
func TestMessagesAreFollowedAcrossWrites(t *testing.T) {
	startup := []byte("\x00\x00\x00\x0c\x00\x03\x00\x00QQQQ")
	query := []byte("Q\x00\x00\x00\x0bSELECT\x00")
	execute := []byte("E\x00\x00\x00\x09QQQQQ")
	sync := []byte("S\x00\x00\x00\x04")
	asks := []byte("\x00\x00\x00\x08\x04\xd2\x16\x2f")
	stream := bytes.Join([][]byte{asks, startup, query, execute, sync, query}, nil)
	for size := 1; size <= len(stream); size++ {
		var counter Counter
		c := &conn{Conn: discard{}, counter: &counter, starting: true}
		for piece := range slices.Chunk(stream, size) {
			if n, err := c.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if got, want := counter.Counts(), (Counts{Statements: 3, RoundTrips: 3}); got != want {
			t.Fatalf("in pieces of %d: %+v, want %+v", size, got, want)
		}
	}
}

func TestAnUnknownDriverIsRefused(t *testing.T) {
	if db, err := new(Counter).Open("mysql", ""); err == nil {
		t.Fatal("opened", db)
	}
}

type discard struct{ net.Conn }

func (discard) Write(b []byte) (int, error) { return len(b), nil }
