package ports

import (
	"fmt"
	"time"
)

// AcquireOption adjusts one Acquire or TryAcquire.
type AcquireOption func(*AcquireOptions)

// AcquireOptions is the sum of the options of one call, for implementers. The
// zero value is not useful; NewAcquireOptions makes it.
type AcquireOptions struct {
	// Timeout bounds the wait; negative if only the context does.
	Timeout time.Duration
	// Mode is Exclusive or Shared.
	Mode Mode
	// Polling is the mean pause between two tries; 0 to wait at the server.
	Polling time.Duration
	// Fencing asks for a token.
	Fencing bool
	// HoldAtLeast is how long the lock stays held, whenever it is released.
	HoldAtLeast time.Duration
}

// NewAcquireOptions applies opts, in order, to the defaults: no timeout,
// exclusive, waiting at the server. A nil option is passed over.
func NewAcquireOptions(opts ...AcquireOption) AcquireOptions {
	defaults := AcquireOptions{Timeout: -1}
	if len(opts) == 0 {
		return defaults
	}
	o := defaults // on the heap, for the options to write to
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// WithTimeout bounds the wait of this call, beside its context; the shorter
// bound wins. Zero means one attempt without waiting for a rival. It panics if
// d is negative.
//
// TryAcquire never waits for a rival; there it bounds the time for getting a
// session.
func WithTimeout(d time.Duration) AcquireOption {
	if d < 0 {
		panic(fmt.Sprintf("ports.WithTimeout: negative duration %v; leave the option out to wait for as long as the context allows", d))
	}
	return func(o *AcquireOptions) { o.Timeout = d }
}

// WithShared asks for Mode Shared: any number of shared holders at a time, and
// no exclusive one beside them. A hold cannot be turned from one mode into the
// other; release it and acquire again.
func WithShared() AcquireOption {
	return func(o *AcquireOptions) { o.Mode = Shared }
}

// WithFencing asks for a fencing token, LockInfo.Token: a number greater than
// that of every hold before it, over crashes, restarts and failovers. The
// acquire waits until the server has made it durable, which takes a flush of
// its log.
//
// A resource that refuses every token below the greatest it has seen is safe
// from a holder that was overtaken without knowing. A token cannot outlive the
// server's history: after a restore from a backup, or a failover to a standby
// that had not received the last transactions, transaction numbers repeat, and
// the token grows only because the timeline in its top bits does.
func WithFencing() AcquireOption {
	return func(o *AcquireOptions) { o.Fencing = true }
}

// WithPolling makes Acquire try, and sleep between the tries for a random time
// between half and one and a half times every, instead of queueing at the
// server. Nothing is pinned and nothing runs at the server between two tries.
// It is the choice for many waiters on keys that stay held for long; a wait at
// the server notices a release a hundred times sooner. It panics unless every
// is positive.
//
// Where several goroutines of one manager wait for one key, the manager polls
// only if all of them asked for it, at the shortest interval among them.
func WithPolling(every time.Duration) AcquireOption {
	if every <= 0 {
		panic(fmt.Sprintf("ports.WithPolling: interval %v is not positive; leave the option out to wait at the server", every))
	}
	return func(o *AcquireOptions) { o.Polling = every }
}

// WithHoldAtLeast keeps the lock held until d after it was granted, even if it
// is released sooner: Release then returns at once, with nil, and the hold ends
// by itself when the time has come; until then it counts as held. Only the
// manager's Close, or a loss, ends it earlier.
//
// It is for jobs that run at a tick on several replicas: a job that is done in
// a millisecond would otherwise be run again by the replica whose clock is two
// milliseconds behind. It panics if d is negative.
func WithHoldAtLeast(d time.Duration) AcquireOption {
	if d < 0 {
		panic(fmt.Sprintf("ports.WithHoldAtLeast: negative duration %v; leave the option out to end the hold with its release", d))
	}
	return func(o *AcquireOptions) { o.HoldAtLeast = d }
}
