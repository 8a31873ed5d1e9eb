package report_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/integration/report"
)

func TestFiguresAreReplacedAndWordsStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	write := func(figures string) {
		t.Helper()
		if err := report.Write(path, "speed", "# Speed\n", figures); err != nil {
			t.Fatal(err)
		}
	}
	read := func() string {
		t.Helper()
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(page)
	}
	write("1\n")
	const first = "# Speed\n\n<!-- speed: begin -->\n\n1\n\n<!-- speed: end -->\n"
	if got := read(); got != first {
		t.Fatalf("a new page is %q, want %q", got, first)
	}
	if err := os.WriteFile(path, []byte("By hand.\n"+first+"Also.\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	write("2\n")
	if got, want := read(), "By hand.\n# Speed\n\n<!-- speed: begin -->\n\n2\n\n<!-- speed: end -->\nAlso.\n"; got != want {
		t.Fatalf("the page became %q, want %q", got, want)
	}
}

func TestAPageWithoutTheMarksIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	for _, page := range []string{"words", "<!-- speed: begin -->", "<!-- speed: end --><!-- speed: begin -->"} {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := report.Write(path, "speed", "", "1"); err == nil {
			t.Errorf("%q was taken for a page with both marks", page)
		}
		if got, err := os.ReadFile(path); string(got) != page {
			t.Errorf("%q became %q, %v", page, got, err)
		}
	}
}
