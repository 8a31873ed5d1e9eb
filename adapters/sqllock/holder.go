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
// Let W be r.Liveness, and c the time at which the server last heard the
// client. The manager tells the holder of a loss at c + 3W/5 at the latest. The
// server must not end the session before that, and soon after W:
//   - Without anything to send, keepalive probes start at c + idle and come
//     every interval; with W in whole seconds rounded up, idle + 2 × interval is
//     W. Where tcp_user_timeout is set, the kernel gives up at the first probe
//     after it has passed, so at c + W or one interval later.
//   - With an answer that the client does not acknowledge, tcp_user_timeout
//     counts from its sending, which is not before c.
//
// idle_session_timeout would end a holder for holding. The connection check has
// a statement that runs for a client that is gone noticed before it is done.
func holderSettings(r ports.LockRequest) string {
	window := int((r.Liveness + time.Second - 1) / time.Second)
	interval := max(window/5, 1)
	settings, _ := json.Marshal(map[string]string{ // strings always marshal
		"application_name":                 plain(r.HolderID, maxApplicationName-len(holderPrefix+holderTime)-1),
		"tcp_keepalives_idle":              strconv.Itoa(max(window-2*interval, 1)),
		"tcp_keepalives_interval":          strconv.Itoa(interval),
		"tcp_keepalives_count":             "2",
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
