// Package otellock shows what a lock manager does in OpenTelemetry: a span for
// every acquire and every release, and metrics of waits, holds, losses and
// sessions.
//
//	locks := pgxlock.New(db, pglock.WithObserver(otellock.NewObserver()))
//
// It uses the OpenTelemetry API only; the application chooses the SDK. Tracer and
// meter come from the global providers unless WithTracerProvider and
// WithMeterProvider give others.
//
// # Spans
//
// holdfast.lock.acquire lasts as long as the call. Spans that an instrumented
// driver makes for the lock's statements are below it. Its attributes:
//
//	holdfast.lock.key        the key; see WithKeyRedaction
//	holdfast.lock.id         the lock ID
//	holdfast.lock.mode       "exclusive" or "shared"
//	holdfast.lock.operation  "acquire" or "try"
//	holdfast.lock.timeout    seconds, if the call has a timeout
//	holdfast.lock.acquired   whether the lock was granted
//	holdfast.lock.contended  whether someone else was in the way
//	holdfast.lock.waited     seconds
//	holdfast.lock.outcome    "acquired", "contended", "cancelled" or "error"
//	holdfast.lock.token      the fencing token, if one was asked for
//	holdfast.server.pid      the server process that holds the lock
//	holdfast.holder.id       the name of the manager's process
//	error.type               with the outcome "error": see below
//
// Contention is an outcome and not an error: such a span has no error status, nor
// has one that its caller has cancelled.
//
// holdfast.lock.release lasts until the server has confirmed the unlock or the
// release has given up on it. It has the key, the ID and the mode, for a set
// those of its first lock and their number as holdfast.lock.count, and the
// outcome "released", "lost" or "error". The last two have an error status.
//
// error.type is "pool_exhausted", "unsafe_connection", "lost", "closed",
// "timeout", the SQLSTATE of a server's error, or the Go type of the error.
//
// # Metrics
//
//	holdfast.lock.wait.duration  histogram, s   what acquires took, by outcome and operation
//	holdfast.lock.hold.duration  histogram, s   how long holds lasted
//	holdfast.lock.held           up-down        current holds
//	holdfast.lock.acquisitions   counter        acquires by outcome and operation
//	holdfast.lock.losses         counter        locks that were lost
//	holdfast.session.count       up-down        sessions pinned for waits and holds
//	holdfast.session.destroyed   counter        sessions ended instead of reused
//
// Those of locks have the mode as an attribute, and never the key, since a key
// per tenant would be a time series per tenant; WithKeyInMetrics is for few keys.
//
// It does not trace holds: a hold can last for days, and a span is only sent when
// it ends. It does not configure an SDK or an exporter.
package otellock

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

// scope names this package as the source of spans and metrics.
const scope = "github.com/holdfast-go/holdfast/adapters/otellock"

// The attributes, which the package comment explains.
const (
	keyKey       = attribute.Key("holdfast.lock.key")
	idKey        = attribute.Key("holdfast.lock.id")
	modeKey      = attribute.Key("holdfast.lock.mode")
	operationKey = attribute.Key("holdfast.lock.operation")
	timeoutKey   = attribute.Key("holdfast.lock.timeout")
	acquiredKey  = attribute.Key("holdfast.lock.acquired")
	contendedKey = attribute.Key("holdfast.lock.contended")
	waitedKey    = attribute.Key("holdfast.lock.waited")
	outcomeKey   = attribute.Key("holdfast.lock.outcome")
	tokenKey     = attribute.Key("holdfast.lock.token")
	countKey     = attribute.Key("holdfast.lock.count")
	pidKey       = attribute.Key("holdfast.server.pid")
	holderKey    = attribute.Key("holdfast.holder.id")
	errorTypeKey = attribute.Key("error.type")
)

// seconds are the boundaries of both histograms: from a lock that is free, which
// takes a round trip, to a nightly job.
var seconds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}

// Option adjusts an observer at its construction.
type Option func(*config)

type config struct {
	tracers    trace.TracerProvider
	meters     metric.MeterProvider
	attributes []attribute.KeyValue
	redact     func(string) string
	metricKey  bool
}

// WithTracerProvider takes the tracer from p instead of the global provider. Nil
// is passed over.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) {
		if p != nil {
			c.tracers = p
		}
	}
}

// WithMeterProvider takes the meter from p instead of the global provider. Nil is
// passed over.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) {
		if p != nil {
			c.meters = p
		}
	}
}

