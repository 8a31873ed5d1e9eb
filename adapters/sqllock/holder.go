package sqllock

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// maxApplicationName is how many bytes PostgreSQL keeps of application_name
// (NAMEDATALEN - 1).
const maxApplicationName = 63

// holderSettings returns, as a JSON object, what a session is set to while it
// holds a lock.
//
// Let W be r.Liveness in whole seconds, rounded up, and i a fifth of it. The
// manager tells the holder of a loss 3W/5 after the network broke, at the latest.
// The server must not end the session before that, and soon after W:
//   - Without anything to send, its kernel probes a client that it has not heard
//     for i, every i, and gives up W to W + i after it last heard it: when count
//     probes were not answered or, where tcp_user_timeout is set, at the first
//     probe after that. It last heard the client i before the network broke, or
//     later, since it was probing all the time; so it gives up 4W/5 or more
//     after that.
//   - With an answer that the client does not acknowledge, tcp_user_timeout
//     counts from its sending, which is not before the network broke.
//
// idle_session_timeout would end a holder for holding. The connection check has
// a statement that runs for a client that is gone noticed before it is done.
func holderSettings(r ports.LockRequest) string {
	window := int((r.Liveness + time.Second - 1) / time.Second)
	interval := max(window/5, 1)
	count := max((window-1)/interval, 1)           // idle and count intervals are W, or reach past it
	settings, _ := json.Marshal(map[string]string{ // strings always marshal
		"application_name":                 plain(r.HolderID, maxApplicationName-len(holderPrefix+holderTime)-1),
		"tcp_keepalives_idle":              strconv.Itoa(interval),
		"tcp_keepalives_interval":          strconv.Itoa(interval),
		"tcp_keepalives_count":             strconv.Itoa(count),
		"tcp_user_timeout":                 strconv.Itoa(window * 1000),
		"idle_session_timeout":             "0",
		"client_connection_check_interval": strconv.Itoa(interval * 1000),
	})
	return string(settings)
}

// plain makes a string of at most n printable ASCII characters, which is what
// application_name can show.
func plain(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// holderOf reads a holder's application_name; ok is false for any other.
func holderOf(application string) (holderID string, since time.Time, ok bool) {
	rest, ok := strings.CutPrefix(application, holderPrefix)
	if !ok || len(rest) < len(holderTime) {
		return "", time.Time{}, false
	}
	since, err := time.Parse(holderTime, rest[:len(holderTime)])
	return strings.TrimPrefix(rest[len(holderTime):], " "), since, err == nil
}
