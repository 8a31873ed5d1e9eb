// Package telemetry checks with the SDK of OpenTelemetry what adapters/otellock
// tells it: in virtual time on memlock, and on a real server.
package telemetry

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/XSAM/otelsql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/adapters/otellock"
	"github.com/holdfast-go/holdfast/adapters/sqllock"
	"github.com/holdfast-go/holdfast/integration/postgres"
	"github.com/holdfast-go/holdfast/integration/testkit"
	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

var (
	bg     = context.Background()
	server *postgres.Server
	must   = testkit.Must
)

func TestMain(m *testing.M) {
	os.Exit(postgres.Main(m, func(s *postgres.Server) { server = s }))
}

// recorder is an SDK that keeps what it is told.
type recorder struct {
	t      *testing.T
	spans  *tracetest.InMemoryExporter
	tracer *trace.TracerProvider
	reader *metric.ManualReader
	meter  *metric.MeterProvider
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{t: t, spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	r.tracer = trace.NewTracerProvider(trace.WithSyncer(r.spans))
	r.meter = metric.NewMeterProvider(metric.WithReader(r.reader))
	return r
}

func (r *recorder) observer(opts ...otellock.Option) pglock.Option {
	opts = append(opts, otellock.WithTracerProvider(r.tracer), otellock.WithMeterProvider(r.meter))
	return pglock.WithObserver(otellock.NewObserver(opts...))
}

// span returns the one span that ended since the last call.
func (r *recorder) span() tracetest.SpanStub {
	r.t.Helper()
	synctest.Wait()
	spans := r.spans.GetSpans()
	r.spans.Reset()
	if len(spans) != 1 {
		r.t.Fatalf("%d spans have ended, want one: %v", len(spans), spans)
	}
	return spans[0]
}

// want checks the name, the status and some attributes of a span.
func (r *recorder) want(span tracetest.SpanStub, name string, status codes.Code, attributes ...attribute.KeyValue) {
	r.t.Helper()
	if span.Name != name || span.Status.Code != status {
		r.t.Errorf("span %q has the status %v, want %q and %v", span.Name, span.Status, name, status)
	}
	for _, a := range attributes {
		if !slices.Contains(span.Attributes, a) {
			r.t.Errorf("span %q lacks %s=%v; it has %v", span.Name, a.Key, a.Value.String(), span.Attributes)
		}
	}
}

// point is one value of a metric.
type point struct {
	attributes attribute.Set
	value      float64 // of a sum, or the sum of a histogram
	count      uint64  // of a histogram
}

// points reads a metric.
func (r *recorder) points(name string) []point {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(bg, &all); err != nil {
		r.t.Fatal(err)
	}
	var points []point
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					points = append(points, point{p.Attributes, float64(p.Value), 0})
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					points = append(points, point{p.Attributes, p.Sum, p.Count})
				}
			default:
				r.t.Fatalf("%s has values of type %T", name, data)
			}
		}
	}
	return points
}

// value adds up the points of a metric that have these attributes.
func (r *recorder) value(name string, attributes ...attribute.KeyValue) (sum float64, count uint64) {
	r.t.Helper()
	for _, p := range r.points(name) {
		if !slices.ContainsFunc(attributes, func(a attribute.KeyValue) bool {
			v, ok := p.attributes.Value(a.Key)
			return !ok || v != a.Value
		}) {
			sum, count = sum+p.value, count+p.count
		}
	}
	return sum, count
}

func (r *recorder) wantValue(want float64, name string, attributes ...attribute.KeyValue) {
	r.t.Helper()
	if got, _ := r.value(name, attributes...); got != want {
		r.t.Errorf("%s %v is %v, want %v", name, attributes, got, want)
	}
}

// bubble runs a test in virtual time, with one manager that is observed and one
// that is not.
func bubble(t *testing.T, test func(t *testing.T, r *recorder, server *memlock.Server, m, rival *pglock.Manager), opts ...otellock.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		server, r := memlock.NewServer(), newRecorder(t)
		m, rival := memlock.New(server, r.observer(opts...), pglock.WithHolderID("me")), memlock.New(server)
		defer m.Close(bg)
		defer rival.Close(bg)
		test(t, r, server, m, rival)
	})
}

var (
	str      = attribute.String
	yes, no  = true, false
	outcome  = func(s string) attribute.KeyValue { return str("holdfast.lock.outcome", s) }
	acquired = func(b bool) attribute.KeyValue { return attribute.Bool("holdfast.lock.acquired", b) }
	crowded  = func(b bool) attribute.KeyValue { return attribute.Bool("holdfast.lock.contended", b) }
	waited   = func(s float64) attribute.KeyValue { return attribute.Float64("holdfast.lock.waited", s) }
)

