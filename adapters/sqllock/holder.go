package sqllock

import (
	"strconv"
	"strings"
	"time"
)

// maxApplicationName is how many bytes PostgreSQL keeps of application_name
// (NAMEDATALEN - 1).
const maxApplicationName = 63

// setting is one that a session has while it holds a lock.
type setting struct {
	name, value string
	onlyIf      string // a condition under which it does something; "" for always
}

// settings returns what a session is set to while it holds a lock, beside its
// name.
//
// Let W be the window in whole seconds, rounded up, and i a fifth of it. The
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
func settings(liveness time.Duration) []setting {
	const byTCP, onLinux = `inet_server_addr() IS NOT NULL`, `version() LIKE '%linux%'`
	window := int((liveness + time.Second - 1) / time.Second)
	interval := max(window/5, 1)
	count := max((window-1)/interval, 1) // idle and count intervals are W, or reach past it
	return []setting{
		{"tcp_keepalives_idle", strconv.Itoa(interval), byTCP},
		{"tcp_keepalives_interval", strconv.Itoa(interval), byTCP},
		{"tcp_keepalives_count", strconv.Itoa(count), byTCP},
		{"tcp_user_timeout", strconv.Itoa(window * 1000), byTCP},
		{"idle_session_timeout", "0", ""},
		{"client_connection_check_interval", strconv.Itoa(interval * 1000), onLinux},
	}
}

// holderSettings builds two expressions: one that makes the settings of a holder
// whose name is the argument of this number, and one that says, as a JSON
// object, what they were before. Of each the server must know it.
func holderSettings(liveness time.Duration, name int) (set, was string) {
	set = `concat(set_config('application_name', ` + holderNow + ` || ' ' || $` + strconv.Itoa(name) + `::text, false)`
	was = `json_strip_nulls(json_build_object('application_name', current_setting('application_name')`
	for _, s := range settings(liveness) {
		onlyIf := ""
		if s.onlyIf != "" {
			onlyIf = ` AND ` + s.onlyIf
		}
		current := `current_setting('` + s.name + `', true)`
		set += `, CASE WHEN ` + current + ` IS NOT NULL` + onlyIf + ` THEN set_config('` + s.name + `', '` + s.value + `', false) END`
		was += `, '` + s.name + `', CASE WHEN true` + onlyIf + ` THEN ` + current + ` END`
	}
	return set + `)`, was + `))::text`
}

// holderName is the part of a holder's application_name that its ID makes.
func holderName(id string) string {
	return plain(id, maxApplicationName-len(holderPrefix+holderTime)-1)
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
