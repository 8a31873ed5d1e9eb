package sqllock

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/ports"
)

// hostile are strings that have broken something somewhere.
var hostile = []string{
	"", " ", "worker-1", "host/4711", "O'Brien", `back\slash`, `\`, `\\`, `'`, `''`, `\'`, `'\`, `\''; DROP TABLE x; --`, "E'", "$1", "$2 $3", "$$", "$tag$",
	"nul\x00byte", "\xff\xfe", "\xc3", "é", strings.Repeat("é", 40), strings.Repeat("x", 32) + "é", "日本語", "\u202eevil", "new\nline", "\r\t\x1b[31m", "%s%d%n",
	`{"a":"b"}`, "<&>", "\u2028", "holdfast 2026-01-02T03:04:05Z x", strings.Repeat("x", 63), strings.Repeat("'", 64), strings.Repeat(`\`, 1<<10),
}

// literals reads an SQL statement as PostgreSQL does whose strings are all of
// the form E'...': it returns their values and the text around them.
func literals(statement string) (values []string, around string, err error) {
	var out strings.Builder
	for i := 0; i < len(statement); {
		if !strings.HasPrefix(statement[i:], "E'") {
			if c := statement[i]; c == '\'' || c == '\\' {
				// A plain string; those of the statements hold no quote.
				end := strings.IndexByte(statement[i+1:], '\'')
				if c == '\\' || end < 0 {
					return nil, "", fmt.Errorf("%q at %d", c, i)
				}
				out.WriteString(statement[i : i+end+2])
				i += end + 2
				continue
			}
			out.WriteByte(statement[i])
			i++
			continue
		}
		var value strings.Builder
		for i += 2; ; i++ {
			if i >= len(statement) {
				return nil, "", fmt.Errorf("a string does not end")
			}
			next := byte(0)
			if i+1 < len(statement) {
				next = statement[i+1]
			}
			switch c := statement[i]; {
			case c == '\'' && next == '\'', c == '\\' && next == '\\':
				i++
			case c == '\'':
				goto end
			case c == '\\':
				return nil, "", fmt.Errorf("an escape %q", statement[i:i+2])
			}
			value.WriteByte(statement[i])
		}
	end:
		i++
		values = append(values, value.String())
		out.WriteString("?")
	}
	return values, out.String(), nil
}

func FuzzNoStringEndsItsLiteral(f *testing.F) {
	for _, s := range hostile {
		f.Add(s, int64(len(s)))
	}
	f.Add("x", int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, s string, n int64) {
		statement, args := inText.bind(`SELECT f($1::bigint, $2), '$', $1`, n, s)
		values, around, err := literals(statement)
		number := fmt.Sprintf("'%d'", n)
		if err != nil || args != nil || len(values) != 1 || values[0] != s || around != `SELECT f(`+number+`::bigint, ?), '$', `+number {
			t.Errorf("%q became %q: %q, %q, %v", s, statement, values, around, err)
		}
		statement, args = asArguments.bind(`SELECT $1, $2`, n, s)
		if statement != `SELECT $1, $2` || len(args) != 2 || args[0] != n || args[1] != s {
			t.Errorf("%q %v", statement, args)
		}
	})
}

// Every statement with every argument that a user can influence.
func FuzzAHolderIDIsHarmlessAndFoundAgain(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Add(strings.Repeat("x", 1<<20))
	f.Fuzz(func(t *testing.T, id string) {
		name := holderName(id)
		for _, r := range requests() {
			for _, state := range []tenancy{passing, arriving, settled} {
				args := []any{int64(-1)}
				if r.Wait > 0 {
					args = append(args, int64(500))
				}
				if state == arriving {
					args = append(args, name)
				}
				statement, _ := inText.bind(lockStatement(r, state), args...)
				values, around, err := literals(statement)
				if err != nil || strings.Contains(around, "$") {
					t.Fatalf("%q: %v in %q", id, err, statement)
				}
				if state == arriving && (len(values) != 1 || values[0] != name) || state != arriving && len(values) > 0 {
					t.Errorf("%q: the literals %q in %q", id, values, statement)
				}
			}
		}

		for _, f := range []fencing{unfenced, onGrant, fencedAtAll} {
			for _, arrives := range []bool{false, true} {
				want := []string{"{11}", "2", "3", "4", "5", "6"}
				if arrives {
					want = append(want, name)
				}
				var args []any
				for _, arg := range want {
					args = append(args, arg)
				}
				statement, _ := batchStatement(f, arrives, time.Minute)
				statement, _ = inText.bind(statement, args...)
				values, around, err := literals(statement)
				if err != nil || strings.Contains(around, "$") {
					t.Fatalf("%q: %v in %q", id, err, statement)
				}
				slices.Sort(values)
				slices.Sort(want)
				if !slices.Equal(slices.Compact(values), want) {
					t.Errorf("%q: the literals %q in %q", id, values, statement)
				}
			}
		}

		// What the server makes of it.
		at := time.Date(2026, 11, 29, 23, 20, 5, 0, time.UTC)
		application := holderPrefix + at.Format(holderTime) + " " + name
		if len(application) > maxApplicationName {
			t.Errorf("%q is cut: %d bytes", application, len(application))
		}
		for i := range len(application) {
			if application[i] < ' ' || application[i] > '~' {
				t.Errorf("%q has the byte %q", application, application[i])
			}
		}
		if got, since, ok := holderOf(application); !ok || got != name || !since.Equal(at) {
			t.Errorf("%q is read as %q, %v, %v", application, got, since, ok)
		}
		if most := maxApplicationName - len(holderPrefix+holderTime) - 1; len(id) <= most && printable(id) && name != id || utf8.RuneCountInString(name) > most {
			t.Errorf("%q became %q", id, name)
		}
	})
}

// requests are one of each kind.
func requests() (all []ports.LockRequest) {
	for i := range 8 {
		r := ports.LockRequest{Liveness: 15 * time.Second, Fencing: i&1 > 0}
		if i&2 > 0 {
			r.Wait = 500 * time.Millisecond
		}
		if i&4 > 0 {
			r.Mode = ports.Shared
		}
		all = append(all, r)
	}
	return all
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

func FuzzPlainIsShortAndPrintable(f *testing.F) {
	for _, s := range hostile {
		f.Add(s, 33)
	}
	f.Add("é", 1)
	f.Add("x", 0)
	f.Fuzz(func(t *testing.T, s string, n int) {
		if n < 0 {
			return
		}
		got := plain(s, n)
		if len(got) > n || !printable(got) {
			t.Errorf("%q, cut to %d, is %q", s, n, got)
		}
		if len(s) <= n && printable(s) && got != s {
			t.Errorf("%q became %q", s, got)
		}
		if s != "" && n > 0 && got == "" {
			t.Errorf("nothing is left of %q", s)
		}
	})
}

// The application_name of any session may come back from the server.
func FuzzHolderOfReadsAnyApplicationName(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
		f.Add(holderPrefix + s)
		f.Add(holderPrefix + "2026-11-29T23:20:05Z" + s)
	}
	f.Add(holderPrefix + "2026-13-99T99:99:99Z x")
	f.Add(holderPrefix + "2026-11-29T23:20:05+")
	f.Fuzz(func(t *testing.T, application string) {
		holder, since, ok := holderOf(application)
		if !ok {
			return
		}
		rest := strings.TrimPrefix(application, holderPrefix+since.Format(holderTime))
		if rest == application || strings.TrimPrefix(rest, " ") != holder {
			t.Errorf("%q is read as %q since %v", application, holder, since)
		}
	})
}

func TestHolderOfKnowsNobodyElse(t *testing.T) {
	for _, application := range []string{"", "psql", "holdfast", "holdfast ", "holdfast x", "Holdfast 2026-11-29T23:20:05Z x", "holdfast 2026-11-29 23:20:05+ x", "holdfast 2026-99-29T23:20:05Z x"} {
		if holder, since, ok := holderOf(application); ok {
			t.Errorf("%q is read as %q since %v", application, holder, since)
		}
	}
}

// The server is told to drop a silent client not before the window, and not
// much after it; and, since it may have heard it last an idle time before the
// network broke, a good while after the holder is told.
func TestTheServersSideOfTheWindow(t *testing.T) {
	for _, window := range []time.Duration{5 * time.Second, 5*time.Second + 1, 7300 * time.Millisecond, 9 * time.Second, 15 * time.Second, time.Minute, time.Hour} {
		set := make(map[string]string)
		for _, s := range settings(window) {
			set[s.name] = s.value
		}
		seconds := func(name string) time.Duration {
			d, err := time.ParseDuration(set[name] + "s")
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return d
		}
		// One probe is sent at idle, and the connection is dropped when count
		// probes have gone unanswered.
		idle := seconds("tcp_keepalives_idle")
		dropped := idle + seconds("tcp_keepalives_count")/time.Second*seconds("tcp_keepalives_interval")
		if dropped < window || dropped > window+window/5+time.Second || dropped-idle < window*4/5 {
			t.Errorf("window %v: probes begin after %v and drop the client after %v", window, idle, dropped)
		}
		if timeout := seconds("tcp_user_timeout") / 1000; timeout < window || timeout > window+time.Second {
			t.Errorf("window %v: an answer is waited for %v", window, timeout)
		}
		if set["idle_session_timeout"] != "0" || seconds("client_connection_check_interval") <= 0 {
			t.Errorf("%v", set)
		}
	}
}

// Whatever is said about a lock has a form about pairs.
func TestNoStatementOfPairsIsAboutABigint(t *testing.T) {
	statements := []string{
		unlockExclusive, unlockShared, unlockExclusive + thenAll, clearExclusive, clearShared, countHeld, countHeldBy, pinHeld, evict, inspect,
		txTryExclusive, txTryShared, txWaitExclusive, txWaitShared,
	}
	for _, f := range []fencing{unfenced, onGrant, fencedAtAll} {
		for _, arrives := range []bool{false, true} {
			batch, _ := batchStatement(f, arrives, time.Minute)
			statements = append(statements, batch)
		}
	}
	for _, r := range requests() {
		for _, state := range []tenancy{passing, arriving, settled, renewing} {
			statements = append(statements, lockStatement(r, state), exchangeStatement(ports.Shared, r, state))
		}
	}
	bigint := regexp.MustCompile(`advisory_(xact_)?(un)?lock(_shared)?\([^,()]+\)|objsubid = 1`)
	for _, statement := range statements {
		if !bigint.MatchString(statement) {
			t.Errorf("this says nothing of a lock: %s", statement)
		}
		for _, f := range []form{inText | ofPairs, asArguments | ofPairs} {
			if pairs, _ := f.bind(statement); bigint.MatchString(pairs) {
				t.Errorf("%q in %s", bigint.FindString(pairs), pairs)
			}
		}
		if same, _ := asArguments.bind(statement); same != statement {
			t.Errorf("%s became %s", statement, same)
		}
	}
}

func TestABatchTravelsInOneList(t *testing.T) {
	batch := ports.Batch{
		Unlocks: []ports.Unlock{{ID: 1}, {ID: 2, Mode: ports.Shared}, {ID: 3}},
		Tries: []ports.Try{
			{ID: 1, Mode: ports.Shared}, {ID: 3}, {ID: 4, Held: true}, {ID: 5},
			{ID: 6, Fencing: true}, {ID: 7, Mode: ports.Shared, Fencing: true}, {ID: 8, Fencing: true},
		},
	}
	o := orderOf(batch)
	if want := []any{"{1,3,2,3,5,1,6,8,7}", int64(2), int64(3), int64(5), int64(6), int64(8)}; !slices.Equal(o.args(), want) {
		t.Errorf("%v, not %v", o.args(), want)
	}
	a, ok := o.answers(batch, "{t,f,t,f,t,t,t,f,f}")
	if !ok || !slices.Equal(a.Unlocked, []bool{true, true, false}) || !slices.Equal(a.Granted, []bool{true, false, true, true, true, false, false}) {
		t.Errorf("%v, %v", a, ok)
	}
	for _, wrong := range []string{
		"", "{}", "{t}", "{t,f,t,f,t,t,t,f}", "{t,f,t,f,t,t,t,f,f,t}", "t,f,t,f,t,t,t,f,f,t", "{t,f,t,f,t,t,t,f,f,",
		"{t,f,t,f,t,t,t,f,x}", "{t,f,t,f,t,t,t,f;f}", "{t,f,t,f,t,NULL,f}",
	} {
		if a, ok := o.answers(batch, wrong); ok {
			t.Errorf("%q was taken for %v", wrong, a)
		}
	}

	for _, none := range []ports.Batch{{}, {Tries: []ports.Try{{ID: 1, Held: true, Fencing: true}}}} {
		o := orderOf(none)
		if want := []any{"{}", int64(0), int64(0), int64(0), int64(0), int64(0)}; !slices.Equal(o.args(), want) {
			t.Errorf("%v, not %v", o.args(), want)
		}
		if a, ok := o.answers(none, "{}"); !ok || len(a.Granted) != len(none.Tries) || slices.Contains(a.Granted, false) {
			t.Errorf("%v, %v", a, ok)
		}
		if a, ok := o.answers(none, "{t}"); ok {
			t.Errorf("one answer too many was taken for %v", a)
		}
	}
}

func TestABatchDrawsATokenIfSomebodyWantsIt(t *testing.T) {
	for want, try := range map[fencing]ports.Try{
		unfenced:    {ID: 6, Held: true},
		onGrant:     {ID: 6, Fencing: true},
		fencedAtAll: {ID: 6, Held: true, Fencing: true},
	} {
		other := ports.Try{ID: 7, Fencing: want > unfenced}
		for _, tries := range [][]ports.Try{{try}, {other, try}, {try, other}} {
			if f := fencingOf(ports.Batch{Tries: tries}); f != want {
				t.Errorf("%v draws %v", tries, f)
			}
		}
	}
}

func TestIDsTravelAsABigintArray(t *testing.T) {
	for want, ids := range map[string][]int64{
		"{}":                       nil,
		"{0}":                      {0},
		"{-9223372036854775808,1}": {math.MinInt64, 1},
	} {
		if got := idArray(ids); got != want {
			t.Errorf("%v is %s", ids, got)
		}
	}
}

func TestWaitsAreNeverRoundedToNoLimit(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, 500 * time.Millisecond: 500} {
		if got := milliseconds(d); got != want {
			t.Errorf("%v is %d ms", d, got)
		}
	}
}