func TestSpansTellOfAnAcquireAndItsRelease(t *testing.T) {
	bubble(t, func(t *testing.T, r *recorder, server *memlock.Server, m, rival *pglock.Manager) {
		ctx, parent := r.tracer.Tracer("test").Start(bg, "request")
		lock, err := m.Acquire(ctx, "invoices", ports.WithTimeout(90*time.Second), ports.WithShared(), ports.WithFencing())
		must(t, err)
		span := r.span()
		r.want(span, "holdfast.lock.acquire", codes.Unset,
			str("holdfast.lock.key", "invoices"), attribute.Int64("holdfast.lock.id", m.KeyID("invoices")), str("holdfast.lock.mode", "shared"),
			str("holdfast.lock.operation", "acquire"), attribute.Float64("holdfast.lock.timeout", 90), str("holdfast.holder.id", "me"),
			acquired(yes), crowded(no), waited(0), outcome("acquired"),
			attribute.Int64("holdfast.lock.token", int64(lock.Info().Token)), attribute.Int("holdfast.server.pid", lock.Info().PID))
		if span.Parent.SpanID() != parent.SpanContext().SpanID() {
			t.Error("the span is not below the caller's")
		}
		must(t, lock.Release(ctx))
		span = r.span()
		r.want(span, "holdfast.lock.release", codes.Unset, str("holdfast.lock.key", "invoices"), str("holdfast.lock.mode", "shared"),
			attribute.Int64("holdfast.lock.id", m.KeyID("invoices")), attribute.Int("holdfast.lock.count", 1), outcome("released"))
		if span.Parent.SpanID() != parent.SpanContext().SpanID() {
			t.Error("the span of the release is not below the caller's")
		}
		must(t, lock.Release(ctx))
		if n := len(r.spans.GetSpans()); n != 0 {
			t.Errorf("a second release has %d spans", n)
		}
	})
}

func TestContentionIsMarkedAndNoError(t *testing.T) {
	bubble(t, func(t *testing.T, r *recorder, server *memlock.Server, m, rival *pglock.Manager) {
		held, err := rival.Acquire(bg, "invoices")
		must(t, err)

		_, ok, err := m.TryAcquire(bg, "invoices")
		if ok || err != nil {
			t.Fatal(ok, err)
		}
		r.want(r.span(), "holdfast.lock.acquire", codes.Unset, str("holdfast.lock.operation", "try"), acquired(no), crowded(yes), waited(0), outcome("contended"))

		if _, err := m.Acquire(bg, "invoices", ports.WithTimeout(3*time.Second)); !errors.Is(err, ports.ErrNotAcquired) {
			t.Fatal(err)
		}
		r.want(r.span(), "holdfast.lock.acquire", codes.Unset, acquired(no), crowded(yes), waited(3), outcome("contended"))

		time.AfterFunc(5*time.Second, func() { _ = held.Release(bg) })
		_, err = m.Acquire(bg, "invoices")
		must(t, err)
		r.want(r.span(), "holdfast.lock.acquire", codes.Unset, acquired(yes), crowded(yes), waited(5), outcome("acquired"))

		r.wantValue(2, "holdfast.lock.acquisitions", outcome("contended"))
		r.wantValue(1, "holdfast.lock.acquisitions", outcome("contended"), str("holdfast.lock.operation", "try"))
		r.wantValue(1, "holdfast.lock.acquisitions", outcome("acquired"))
		r.wantValue(8, "holdfast.lock.wait.duration")
		r.wantValue(5, "holdfast.lock.wait.duration", outcome("acquired"))
	})
}

