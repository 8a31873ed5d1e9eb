package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// Inspection is what the server tells of one key: who holds it and who waits.
type Inspection struct {
	Key string `json:"key"`
	ID  int64  `json:"id"`
	// Holders and Waiters are sessions of any process on the same database.
	// Waiters of this library are seen for one slice at a time.
	Holders []ports.SessionInfo `json:"holders"`
	Waiters []ports.SessionInfo `json:"waiters"`
}

// Inspect asks the server who holds key and who waits for it. It uses any
// connection of the pool, not the sessions of holds. It returns
// ports.ErrUnsupported if the adapter cannot tell.
func (m *Manager) Inspect(ctx context.Context, key string) (Inspection, error) {
	in := Inspection{Key: key, ID: m.KeyID(key), Holders: []ports.SessionInfo{}, Waiters: []ports.SessionInfo{}}
	inspector, ok := m.pool.(ports.Inspector)
	if !ok {
		return in, &ports.LockError{Op: "inspect", Key: key, Err: ports.ErrUnsupported}
	}
	infos, err := inspector.Inspect(ctx, in.ID)
	if err != nil {
		return in, &ports.LockError{Op: "inspect", Key: key, Err: err}
	}
	for _, i := range infos {
		if i.Granted {
			in.Holders = append(in.Holders, i)
		} else {
			in.Waiters = append(in.Waiters, i)
		}
	}
	return in, nil
}

// String describes the inspection for people, a line a session.
func (in Inspection) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.128q (lock ID %d): %d holders, %d waiters\n", in.Key, in.ID, len(in.Holders), len(in.Waiters))
	for _, s := range append(in.Holders[:len(in.Holders):len(in.Holders)], in.Waiters...) {
		verb := "waits for"
		if s.Granted {
			verb = "holds"
		}
		fmt.Fprintf(&b, "  process %d %s it, %s", s.PID, verb, s.Mode)
		if !s.Since.IsZero() {
			fmt.Fprintf(&b, ", since %s", s.Since.UTC().Format(time.RFC3339))
		}
		for _, f := range []struct{ name, value string }{
			{"holder", s.HolderID}, {"application", s.Application}, {"user", s.User}, {"client", s.Client}, {"database", s.Database}, {"state", s.State},
		} {
			if f.value != "" {
				fmt.Fprintf(&b, ", %s %.128q", f.name, f.value)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Evict has the server end the sessions that hold key, in this process or any
// other, and returns how many it ended. Their holders are told of a loss. The
// role needs to be the holder's, or one that may signal its sessions
// (pg_signal_backend): where it may not, the error says so.
func (m *Manager) Evict(ctx context.Context, key string) (ended int, err error) {
	in, err := m.Inspect(ctx, key)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, s := range in.Holders {
		gone, err := m.pool.(ports.Inspector).Evict(ctx, in.ID, s.PID)
		if gone {
			ended++
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return ended, &ports.LockError{Op: "evict", Key: key, Err: err}
	}
	return ended, nil
}
