// Package portstest checks implementations of the contracts in package ports.
//
// It holds two suites, each a table of laws with one sentence a law: [TestManager]
// for lock managers, which anyone who writes a double or a decorator should run,
// and [TestSessionPool] for session pools, which every adapter runs. A new
// implementation brings a harness, not tests. What a law asserts is observed
// from outside the thing under test, through the harness.
//
// The suites prove the contracts in small. They do not replace tests against a
// network that breaks and a server that crashes.
package portstest

import (
	"errors"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// patience is how long a law waits for what must happen sooner or later; soon
// is a wait that is meant to run out; aWhile is longer than a few calls take on
// a busy machine.
const (
	patience = 20 * time.Second
	soon     = 60 * time.Millisecond
	aWhile   = 2 * time.Second
)

// law is one row of a suite: a name, the sentence that it proves, and the proof.
type law[H any] struct {
	name, says string
	prove      func(t *testing.T, h H)
}

// prove runs every law as a subtest, each with a harness of its own, and prints
// the sentence of one that fails.
func prove[H any](t *testing.T, laws []law[H], around func(*testing.T, func(*testing.T)), harness func(*testing.T) H) {
	for _, l := range laws {
		t.Run(l.name, func(t *testing.T) {
			body := func(t *testing.T) {
				defer func() {
					if t.Failed() {
						t.Logf("the law: %s", l.says)
					}
				}()
				l.prove(t, harness(t))
			}
			if around != nil {
				around(t, body)
			} else {
				body(t)
			}
		})
	}
}

// eventually fails the test unless cond comes true within patience.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// receive returns what c yields, and fails the test if it yields nothing.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("never came: %s", what)
		panic("unreachable")
	}
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wraps fails the test unless err wraps every target.
func wraps(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Fatalf("error %v does not wrap %v", err, target)
		}
	}
}

// ended reports whether the hold has ended.
func ended(lock ports.Lock) bool {
	select {
	case <-lock.Done():
		return true
	default:
		return false
	}
}
