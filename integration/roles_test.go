package integration

import (
	"bufio"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
)

// play is what this binary does when a test starts it as another process: it
// takes the setup and the DSN from its environment and the key from its
// argument.
func play(role string) {
	i := slices.IndexFunc(setups, func(s setup) bool { return s.name == os.Getenv("HOLDFAST_TEST_SETUP") })
	driver := "pgx"
	if setups[i].name == "pq" {
		driver = "postgres"
	}
	db, err := sql.Open(driver, os.Getenv("HOLDFAST_TEST_DSN"))
	if err != nil {
		panic(err)
	}
	m := setups[i].new(db)
	switch key := os.Args[1]; role {
	case "wait":
		lock, err := m.Acquire(bg, key)
		fmt.Println(lock, err)
	case "hand over":
		handOver(db, m, key)
	default:
		panic("unknown role " + role)
	}
}

// handOver holds a key, by the library and by raw SQL in turns, and gives it up
// each time that it reads a line; it prints "held" when it holds the key, and
// the time, in nanoseconds, right before it gives it up.
func handOver(db *sql.DB, m *pglock.Manager, key string) {
	conn, err := db.Conn(bg)
	if err != nil {
		panic(err)
	}
	raw := func(function string) func() error {
		statement := fmt.Sprintf("SELECT %s(%d)", function, pglock.SHA256Key(key))
		return func() error { _, err := conn.ExecContext(bg, statement); return err }
	}
	take := func() error { _, err := m.Acquire(bg, key); return err }
	release := func() error { return m.Release(bg, key) }
	in := bufio.NewScanner(os.Stdin)
	for turn := 0; ; turn++ {
		acquire, giveUp := take, release
		if turn%2 == 1 {
			acquire, giveUp = raw("pg_advisory_lock"), raw("pg_advisory_unlock")
		}
		if err := acquire(); err != nil {
			panic(err)
		}
		fmt.Println("held")
		if !in.Scan() {
			return
		}
		now := time.Now().UnixNano()
		if err := giveUp(); err != nil {
			panic(err)
		}
		fmt.Println(now)
	}
}
