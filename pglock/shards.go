package pglock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/ports"
)

// Shard is one of the servers of a ShardedManager.
type Shard struct {
	// Name is what keys are assigned to. It is part of the contract of all
	// processes, like a table's name: it stays the same when the server moves to
	// another address or fails over, and two shards never have the same.
	Name string
	// Locks is the manager of the shard's locks. Each shard has one of its own.
	Locks ports.LockManager
}

// ShardedManager is one ports.LockManager over several independent servers, its
// shards: each key lives on one of them. Sharded makes it.
//
// What it promises for a key is what the shard of that key promises. A lock that
// it returns is the shard's own: sqllock.RunTx works with it, on that shard's
// server. A server that is down fails its own keys only, at the time that its own
// manager takes to say so. Errors name the shard.
//
// The shard of a key depends on the key and the names of the shards alone: it is
// the one whose name and the key together have the greatest hash (rendezvous
// hashing). The order of the shards does not matter. A shard that is added takes
// about its share of the keys, 1/n of them, from all others, and no key moves
// between two others; one that is removed leaves its keys to all others.
//
// Keys that move are not excluded while processes with different lists of shards
// run: the old list locks such a key on one server, the new list on another, and
// neither sees the other's holders. To change the list, either stop every process
// that has the old one before the first with the new one starts, or roll out a
// version in between that holds each key that moves under both lists, the old one
// first, as the example of ShardOf does; when it runs everywhere, roll out the new
// list alone. Fencing tokens come from the server of a key: those of two shards
// cannot be compared, and a key that has moved starts on the scale of its new
// server, which may be lower. Where a resource remembers tokens, forget them, or
// let it compare the shard too.
//
// Keys are assigned by their text, before a manager's namespace or key function:
// two keys to which WithKeyFunc gives one ID exclude each other only if they are
// on one shard.
//
// It is safe for concurrent use.
type ShardedManager struct {
	shards []Shard // in the order of their names
}

var _ ports.LockManager = (*ShardedManager)(nil)

// Sharded makes one manager of the managers of several servers. It panics if
// there is no shard, if one has no manager, or if two have one name.
func Sharded(shards ...Shard) *ShardedManager {
	if len(shards) == 0 {
		panic("pglock.Sharded: no shards; give it at least one")
	}
	s := &ShardedManager{slices.Clone(shards)}
	slices.SortFunc(s.shards, func(a, b Shard) int { return strings.Compare(a.Name, b.Name) })
	for i, shard := range s.shards {
		if shard.Locks == nil {
			panic(fmt.Sprintf("pglock.Sharded: shard %q has no manager", shard.Name))
		}
		if i > 0 && shard.Name == s.shards[i-1].Name {
			panic(fmt.Sprintf("pglock.Sharded: two shards are named %q; keys are assigned to names, so each needs one of its own", shard.Name))
		}
	}
	return s
}

// ShardOf returns the shard on which key lives.
func (s *ShardedManager) ShardOf(key string) Shard {
	sum := sha256.Sum256([]byte(key))
	return slices.MaxFunc(s.shards, func(a, b Shard) int {
		return cmp.Compare(weight(sum, a.Name), weight(sum, b.Name))
	})
}

// weight is how much a shard wants a key: the first eight bytes, big-endian, of
// the SHA-256 sum of the key's own sum and the shard's name. It is frozen, as
// SHA256Key is: another one would assign keys differently in an old and a new
// process.
func weight(key [sha256.Size]byte, shard string) uint64 {
	sum := sha256.Sum256(append(key[:], shard...))
	return binary.BigEndian.Uint64(sum[:8])
}

// failed adds the shard's name to an error of an operation on it.
func (s Shard) failed(err error) error {
	if err == nil {
		return nil
	}
	if typed, ok := err.(*ports.LockError); ok {
		return &ports.LockError{Op: typed.Op, Key: typed.Key, Err: fmt.Errorf("shard %q: %w", s.Name, typed.Err)}
	}
	return fmt.Errorf("shard %q: %w", s.Name, err)
}

// Acquire implements ports.DistributedLock.
func (s *ShardedManager) Acquire(ctx context.Context, key string, opts ...ports.AcquireOption) (ports.Lock, error) {
	shard := s.ShardOf(key)
	lock, err := shard.Locks.Acquire(ctx, key, opts...)
	return lock, shard.failed(err)
}

