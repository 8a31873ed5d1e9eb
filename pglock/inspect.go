package pglock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// Inspection is what the server tells of one key: who holds it and who waits.
type Inspection struct {
	// Key is what was asked for; empty in what InspectAll returns.
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
	id := m.KeyID(key)
	inspector, ok := m.pool.(ports.Inspector)
	if !ok {
		return inspection(key, id, nil), &ports.LockError{Op: "inspect", Key: key, Err: ports.ErrUnsupported}
	}
	infos, err := inspector.Inspect(ctx, id)
	if err != nil {
		return inspection(key, id, nil), &ports.LockError{Op: "inspect", Key: key, Err: err}
	}
	return inspection(key, id, infos), nil
}

// InspectAll asks the server for every lock that anybody holds or waits for in
// this database, in the order of the IDs; those of the database's other users
// of advisory locks, too. It knows no keys: an ID does not tell the key that it
// derives from. It returns ports.ErrUnsupported if the adapter cannot tell.
func (m *Manager) InspectAll(ctx context.Context) ([]Inspection, error) {
	lister, ok := m.pool.(ports.Lister)
	if !ok {
		return nil, fmt.Errorf("inspect all locks: %w", ports.ErrUnsupported)
	}
	locks, err := lister.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("inspect all locks: %w", err)
	}
	all := []Inspection{}
	for _, id := range slices.Sorted(maps.Keys(locks)) {
		all = append(all, inspection("", id, locks[id]))
	}
	return all, nil
}

// inspection sorts sessions into holders and waiters.
func inspection(key string, id int64, sessions []ports.SessionInfo) Inspection {
	in := Inspection{Key: key, ID: id, Holders: []ports.SessionInfo{}, Waiters: []ports.SessionInfo{}}
	for _, i := range sessions {
		if i.Granted {
			in.Holders = append(in.Holders, i)
		} else {
			in.Waiters = append(in.Waiters, i)
		}
	}
	return in
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
