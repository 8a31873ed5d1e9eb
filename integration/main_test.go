package integration

import (
	"database/sql"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/integration/testkit"
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
	os.Exit(testkit.Main(m, 4, func(s *postgres.Server, db *sql.DB) { server, outside = s, db }))
}
