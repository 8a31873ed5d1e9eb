package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// lineTurn is how long a call of Semaphore.Acquire waits in line at one slot
// before it looks at all of them again: the longest that a free slot stays unseen.
const lineTurn = time.Second

// Semaphore is a lock that up to n holders have at a time, across processes: at
// most n workers on one queue, at most n imports of one supplier. Each key has n
// slots, which are ordinary keys of the locks below (see SlotKey), and who holds
// one of them holds the key. So it promises what those locks promise, n times,
// and Do, TryDo and Lead work with it.
//
// All processes must use one n. If they do not, for instance while a new n is
// rolled out, there are at most as many holders as the greatest n allows.
//
// Acquire and TryAcquire try the slots in random order. Acquire then waits in line
// at one slot, picked at random, looks at all of them again after a second, and so
// on. So a slot that is released goes at once to whoever waits in line there, and
// one where nobody waits is found within a second. That is fair on average and in
// no order: nobody waits for ever while slots are released, but one who came later
// can be served first. A wait pins a connection, and asks the server for each slot
// once a second; with ports.WithPolling it pins none, and only looks at the slots
// at that interval. Either is right for tens of slots, not for thousands.
//
// What it returns is the lock of the slot: its LockInfo.Key is the slot's. It is
// safe for concurrent use.
type Semaphore struct {
	locks ports.DistributedLock
	n     int
}

var _ ports.DistributedLock = (*Semaphore)(nil)

// NewSemaphore makes semaphores of n slots on locks. It panics if locks is nil or
// n is not positive.
func NewSemaphore(locks ports.DistributedLock, n int) *Semaphore {
	if locks == nil {
		panic("pglock.NewSemaphore: nil locks; give it a manager")
	}
	if n <= 0 {
		panic(fmt.Sprintf("pglock.NewSemaphore: %d slots; want at least one", n))
	}
	return &Semaphore{locks, n}
}

// SlotKey is the key of a slot, of which the first is 0: the semaphore's key, a
// hash sign and the number. Use it to inspect or evict the holder of a slot, and
// do not use such keys for other locks.
func SlotKey(key string, slot int) string { return fmt.Sprintf("%s#%d", key, slot) }

// Acquire waits for a slot of key. Its options and errors are those of
// ports.DistributedLock; a semaphore has no shared mode (ports.ErrUnsupported).
func (s *Semaphore) Acquire(ctx context.Context, key string, opts ...ports.AcquireOption) (ports.Lock, error) {
	o := ports.NewAcquireOptions(opts...)
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	opts = append(opts[:len(opts):len(opts)], func(o *ports.AcquireOptions) { o.Timeout = -1 }) // ctx has it
	for contended := false; ; {
		lock, refused, err := s.round(ctx, key, o, opts)
		contended = contended || refused
		again := err == nil || errors.Is(err, ports.ErrPoolExhausted)
		switch {
		case lock != nil:
			return lock, nil
		case again && o.Timeout != 0 && ctx.Err() == nil:
		case err != nil && !(contended && ctx.Err() != nil):
			return nil, failed("acquire", key, err)
		default:
			why := error(context.DeadlineExceeded) // of a timeout of zero
			if ctx.Err() != nil {
				why = ended(ctx)
			}
			return nil, failed("acquire", key, fmt.Errorf("%w: %w", ports.ErrNotAcquired, why))
		}
	}
}

// round tries every slot, and waits for one turn if that is in vain: in line at a
// random slot, or, with polling, asleep. It returns neither a lock nor an error if
// others had the slots; refused says that they had them all at one time or
// another.
func (s *Semaphore) round(ctx context.Context, key string, o ports.AcquireOptions, opts []ports.AcquireOption) (lock ports.Lock, refused bool, err error) {
	lock, err = s.try(ctx, key, opts)
	refused = lock == nil && err == nil
	switch {
	case lock != nil, err != nil && !errors.Is(err, ports.ErrPoolExhausted), o.Timeout == 0, ctx.Err() != nil:
	case o.Polling > 0:
		timer := time.NewTimer(o.Polling/2 + rand.N(o.Polling))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	default:
		lock, err = s.locks.Acquire(ctx, SlotKey(key, rand.IntN(s.n)), append(opts[:len(opts):len(opts)], ports.WithTimeout(lineTurn))...)
		if errors.Is(err, ports.ErrNotAcquired) {
			refused, err = true, nil
		}
	}
	return lock, refused, err
}

// TryAcquire takes a slot of key if one is free. Its options and errors are those
// of ports.DistributedLock; a semaphore has no shared mode (ports.ErrUnsupported).
func (s *Semaphore) TryAcquire(ctx context.Context, key string, opts ...ports.AcquireOption) (lock ports.Lock, acquired bool, err error) {
	lock, err = s.try(ctx, key, opts)
	if err != nil {
		return nil, false, failed("try", key, err)
	}
	return lock, lock != nil, nil
}

// Release gives back one of the slots of key that are held through the locks
// below.
func (s *Semaphore) Release(ctx context.Context, key string) error {
	for slot := range s.n {
		if slotKey := SlotKey(key, slot); s.locks.IsHeld(slotKey) {
			return s.locks.Release(ctx, slotKey)
		}
	}
	return failed("release", key, ports.ErrNotHeld)
}

// IsHeld reports whether a slot of key is held through the locks below.
func (s *Semaphore) IsHeld(key string) bool {
	for slot := range s.n {
		if s.locks.IsHeld(SlotKey(key, slot)) {
			return true
		}
	}
	return false
}

// try tries every slot once. It returns neither a lock nor an error if none is
// free.
func (s *Semaphore) try(ctx context.Context, key string, opts []ports.AcquireOption) (ports.Lock, error) {
	if ports.NewAcquireOptions(opts...).Mode == ports.Shared {
		return nil, fmt.Errorf("%w: a semaphore has no shared mode; leave WithShared out", ports.ErrUnsupported)
	}
	for _, slot := range rand.Perm(s.n) {
		lock, acquired, err := s.locks.TryAcquire(ctx, SlotKey(key, slot), opts...)
		if acquired || err != nil {
			return lock, err
		}
	}
	return nil, nil
}

// failed is the error of an operation on key, whichever slot it came from.
func failed(op, key string, err error) error {
	var slot *ports.LockError
	if errors.As(err, &slot) {
		err = slot.Err
	}
	return &ports.LockError{Op: op, Key: key, Err: err}
}
