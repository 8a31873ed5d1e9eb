package integration

import (
	"database/sql"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/integration/postgres"
)

var (
	server *postgres.Server
	// outside is the view of the server from outside the things under test.
	outside *sql.DB
)

func TestMain(m *testing.M) {
	if role := os.Getenv("HOLDFAST_TEST_ROLE"); role != "" {
		play(role)
		return
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
	outside.SetMaxOpenConns(4)
	code := l.m.Run()
	outside.Close()
	if err := goleak.Find(before); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines are left after the tests:", err)
		return 1
	}
	return code
}
