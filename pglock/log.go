package pglock

import (
	"context"
	"log/slog"

	"github.com/holdfast-go/holdfast/ports"
)

// logObserver logs, at level debug, what goes as it should: the life of each lock
// for those who look for the reason of something else. What does not go as it
// should is logged where it is found out.
func logObserver(l *slog.Logger, shown func(key string) string) Observer {
	return Observer{
		Acquire: func(ctx context.Context, a AcquireStart) (context.Context, func(AcquireEnd)) {
			if !l.Enabled(ctx, slog.LevelDebug) {
				return ctx, nil
			}
			return ctx, func(e AcquireEnd) {
				attrs := []slog.Attr{
					slog.String("key", shown(a.Key)), slog.Int64("id", a.ID), slog.String("mode", a.Options.Mode.String()),
					slog.Duration("waited", e.Waited), slog.Bool("contended", e.Contended),
				}
				if e.Acquired {
					l.LogAttrs(ctx, slog.LevelDebug, "lock acquired", append(attrs, slog.Int("pid", e.Lock.PID))...)
					return
				}
				if e.Err != nil {
					attrs = append(attrs, slog.Any("error", reason(e.Err)))
				}
				l.LogAttrs(ctx, slog.LevelDebug, "lock not acquired", attrs...)
			}
		},
		HoldEnded: func(e HoldEnd) {
			l.LogAttrs(context.Background(), slog.LevelDebug, "lock ended", slog.String("key", shown(e.Lock.Key)),
				slog.Int64("id", e.Lock.ID), slog.Duration("held", e.Duration), slog.Any("cause", e.Cause))
		},
	}
}

// reason is an error without the key that it may name.
func reason(err error) error {
	if e, ok := err.(*ports.LockError); ok {
		return e.Err
	}
	return err
}