func TestFailuresAreErrorsAndACancelledWaitIsNone(t *testing.T) {
	bubble(t, func(t *testing.T, r *recorder, server *memlock.Server, m, rival *pglock.Manager) {
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if _, err := m.Acquire(ctx, "invoices"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		r.want(r.span(), "holdfast.lock.acquire", codes.Unset, acquired(no), outcome("cancelled"))

		reset := errors.New("connection reset")
		server.Intercept(func(context.Context, memlock.Command) error { return reset })
		if _, err := m.Acquire(bg, "invoices"); !errors.Is(err, reset) {
			t.Fatal(err)
		}
		span := r.span()
		r.want(span, "holdfast.lock.acquire", codes.Error, acquired(no), outcome("error"), str("error.type", "*errors.errorString"))
		if !strings.Contains(span.Status.Description, "connection reset") {
			t.Errorf("the status says %q", span.Status.Description)
		}
		server.Intercept(nil)

		must(t, m.Close(bg))
		if _, err := m.Acquire(bg, "invoices"); !errors.Is(err, ports.ErrClosed) {
			t.Fatal(err)
		}
		r.want(r.span(), "holdfast.lock.acquire", codes.Error, outcome("error"), str("error.type", "closed"))
		r.wantValue(2, "holdfast.lock.acquisitions", outcome("error"))
		r.wantValue(1, "holdfast.lock.acquisitions", outcome("cancelled"))
	})
}

func TestMetricsFollowHoldsLossesAndSessions(t *testing.T) {
	bubble(t, func(t *testing.T, r *recorder, server *memlock.Server, m, rival *pglock.Manager) {
		var locks []ports.Lock
		for _, key := range []string{"a", "b", "c"} {
			lock, err := m.Acquire(bg, key)
			must(t, err)
			locks = append(locks, lock)
		}
		r.wantValue(3, "holdfast.lock.held")
		r.wantValue(3, "holdfast.session.count")
		time.Sleep(10 * time.Second)
		must(t, locks[0].Release(bg))
		r.wantValue(2, "holdfast.lock.held")
		time.Sleep(time.Second)
		server.Kill(locks[1].Info().PID)
		synctest.Wait()
		r.wantValue(1, "holdfast.lock.held")
		r.wantValue(1, "holdfast.lock.losses")
		r.wantValue(1, "holdfast.session.destroyed")
		server.DropLocks(locks[2].Info().PID)
		r.spans.Reset()
		if err := locks[2].Release(bg); !errors.Is(err, ports.ErrLost) {
			t.Fatal(err)
		}
		r.want(r.span(), "holdfast.lock.release", codes.Error, outcome("lost"), str("error.type", "lost"))
		r.wantValue(0, "holdfast.lock.held")
		r.wantValue(2, "holdfast.lock.losses")
		r.wantValue(0, "holdfast.session.count")
		r.wantValue(2, "holdfast.session.destroyed")
		if sum, count := r.value("holdfast.lock.hold.duration"); sum != 32 || count != 3 {
			t.Errorf("%d holds lasted %v s, want 3 and 32", count, sum)
		}
	})
}

func TestKeysAreInNoMetricUnlessAskedFor(t *testing.T) {
	metrics := []string{"holdfast.lock.wait.duration", "holdfast.lock.hold.duration", "holdfast.lock.held", "holdfast.lock.acquisitions"}
	use := func(t *testing.T, m *pglock.Manager) {
		t.Helper()
		for _, key := range []string{"a", "b"} {
			must(t, pglock.Do(bg, m, key, func(context.Context) error { return nil }))
		}
	}
	bubble(t, func(t *testing.T, r *recorder, server *memlock.Server, m, rival *pglock.Manager) {
		use(t, m)
		for _, name := range metrics {
			if points := r.points(name); len(points) != 1 {
				t.Errorf("%s has %d series, want one: %v", name, len(points), points)
			}
		}
	})
	bubble(t, func(t *testing.T, r *recorder, server *memlock.Server, m, rival *pglock.Manager) {
		use(t, m)
		for _, name := range metrics {
			if points := r.points(name); len(points) != 2 {
				t.Errorf("%s has %d series, want one for each key: %v", name, len(points), points)
			}
		}
		r.wantValue(1, "holdfast.lock.acquisitions", str("holdfast.lock.key", "a"))
	}, otellock.WithKeyInMetrics())
}

func TestRedactedKeysAppearNowhere(t *testing.T) {
	bubble(t, func(t *testing.T, r *recorder, server *memlock.Server, m, rival *pglock.Manager) {
		lock, err := m.Acquire(bg, "jane@example.com")
		must(t, err)
		server.DropLocks(lock.Info().PID)
		if lock.Release(bg) == nil {
			t.Fatal("no loss")
		}
		spans := r.spans.GetSpans()
		if len(spans) != 2 {
			t.Fatalf("%d spans, want 2", len(spans))
		}
		for _, span := range spans {
			if !slices.Contains(span.Attributes, str("holdfast.lock.key", "***")) || strings.Contains(span.Status.Description, "jane") {
				t.Errorf("span %q shows %v, %v", span.Name, span.Attributes, span.Status)
			}
		}
		r.wantValue(1, "holdfast.lock.losses", str("holdfast.lock.key", "***"), str("db.namespace", "billing"))
		r.wantValue(1, "holdfast.session.destroyed", str("db.namespace", "billing"))
	}, otellock.WithKeyRedaction(func(string) string { return "***" }), otellock.WithKeyInMetrics(), otellock.WithAttributes(str("db.namespace", "billing")))
}

// With an instrumented driver, the statements of a lock are below its span.
func TestStatementsAreBelowTheSpanOfTheAcquire(t *testing.T) {
	r := newRecorder(t)
	db, err := otelsql.Open("pgx", server.DSN(), otelsql.WithTracerProvider(r.tracer))
	must(t, err)
	defer db.Close()
	m := sqllock.New(db, r.observer())
	defer m.Close(bg)
	lock, err := m.Acquire(bg, t.Name())
	must(t, err)
	spans := r.spans.GetSpans()
	at := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == "holdfast.lock.acquire" })
	if at < 0 {
		t.Fatalf("no span of the acquire among %d", len(spans))
	}
	below := 0
	for _, s := range spans {
		if s.Parent.SpanID() == spans[at].SpanContext.SpanID() {
			below++
		}
	}
	if below == 0 {
		t.Errorf("none of %d spans is below the acquire's", len(spans))
	}
	r.want(spans[at], "holdfast.lock.acquire", codes.Unset, outcome("acquired"), attribute.Int("holdfast.server.pid", lock.Info().PID))
	must(t, lock.Release(bg))
	r.wantValue(0, "holdfast.lock.held")
	r.wantValue(0, "holdfast.session.count")
}
