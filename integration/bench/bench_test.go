package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/integration/postgres"
)

var server *postgres.Server

func TestMain(m *testing.M) {
	if encoded := os.Getenv(orderVariable); encoded != "" {
		if err := work(encoded, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(postgres.Main(m, func(s *postgres.Server) { server = s }))
}

// Every line of every scenario runs, and everybody who is there gets a figure
// everywhere. What the figures are means nothing here.
func TestEveryScenarioRunsAndIsReported(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	b, err := newBench(smoke, server, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	}()
	f, err := b.measure()
	if err != nil {
		t.Fatal(err)
	}
	docs := t.TempDir()
	if err := f.write(docs); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(string(text))

	page := string(text)
	for _, c := range b.field {
		want := 12 // tables
		if c.floor {
			want = 7 // it neither contends nor waits
		}
		if c.asks > b.longestWait {
			want-- // it would hand over too slowly
		}
		if n := strings.Count(page, "|"+c.name+"|"); n != want {
			t.Errorf("%s is in %d tables, want %d", c.name, n, want)
		}
	}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "|") && (strings.Contains(line, "NaN") || strings.Contains(line, "Inf")) {
			t.Errorf("not a number: %s", line)
		}
	}
	charts := f.charts()
	if n := strings.Count(page, "!["); n != len(charts) {
		t.Errorf("the page shows %d charts of %d", n, len(charts))
	}
	for _, c := range charts {
		mustBeSVG(t, filepath.Join(docs, chartDir, c.file()), c)
	}
}

// mustBeSVG checks that a chart is well-formed and has a text for each line.
func mustBeSVG(t *testing.T, path string, c chart) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	texts := map[string]bool{}
	for d := xml.NewDecoder(file); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if text, ok := token.(xml.CharData); ok {
			texts[strings.TrimSpace(string(text))] = true
		}
	}
	for _, l := range c.lines {
		if !math.IsNaN(l.values[0]) && !texts[l.name] {
			t.Errorf("%s does not show %s", path, l.name)
		}
	}
}

func TestMediansAndRatios(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		what      string
		got, want float64
	}{
		{"the one in the middle", median([]float64{9, 1, 3}), 3},
		{"between the two in the middle", median([]float64{9, 1, 3, 5}), 4},
		{"what was not measured does not count", median([]float64{nan, 7, nan}), 7},
		{"nothing", median([]float64{nan}), nan},
		{"the ratio of each round", ratio([]float64{2, 40, 6}, []float64{1, 10, 3}), 2},
		{"no ratio to nobody", ratio([]float64{2, 4}, nil), nan},
		{"the largest of a few", quantile([]float64{5, 1, 3}, 0.99), 5},
		{"the smallest", quantile([]float64{5, 1, 3}, 0), 1},
		{"99 of 100", quantile(upTo(100), 0.99), 99},
		{"half the distance between the quartiles", spread([]float64{8, 9, 10, 11, 12}), 0.1},
	} {
		if test.got != test.want && !(math.IsNaN(test.got) && math.IsNaN(test.want)) {
			t.Errorf("%s: %v, want %v", test.what, test.got, test.want)
		}
	}
}

func upTo(n int) (all []float64) {
	for i := range n {
		all = append(all, float64(i))
	}
	return all
}

func TestNumbersAreReadable(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.1234: "0.12", 1: "1", 1.5: "1.5", 12.34: "12", 99.9: "100", 100: "100", 123.4: "123",
		1234: "1,230", 10_000: "10,000", 1_234_567: "1,230,000", -1234: "-1,230",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) is %q, want %q", v, got, want)
		}
	}
}

// In each round everybody is measured once, and nobody always goes first.
func TestContestantsTakeTurns(t *testing.T) {
	var order []int
	got, err := interleave([]string{"a", "b", "c"}, 3, func(i int) (float64, error) {
		order = append(order, i)
		return float64(len(order)), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "[0 1 2 1 2 0 2 0 1]"; fmt.Sprint(order) != want {
		t.Errorf("measured in the order %v, want %v", order, want)
	}
	if want := "[{a [1 6 8]} {b [2 4 9]} {c [3 5 7]}]"; fmt.Sprint(got) != want {
		t.Errorf("the outcomes are %v, want %v", got, want)
	}
}
