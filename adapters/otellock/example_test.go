package otellock_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/holdfast-go/holdfast/adapters/memlock"
	"github.com/holdfast-go/holdfast/adapters/otellock"
	"github.com/holdfast-go/holdfast/pglock"
)

// Every acquire and release is a span of the application's own SDK, and the
// metrics go where its other metrics go.
func ExampleNewObserver() {
	ctx, span := otel.Tracer("billing").Start(context.Background(), "close the month")
	defer span.End()
	locks := memlock.New(memlock.NewServer(), // in production pgxlock.New(db, …)
		pglock.WithObserver(otellock.NewObserver()))
	defer locks.Close(ctx)

	err := pglock.Do(ctx, locks, "invoices", func(context.Context) error {
		fmt.Println("spans of the lock are below that of the month")
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// spans of the lock are below that of the month
}

// A service with several databases tells their locks apart.
func ExampleOption() {
	observed := func(database string) pglock.Option {
		return pglock.WithObserver(otellock.NewObserver(otellock.WithAttributes(attribute.String("db.namespace", database))))
	}
	billing := memlock.New(memlock.NewServer(), observed("billing"))
	catalogue := memlock.New(memlock.NewServer(), observed("catalogue"))
	defer billing.Close(context.Background())
	defer catalogue.Close(context.Background())
	fmt.Println(billing.HeldCount(), catalogue.HeldCount())
	// Output:
	// 0 0
}

// Metrics without spans.
func ExampleWithTracerProvider() {
	observer := otellock.NewObserver(otellock.WithTracerProvider(tracenoop.NewTracerProvider()))
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(observer))
	fmt.Println(locks.Close(context.Background()))
	// Output:
	// <nil>
}

// Spans without metrics.
func ExampleWithMeterProvider() {
	observer := otellock.NewObserver(otellock.WithMeterProvider(metricnoop.NewMeterProvider()))
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(observer))
	fmt.Println(locks.Close(context.Background()))
	// Output:
	// <nil>
}

func ExampleWithAttributes() {
	observer := otellock.NewObserver(otellock.WithAttributes(attribute.String("db.namespace", "billing")))
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(observer))
	fmt.Println(locks.Close(context.Background()))
	// Output:
	// <nil>
}

// Keys with a customer's address in them do not leave the process, in spans or
// in logs.
func ExampleWithKeyRedaction() {
	hide := func(string) string { return "(a customer)" }
	locks := memlock.New(memlock.NewServer(),
		pglock.WithObserver(otellock.NewObserver(otellock.WithKeyRedaction(hide))),
		pglock.WithKeyRedaction(hide))
	fmt.Println(locks.Close(context.Background()))
	// Output:
	// <nil>
}

// A scheduler with a dozen jobs, each a key, wants to see each of them.
func ExampleWithKeyInMetrics() {
	observer := otellock.NewObserver(otellock.WithKeyInMetrics())
	locks := memlock.New(memlock.NewServer(), pglock.WithObserver(observer))
	fmt.Println(locks.Close(context.Background()))
	// Output:
	// <nil>
}
