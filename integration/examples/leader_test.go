//go:build unix

package examples

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// probe asks a replica over HTTP.
func probe(t *testing.T, address, path string) (status int, body string) {
	t.Helper()
	client := http.Client{Timeout: patience}
	response, err := client.Get("http://" + address + path)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(t, err)
	return response.StatusCode, string(text)
}

// wantProbe checks the status of an answer, soon.
func wantProbe(t *testing.T, address, path string, status int) {
	t.Helper()
	eventually(t, func() string {
		if got, body := probe(t, address, path); got != status {
			return path + " of " + address + " says " + http.StatusText(got) + ": " + body
		}
		return ""
	})
}

// listening starts a replica of the leader example and returns its address.
func listening(t *testing.T, key, name string) (replica *program, address string) {
	t.Helper()
	replica = start(t, "leader", "-key", key, "-name", name, "-every=50ms", "-listen=127.0.0.1:0")
	_, address, _ = strings.Cut(replica.line(" listens on "), " listens on ")
	replica.line(" waits in line")
	return replica, address
}

func TestARollingRestartHandsTheLeadershipOver(t *testing.T) {
	key := t.Name()
	a, atA := listening(t, key, "a")
	wantHolder(t, key, pid(t, a.line("a leads")), "idle")
	b, atB := listening(t, key, "b")
	wantWaiters(t, key, 1)
	for path, want := range map[string][2]int{"/readyz": {200, 200}, "/leader": {200, 503}} {
		wantProbe(t, atA, path, want[0])
		wantProbe(t, atB, path, want[1])
	}

	// Each old replica is told to stop when there is a new one in its place.
	newA, _ := listening(t, key, "new-a")
	a.signal(syscall.SIGTERM)
	lines, _ := a.end(0)
	want(t, lines, "a stops, because of: terminated signal received", "a has handed over")
	next := make(chan string, 2)
	go leads(b, next)
	go leads(newA, next)
	first := await(t, next)
	wantHolder(t, key, pid(t, first), "idle")

	leader, other := b, newA
	if strings.HasPrefix(first, "new-a") {
		leader, other = newA, b
	}
	leader.signal(syscall.SIGTERM)
	leader.end(0)
	second := await(t, next)
	wantHolder(t, key, pid(t, second), "idle")
	other.signal(syscall.SIGTERM)
	other.end(0)
	wantFree(t, key)
}

// leads tells when a replica leads. It leaves the failing to the test.
func leads(p *program, told chan<- string) {
	for line := range p.lines {
		if strings.Contains(line, " leads, ") {
			told <- line
			return
		}
	}
}

func await(t *testing.T, told <-chan string) string {
	t.Helper()
	select {
	case line := <-told:
		return line
	case <-time.After(patience):
		t.Fatalf("no replica leads within %v", patience)
		return ""
	}
}

func TestALeaderWhoseSessionEndsWaitsInLineAgain(t *testing.T) {
	key := t.Name()
	a, _ := listening(t, key, "a")
	first := pid(t, a.line("a leads"))
	b, _ := listening(t, key, "b")
	wantWaiters(t, key, 1)
	terminate(t, first)
	a.line("a stops, because of: lock lost")
	wantHolder(t, key, pid(t, b.line("b leads")), "idle")
	a.line("a campaigns again: ")
	wantWaiters(t, key, 1)

	must(t, b.cmd.Process.Kill()) // no handover, but the session's end
	wantHolder(t, key, pid(t, a.line("a leads")), "idle")
	a.signal(syscall.SIGTERM)
	a.end(0)
	wantFree(t, key)
}
