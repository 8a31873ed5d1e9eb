package pglock

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/ports"
)

func TestWithoutAnObserverNothingIsAllocatedForIt(t *testing.T) {
	var none observers
	ctx, h, opts := context.Background(), &hold{}, ports.NewAcquireOptions()
	if n := testing.AllocsPerRun(100, func() {
		_, end := none.acquire(ctx, nil, "acquire", "k", opts)
		end(h, nil)
		none.release(ctx, h)(nil)
		none.ended(h, ports.ErrReleased)
		none.lost(h, ports.ErrLost)
		none.sessionOpened()
		none.sessionClosed(SessionEnd{})
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
