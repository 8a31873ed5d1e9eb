package integration

import (
	"database/sql"
	"fmt"
	"os"
	"slices"
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
	default:
		panic("unknown role " + role)
	}
}
