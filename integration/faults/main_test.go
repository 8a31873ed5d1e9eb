//go:build linux

package faults

import (
	"database/sql"
	"flag"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/integration/testkit"
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
	os.Exit(testkit.Main(m, 8, func(s *postgres.Server, db *sql.DB) { server, outside = s, db }))
}