// WithAttributes adds attributes to every span and every measurement, such as
// the name of the database if the process has managers for several.
func WithAttributes(attributes ...attribute.KeyValue) Option {
	return func(c *config) { c.attributes = append(c.attributes, attributes...) }
}

// WithKeyRedaction shows redact(key) in the place of a key, for keys that name a
// customer, say. The messages of errors, which also name the key, are left out
// then. It panics if redact is nil.
func WithKeyRedaction(redact func(key string) string) Option {
	if redact == nil {
		panic("otellock.WithKeyRedaction: nil function; leave the option out to show keys as they are")
	}
	return func(c *config) { c.redact = redact }
}

// WithKeyInMetrics adds the key to the attributes of the metrics. Every key is a
// time series of each metric then: use it only where the keys are few and known.
func WithKeyInMetrics() Option {
	return func(c *config) { c.metricKey = true }
}

// NewObserver makes an observer for pglock.WithObserver. It may serve several
// managers. An instrument that the meter refuses is reported to the global error
// handler, and nothing is measured then.
func NewObserver(opts ...Option) pglock.Observer {
	c := config{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider()}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	in, err := newInstruments(c.meters.Meter(scope))
	if err != nil {
		otel.Handle(fmt.Errorf("otellock: no metrics of locks: %w", err))
		in, _ = newInstruments(noop.Meter{})
	}
	o := &observer{config: c, instruments: in, tracer: c.tracers.Tracer(scope)}
	return pglock.Observer{
		Acquire:       o.acquire,
		Release:       o.release,
		HoldEnded:     o.holdEnded,
		Lost:          o.lost,
		SessionOpened: o.sessionOpened,
		SessionClosed: o.sessionClosed,
	}
}

// instruments are the metrics.
type instruments struct {
	waits, holds    metric.Float64Histogram
	held            metric.Int64UpDownCounter
	acquisitions    metric.Int64Counter
	losses          metric.Int64Counter
	sessions        metric.Int64UpDownCounter
	sessionsSpoiled metric.Int64Counter
}