// TryAcquire implements ports.DistributedLock.
func (s *ShardedManager) TryAcquire(ctx context.Context, key string, opts ...ports.AcquireOption) (lock ports.Lock, acquired bool, err error) {
	shard := s.ShardOf(key)
	lock, acquired, err = shard.Locks.TryAcquire(ctx, key, opts...)
	return lock, acquired, shard.failed(err)
}

// Release implements ports.DistributedLock.
func (s *ShardedManager) Release(ctx context.Context, key string) error {
	shard := s.ShardOf(key)
	return shard.failed(shard.Locks.Release(ctx, key))
}

// IsHeld implements ports.DistributedLock.
func (s *ShardedManager) IsHeld(key string) bool { return s.ShardOf(key).Locks.IsHeld(key) }

// Held implements ports.LockRegistry, for all shards.
func (s *ShardedManager) Held() []ports.LockInfo {
	var infos []ports.LockInfo
	for _, shard := range s.shards {
		infos = append(infos, shard.Locks.Held()...)
	}
	oldestFirst(infos)
	return infos
}

// HeldCount implements ports.LockRegistry, for all shards.
func (s *ShardedManager) HeldCount() (n int) {
	for _, shard := range s.shards {
		n += shard.Locks.HeldCount()
	}
	return n
}

// ReleaseAll implements ports.LockRegistry, for all shards side by side.
func (s *ShardedManager) ReleaseAll(ctx context.Context) (released int, err error) {
	var mu sync.Mutex
	err = s.each(func(shard Shard) error {
		n, err := shard.Locks.ReleaseAll(ctx)
		mu.Lock()
		defer mu.Unlock()
		released += n
		return err
	})
	return released, err
}

// Verify has every shard prove that it excludes, side by side; see
// Manager.Verify. For a shard whose manager has no Verify the error wraps
// ports.ErrUnsupported.
func (s *ShardedManager) Verify(ctx context.Context) error {
	return s.each(func(shard Shard) error {
		if m, ok := shard.Locks.(interface{ Verify(context.Context) error }); ok {
			return m.Verify(ctx)
		}
		return fmt.Errorf("%w: its manager cannot verify its setup", ports.ErrUnsupported)
	})
}

// Inspect asks the server of key who holds it and who waits for it; see
// Manager.Inspect. It returns ports.ErrUnsupported if the shard's manager cannot
// tell.
func (s *ShardedManager) Inspect(ctx context.Context, key string) (Inspection, error) {
	shard := s.ShardOf(key)
	m, ok := shard.Locks.(interface {
		Inspect(context.Context, string) (Inspection, error)
	})
	if !ok {
		return Inspection{Key: key}, shard.failed(&ports.LockError{Op: "inspect", Key: key, Err: ports.ErrUnsupported})
	}
	in, err := m.Inspect(ctx, key)
	return in, shard.failed(err)
}

// Evict has the server of key end the sessions that hold it; see Manager.Evict.
// It returns ports.ErrUnsupported if the shard's manager cannot do that.
func (s *ShardedManager) Evict(ctx context.Context, key string) (ended int, err error) {
	shard := s.ShardOf(key)
	m, ok := shard.Locks.(interface {
		Evict(context.Context, string) (int, error)
	})
	if !ok {
		return 0, shard.failed(&ports.LockError{Op: "evict", Key: key, Err: ports.ErrUnsupported})
	}
	ended, err = m.Evict(ctx, key)
	return ended, shard.failed(err)
}

// Close closes the managers of all shards, side by side; see Manager.Close. One
// that has no Close gives back what it holds.
func (s *ShardedManager) Close(ctx context.Context) error {
	return s.each(func(shard Shard) error {
		if m, ok := shard.Locks.(interface{ Close(context.Context) error }); ok {
			return m.Close(ctx)
		}
		_, err := shard.Locks.ReleaseAll(ctx)
		return err
	})
}

