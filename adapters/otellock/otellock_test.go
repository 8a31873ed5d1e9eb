package otellock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/adapters/otellock"
	"github.com/holdfast-go/holdfast/pglock"
)

// What the SDK receives is tested in integration/telemetry.

// refusing is a meter that has no counters.
type refusing struct{ noop.Meter }

func (refusing) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errors.New("no counters here")
}

type refusingProvider struct{ noop.MeterProvider }

func (refusingProvider) Meter(string, ...metric.MeterOption) metric.Meter { return refusing{} }

func TestLocksWorkWithAMeterThatRefusesInstruments(t *testing.T) {
	var reported error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { reported = err }))
	ctx := context.Background()
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(otellock.NewObserver(otellock.WithMeterProvider(refusingProvider{}))))
	defer locks.Close(ctx)
	if reported == nil || !strings.Contains(reported.Error(), "no counters here") {
		t.Errorf("the error handler was told %v", reported)
	}
	if err := pglock.Do(ctx, locks, "k", func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestANilRedactionPanicsWithASentence(t *testing.T) {
	defer func() {
		if s, ok := recover().(string); !ok || len(strings.Fields(s)) < 4 {
			t.Errorf("panicked with %v", s)
		}
	}()
	otellock.WithKeyRedaction(nil)
	t.Error("it is accepted")
}

func TestNilOptionsAndProvidersArePassedOver(t *testing.T) {
	o := otellock.NewObserver(nil, otellock.WithTracerProvider(nil), otellock.WithMeterProvider(nil))
	_, end := o.Acquire(context.Background(), pglock.AcquireStart{Op: "try", Key: "k"})
	end(pglock.AcquireEnd{Contended: true})
}
