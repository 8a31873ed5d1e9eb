package pglock_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// These measure what the manager adds to a session whose answers cost nothing.

func benchmarked(tb testing.TB) *pglock.Manager {
	tb.Helper()
	m := memlock.New(memlock.NewServer())
	tb.Cleanup(func() {
		if err := m.Close(bg); err != nil {
			tb.Error(err)
		}
	})
	return m
}

func acquireAndRelease(tb testing.TB, m *pglock.Manager, key string, opts ...ports.AcquireOption) {
	tb.Helper()
	lock, err := m.Acquire(bg, key, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	if err := lock.Release(bg); err != nil {
		tb.Fatal(err)
	}
}

func BenchmarkAcquireAndRelease(b *testing.B) {
	m := benchmarked(b)
	b.ReportAllocs()
	for b.Loop() {
		acquireAndRelease(b, m, "k")
	}
}

func BenchmarkTryAcquireOfWhatIsHeld(b *testing.B) {
	m := benchmarked(b)
	if _, err := m.Acquire(bg, "k"); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, got, err := m.TryAcquire(bg, "k"); got || err != nil {
			b.Fatal(got, err)
		}
	}
}

// BenchmarkContention has goroutines that all want one key.
func BenchmarkContention(b *testing.B) {
	for _, goroutines := range []int{2, 32} {
		b.Run(fmt.Sprint(goroutines), func(b *testing.B) {
			m := benchmarked(b)
			b.ReportAllocs()
			b.SetParallelism(goroutines) // times GOMAXPROCS
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					acquireAndRelease(b, m, "k")
				}
			})
		})
	}
}

// BenchmarkKeysOfTheirOwn has goroutines that do not want each other's keys.
func BenchmarkKeysOfTheirOwn(b *testing.B) {
	m := benchmarked(b)
	var goroutine atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for key := fmt.Sprint(goroutine.Add(1)); pb.Next(); {
			acquireAndRelease(b, m, key)
		}
	})
}

// BenchmarkBesideHolds takes one lock beside many that are held.
func BenchmarkBesideHolds(b *testing.B) {
	for _, held := range []int{0, 100, 10_000} {
		b.Run(fmt.Sprint(held), func(b *testing.B) {
			m := benchmarked(b)
			for i := range held {
				if _, err := m.Acquire(bg, fmt.Sprint("held ", i)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				acquireAndRelease(b, m, "k")
			}
		})
	}
}

// The allocations of an operation, which are the same on every machine, with a
// tenth of room for versions of Go and for the race detector.
func TestAllocationsStayWithinTheirLimits(t *testing.T) {
	for _, limit := range []struct {
		operation string
		do        func(m *pglock.Manager)
		allocs    float64
	}{
		{"acquire and release", func(m *pglock.Manager) { acquireAndRelease(t, m, "k") }, 25},
		{"acquire and release with a bound", func(m *pglock.Manager) {
			acquireAndRelease(t, m, "k", ports.WithTimeout(window))
		}, 30},
		{"try what is held", func(m *pglock.Manager) {
			if _, got, err := m.TryAcquire(bg, "held"); got || err != nil {
				t.Fatal(got, err)
			}
		}, 6},
	} {
		t.Run(limit.operation, func(t *testing.T) {
			m := benchmarked(t)
			if _, err := m.Acquire(bg, "held"); err != nil {
				t.Fatal(err)
			}
			if got := testing.AllocsPerRun(200, func() { limit.do(m) }); got > limit.allocs*1.1 {
				t.Errorf("once costs %v allocations, want %v and a tenth more at most", got, limit.allocs)
			}
		})
	}
}