// each does something with every shard, side by side, and joins the errors.
func (s *ShardedManager) each(do func(Shard) error) error {
	errs := make([]error, len(s.shards))
	var wg sync.WaitGroup
	for i, shard := range s.shards {
		wg.Go(func() { errs[i] = shard.failed(do(shard)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// setAcquirer is what AcquireAll asks of the manager of a shard.
type setAcquirer interface {
	AcquireAll(ctx context.Context, keys []string, opts ...ports.AcquireOption) (*LockSet, error)
}

// AcquireAll waits for all of keys, on whichever shards, or returns an error and
// holds none. It takes them shard by shard, in the order of the shards' names, and
// within a shard as Manager.AcquireAll does; so calls whose keys overlap cannot
// deadlock with each other, also if their processes have different lists of
// shards. A timeout bounds the whole wait. It returns ports.ErrUnsupported, before
// anything is taken, if the manager of a shard that is needed has no AcquireAll.
func (s *ShardedManager) AcquireAll(ctx context.Context, keys []string, opts ...ports.AcquireOption) (*ShardedSet, error) {
	if len(keys) == 0 {
		return nil, &ports.LockError{Op: "acquire", Err: errNoKeys}
	}
	byShard := make(map[string][]string)
	for _, key := range keys {
		shard := s.ShardOf(key)
		if _, ok := shard.Locks.(setAcquirer); !ok {
			return nil, shard.failed(&ports.LockError{Op: "acquire", Key: key, Err: fmt.Errorf("%w: its manager cannot hold several keys as one", ports.ErrUnsupported)})
		}
		byShard[shard.Name] = append(byShard[shard.Name], key)
	}

	set := &ShardedSet{done: make(chan struct{})}
	start, timeout := time.Now(), ports.NewAcquireOptions(opts...).Timeout
	for _, shard := range s.shards {
		theirs := byShard[shard.Name]
		if len(theirs) == 0 {
			continue
		}
		if err := set.add(ctx, shard, theirs, start, timeout, opts); err != nil {
			set.drop(ctx)
			return nil, shard.failed(err)
		}
	}
	for _, part := range set.parts {
		part.whenEnded(set.end)
	}
	if err := set.Err(); err != nil { // one was lost while others were waited for
		set.drop(ctx)
		return nil, &ports.LockError{Op: "acquire", Key: keys[0], Err: err}
	}
	return set, nil
}

// ShardedSet is one hold of several keys on several shards: a LockSet on each. It
// ends when any of those does: then what the other shards hold is kept until
// Release, so that the work has time to stop. Release it also after a loss.
type ShardedSet struct {
	parts []*LockSet
	done  chan struct{}
	once  sync.Once
	err   error // set before done is closed
}

var _ ports.Lock = (*ShardedSet)(nil)

// add takes the keys of one more shard, within what is left of the timeout.
func (s *ShardedSet) add(ctx context.Context, shard Shard, keys []string, start time.Time, timeout time.Duration, opts []ports.AcquireOption) error {
	if timeout > 0 {
		left := timeout - time.Since(start)
		if left <= 0 {
			return &ports.LockError{Op: "acquire", Key: keys[0], Err: context.DeadlineExceeded}
		}
		opts = append(opts[:len(opts):len(opts)], ports.WithTimeout(left))
	}
	part, err := shard.Locks.(setAcquirer).AcquireAll(ctx, keys, opts...)
	if err != nil {
		return err
	}
	s.parts = append(s.parts, part)
	return nil
}

// end ends the set because of why, if nothing has yet.
func (s *ShardedSet) end(why error) {
	s.once.Do(func() {
		s.err = why
		close(s.done)
	})
}

// Parts returns the holds on the shards, in the order of the shards' names: for
// sqllock.RunTx, which runs on one server. Release the set, not its parts.
func (s *ShardedSet) Parts() []*LockSet { return slices.Clone(s.parts) }

// Infos describes the locks of the set, shard by shard.
func (s *ShardedSet) Infos() []ports.LockInfo {
	var infos []ports.LockInfo
	for _, part := range s.parts {
		infos = append(infos, part.Infos()...)
	}
	return infos
}

// Info implements ports.Lock; it describes the first of the locks.
func (s *ShardedSet) Info() ports.LockInfo { return s.parts[0].Info() }

// Done implements ports.Lock.
func (s *ShardedSet) Done() <-chan struct{} { return s.done }

// Err implements ports.Lock.
func (s *ShardedSet) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Release implements ports.Lock. The shards are asked side by side.
func (s *ShardedSet) Release(ctx context.Context) error {
	return s.release(func(part *LockSet) error { return part.Release(ctx) })
}

// drop gives back what a call has taken that fails. What cannot be given back in
// time is freed with its session, which is ended then.
func (s *ShardedSet) drop(ctx context.Context) {
	_ = s.release(func(part *LockSet) error { return part.release(ctx) })
}

// release has every shard give back what it holds.
func (s *ShardedSet) release(one func(*LockSet) error) error {
	errs := make([]error, len(s.parts))
	var wg sync.WaitGroup
	for i, part := range s.parts {
		wg.Go(func() { errs[i] = one(part) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
