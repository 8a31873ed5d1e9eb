//go:build linux

package faults

import (
	"database/sql"
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/integration/postgres"
)

var (
	// server is for the tests that do not break it.
	server *postgres.Server
	// outside is the view of it from outside the things under test.
	outside *sql.DB
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		play(role)
		return
	}
	// Most of these tests wait for a bound to pass, and need no processor.
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", "8")
	}
	os.Exit(postgres.Main(leakChecked{m}, func(s *postgres.Server) { server = s }))
}

// leakChecked runs the tests, and fails if they leave a goroutine behind.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	before := goleak.IgnoreCurrent()
	var err error
	if outside, err = sql.Open("pgx", server.DSN()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	outside.SetMaxOpenConns(8)
	code := l.m.Run()
	outside.Close()
	if err := goleak.Find(before); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines are left after the tests:", err)
		return 1
	}
	return code
}