func newInstruments(m metric.Meter) (in instruments, err error) {
	var errs [7]error
	in.waits, errs[0] = m.Float64Histogram("holdfast.lock.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("Time that calls took to get a lock, or to end without it."), metric.WithExplicitBucketBoundaries(seconds...))
	in.holds, errs[1] = m.Float64Histogram("holdfast.lock.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("Time for which locks were held."), metric.WithExplicitBucketBoundaries(seconds...))
	in.held, errs[2] = m.Int64UpDownCounter("holdfast.lock.held", metric.WithUnit("{lock}"),
		metric.WithDescription("Locks that are held."))
	in.acquisitions, errs[3] = m.Int64Counter("holdfast.lock.acquisitions", metric.WithUnit("{acquisition}"),
		metric.WithDescription("Calls that asked for a lock, by their outcome."))
	in.losses, errs[4] = m.Int64Counter("holdfast.lock.losses", metric.WithUnit("{lock}"),
		metric.WithDescription("Locks that were lost while they were held."))
	in.sessions, errs[5] = m.Int64UpDownCounter("holdfast.session.count", metric.WithUnit("{session}"),
		metric.WithDescription("Server sessions that are pinned for locks and waits."))
	in.sessionsSpoiled, errs[6] = m.Int64Counter("holdfast.session.destroyed", metric.WithUnit("{session}"),
		metric.WithDescription("Server sessions that were ended instead of being reused."))
	return in, errors.Join(errs[:]...)
}

// observer implements the functions of a pglock.Observer.
type observer struct {
	config
	instruments
	tracer trace.Tracer
}

// shown is the key as it may be shown.
func (o *observer) shown(key string) string {
	if o.redact != nil {
		return o.redact(key)
	}
	return key
}

// start starts a span about a lock.
func (o *observer) start(ctx context.Context, name, key string, id int64, mode ports.Mode, more ...attribute.KeyValue) (context.Context, trace.Span) {
	return o.tracer.Start(ctx, name, trace.WithAttributes(o.attributes...), trace.WithAttributes(more...),
		trace.WithAttributes(keyKey.String(o.shown(key)), idKey.Int64(id), modeKey.String(mode.String())))
}

// measured are the attributes of a measurement about a lock.
func (o *observer) measured(key string, mode ports.Mode, more ...attribute.KeyValue) metric.MeasurementOption {
	attributes := append(more, o.attributes...)
	attributes = append(attributes, modeKey.String(mode.String()))
	if o.metricKey {
		attributes = append(attributes, keyKey.String(o.shown(key)))
	}
	return metric.WithAttributes(attributes...)
}

func (o *observer) acquire(ctx context.Context, a pglock.AcquireStart) (context.Context, func(pglock.AcquireEnd)) {
	attributes := []attribute.KeyValue{operationKey.String(a.Op), holderKey.String(a.HolderID)}
	if a.Options.Timeout >= 0 {
		attributes = append(attributes, timeoutKey.Float64(a.Options.Timeout.Seconds()))
	}
	ctx, span := o.start(ctx, "holdfast.lock.acquire", a.Key, a.ID, a.Options.Mode, attributes...)
	return ctx, func(e pglock.AcquireEnd) {
		outcome := outcomeKey.String(acquireOutcome(e))
		measured := o.measured(a.Key, a.Options.Mode, outcome, operationKey.String(a.Op))
		o.waits.Record(ctx, e.Waited.Seconds(), measured)
		o.acquisitions.Add(ctx, 1, measured)
		if e.Acquired {
			o.held.Add(ctx, 1, o.measured(a.Key, a.Options.Mode))
		}
		if span.IsRecording() {
			span.SetAttributes(outcome, acquiredKey.Bool(e.Acquired), contendedKey.Bool(e.Contended), waitedKey.Float64(e.Waited.Seconds()))
			if e.Lock.PID != 0 {
				span.SetAttributes(pidKey.Int(e.Lock.PID))
			}
			if e.Lock.Token != 0 {
				span.SetAttributes(tokenKey.Int64(int64(e.Lock.Token)))
			}
			if outcome.Value.AsString() == failed {
				o.fail(span, e.Err)
			}
		}
		span.End()
	}
}

func (o *observer) release(ctx context.Context, r pglock.ReleaseStart) func(error) {
	first := r.Locks[0]
	_, span := o.start(ctx, "holdfast.lock.release", first.Key, first.ID, first.Mode,
		countKey.Int(len(r.Locks)), holderKey.String(first.HolderID), pidKey.Int(first.PID))
	return func(err error) {
		span.SetAttributes(outcomeKey.String(releaseOutcome(err)))
		if err != nil {
			o.fail(span, err)
		}
		span.End()
	}
}

// fail marks a span as failed.
func (o *observer) fail(span trace.Span, err error) {
	message := err.Error()
	if o.redact != nil {
		message = ""
	}
	span.SetStatus(codes.Error, message)
	span.SetAttributes(errorTypeKey.String(errorType(err)))
}

func (o *observer) holdEnded(e pglock.HoldEnd) {
	ctx, measured := context.Background(), o.measured(e.Lock.Key, e.Lock.Mode)
	o.holds.Record(ctx, e.Duration.Seconds(), measured)
	o.held.Add(ctx, -1, measured)
}

func (o *observer) lost(lock ports.LockInfo, _ error) {
	o.losses.Add(context.Background(), 1, o.measured(lock.Key, lock.Mode))
}

func (o *observer) sessionOpened() {
	o.sessions.Add(context.Background(), 1, metric.WithAttributes(o.attributes...))
}

func (o *observer) sessionClosed(e pglock.SessionEnd) {
	o.sessions.Add(context.Background(), -1, metric.WithAttributes(o.attributes...))
	if e.Destroyed {
		o.sessionsSpoiled.Add(context.Background(), 1, metric.WithAttributes(o.attributes...))
	}
}

// failed is the outcome of what has an error.
const failed = "error"

func acquireOutcome(e pglock.AcquireEnd) string {
	switch {
	case e.Acquired:
		return "acquired"
	case e.Contended:
		return "contended"
	case errors.Is(e.Err, context.Canceled):
		return "cancelled"
	default:
		return failed
	}
}

func releaseOutcome(err error) string {
	switch {
	case err == nil:
		return "released"
	case errors.Is(err, ports.ErrLost):
		return "lost"
	default:
		return failed
	}
}

// errorType names the class of an error, of which there are few.
func errorType(err error) string {
	switch {
	case errors.Is(err, ports.ErrPoolExhausted):
		return "pool_exhausted"
	case errors.Is(err, ports.ErrUnsafeConnection):
		return "unsafe_connection"
	case errors.Is(err, ports.ErrLost):
		return "lost"
	case errors.Is(err, ports.ErrClosed):
		return "closed"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	if server := (interface{ SQLState() string })(nil); errors.As(err, &server) {
		return server.SQLState()
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return fmt.Sprintf("%T", err)
		}
		err = inner
	}
}
