package integration

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/pglock"
)

// BenchmarkHandover measures how long it takes from the moment at which one
// process gives a lock up to the moment at which a process that waits for it
// has it: by the library, and by raw pg_advisory_lock and pg_advisory_unlock on
// the same driver, in turns.
func BenchmarkHandover(b *testing.B) {
	for _, s := range drivers[:2] {
		b.Run(s.name, func(b *testing.B) {
			w := newWorld(b, s)
			m := w.manager(b, w.db(b, 4))
			conn, err := w.db(b, 4).Conn(bg)
			must(b, err)
			defer conn.Close()
			id := pglock.SHA256Key("k")
			run := func(function string) {
				_, err := conn.ExecContext(bg, fmt.Sprintf("SELECT %s(%d)", function, id))
				must(b, err)
			}
			var in io.WriteCloser
			var out io.ReadCloser
			startRole(b, "hand over", w, "k", func(cmd *exec.Cmd) {
				in, err = cmd.StdinPipe()
				must(b, err)
				out, err = cmd.StdoutPipe()
				must(b, err)
			})
			lines := bufio.NewScanner(out)
			line := func() string {
				if !lines.Scan() {
					b.Fatal("the other process has ended")
				}
				return lines.Text()
			}
			var took [2][]time.Duration // by the library, raw
			for turn := 0; turn < 2*b.N; turn++ {
				if line() != "held" {
					b.Fatal("the other process does not hold the lock")
				}
				got := make(chan time.Time, 1)
				go func() {
					if turn%2 == 0 {
						if _, err := m.Acquire(bg, "k"); err != nil {
							b.Error(err)
						}
					} else {
						run("pg_advisory_lock")
					}
					got <- time.Now()
				}()
				eventually(b, "this process waits", func() bool { return w.waiting(b, "k") == 1 })
				fmt.Fprintln(in)
				gaveUp, err := strconv.ParseInt(line(), 10, 64)
				must(b, err)
				took[turn%2] = append(took[turn%2], (<-got).Sub(time.Unix(0, gaveUp)))
				if turn%2 == 0 {
					must(b, m.Release(bg, "k"))
				} else {
					run("pg_advisory_unlock")
				}
			}
			in.Close()
			median := func(ds []time.Duration) float64 {
				slices.Sort(ds)
				return float64(ds[len(ds)/2]) / float64(time.Microsecond)
			}
			b.ReportMetric(median(took[0]), "holdfast-p50-µs")
			b.ReportMetric(median(took[1]), "raw-p50-µs")
			b.ReportMetric(median(took[0])/median(took[1]), "ratio")
			b.ReportMetric(0, "ns/op") // the whole turn, which says nothing
		})
	}
}
