//go:build linux

package chaos

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if order := os.Getenv(orderVariable); order != "" {
		work(order)
		return
	}
	os.Exit(m.Run())
}
