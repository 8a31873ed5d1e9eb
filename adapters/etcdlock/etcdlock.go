// Package etcdlock makes lock managers on etcd, for a service that has outgrown
// the locks of one PostgreSQL: it changes its constructor, and nothing else.
//
// A session is a lease of etcd, which its process renews; a lock is a key that
// lives as long as the lease. What the package promises is what a manager
// promises: one holder per key and cluster for as long as its lease lives; a holder
// that is told of a loss before anybody else can have the lock, if the network
// breaks; and nothing left held in any doubt. etcd itself survives the loss of a
// minority of its members, and with it the locks do.
//
// It differs from locks on PostgreSQL in this:
//
//   - A crash frees the lock only when the lease has run out, a second after the
//     liveness window (pglock.WithLivenessWindow) at the earliest, in whole seconds.
//     PostgreSQL notices a closed connection at once. When etcd elects a leader,
//     every lease is extended to its full time.
//   - There is no transaction on the lock's session: sqllock.RunTx and RunConn
//     return ports.ErrUnsupported. A resource is guarded by a fencing token.
//   - A fencing token is the revision at which the lock was taken. It grows with
//     every write to the cluster and costs nothing. It falls back if the cluster is
//     restored from a snapshot without bumping its revision (etcdutl snapshot
//     restore --bump-revision).
//   - A wait is a watch, not a place in a queue: when a lock is released, all
//     processes that wait for it are woken, and one gets it. No order is promised
//     between processes, and shared holders that come one after the other can keep
//     an exclusive one waiting. Goroutines of one manager are served in order, as
//     always.
//   - The keys are a scheme of this package. They do not exclude the mutexes of
//     etcd's own concurrency package, whose sessions are used here, or etcdctl lock.
//   - Locks exclude within one cluster, and within one namespace if the client has
//     one (client/v3/namespace). LockInfo.Database is the ID of the cluster, in
//     hexadecimal digits, and LockInfo.PID the ID of the lease.
//   - Each hold has a lease of its own. With pglock.WithSharedSessions, Acquire and
//     TryAcquire return ports.ErrUnsupported.
//   - Manager.Inspect sees holders, and no waiters. Manager.Verify need not be
//     called: etcd excludes by one transaction, which nothing between client and
//     server can divide.
//
// A lock and its release cost a read and four small writes, which the cluster makes
// durable one after the other; two of them where locks follow each other closely. A
// process that waits reads, and sets up its watch, each half a second, and writes
// nothing. That is right for jobs and leaders, not for a lock per request.
//
// With etcd's access control, a client needs read and write permission on keys that
// begin with "holdfast/".
package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/holdfast-go/holdfast/pglock"
	"github.com/holdfast-go/holdfast/ports"
)

const (
	// leaseMargin is how much longer a lease lasts than the liveness window: a
	// lock that is waited for on the session of a hold may keep that hold's checks
	// for a moment, and the holder must be told before the lease runs out.
	leaseMargin = time.Second

	// revokeLimit bounds the attempt to end a lease sooner than it would run out.
	revokeLimit = 5 * time.Second
)

// New makes a manager of locks in the cluster of client. It sends nothing. The
// client stays the caller's: close it after the manager. Options that speak of
// connections, such as pglock.WithMaxSessions, are about leases here; without it,
// there is no bound. It panics if client is nil.
func New(client *clientv3.Client, opts ...pglock.Option) *pglock.Manager {
	return pglock.NewManager(NewPool(client), append([]pglock.Option{pglock.WithoutVerification()}, opts...)...)
}

// Pool is a ports.SessionPool of leases. New is the way to use it; a Pool of one's
// own is for what wraps sessions, or proves their laws.
type Pool struct {
	client *clientv3.Client
	inUse  atomic.Int64
}

var (
	_ ports.SessionPool = (*Pool)(nil)
	_ ports.Inspector   = (*Pool)(nil)
)

// NewPool makes a pool. It panics if client is nil.
func NewPool(client *clientv3.Client) *Pool {
	if client == nil {
		panic("etcdlock: nil client; make one with clientv3.New")
	}
	return &Pool{client: client}
}

// Open implements ports.SessionPool. It asks nothing of the server: a session gets
// its lease with its first lock.
func (p *Pool) Open(ctx context.Context) (ports.Session, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p.inUse.Add(1)
	s := &session{pool: p, client: p.client, locks: make(map[string]int64)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Usage implements ports.SessionPool. There is no limit.
func (p *Pool) Usage() (inUse, limit int) { return int(p.inUse.Load()), 0 }

// Inspect implements ports.Inspector.
func (p *Pool) Inspect(ctx context.Context, id int64) ([]ports.SessionInfo, error) {
	resp, err := p.client.Get(ctx, directory(id), clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	var infos []ports.SessionInfo
	for _, kv := range resp.Kvs {
		mode := ports.Shared
		if string(kv.Key) == lockKey(id, ports.Exclusive, 0) {
			mode = ports.Exclusive
		}
		infos = append(infos, ports.SessionInfo{
			PID: int(kv.Lease), Granted: true, Mode: mode, HolderID: string(kv.Value), Database: cluster(resp.Header),
		})
	}
	return infos, nil
}

// Evict implements ports.Inspector: it ends the lease.
func (p *Pool) Evict(ctx context.Context, id int64, pid int) (bool, error) {
	resp, err := p.client.Get(ctx, directory(id), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return false, err
	}
	for _, kv := range resp.Kvs {
		if int(kv.Lease) != pid || kv.Lease == 0 {
			continue
		}
		_, err := p.client.Revoke(ctx, clientv3.LeaseID(kv.Lease))
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return false, nil // it has just ended
		}
		return err == nil, err
	}
	return false, nil
}

// directory is what the keys of one lock begin with, and no other key.
func directory(id int64) string { return fmt.Sprintf("holdfast/%d/", id) }

// lockKey is the key of a hold: there is one for an exclusive hold, and one a lease
// for shared ones.
func lockKey(id int64, mode ports.Mode, lease clientv3.LeaseID) string {
	if mode == ports.Exclusive {
		return directory(id) + "exclusive"
	}
	return fmt.Sprintf("%sshared/%x", directory(id), int64(lease))
}

// cluster names the cluster that has answered.
func cluster(h *etcdserverpb.ResponseHeader) string { return fmt.Sprintf("%x", h.GetClusterId()) }

var errDestroyed = fmt.Errorf("%w: destroyed by its user", ports.ErrSessionEnded)

// session implements ports.Session as a lease, which is there from the first lock
// that was free.
type session struct {
	pool   *Pool
	client *clientv3.Client
	ctx    context.Context // ends with Recycle and Destroy
	cancel context.CancelFunc
	once   sync.Once // Recycle or Destroy, whichever comes first

	mu    sync.Mutex
	lease *concurrency.Session // nil if there is none; guarded by mu

	// Only the goroutine that uses the session touches these: locks has the keys of
	// the locks that it holds, and the revision at which each was taken; seen is a
	// revision at which all of them were there.
	locks map[string]int64
	seen  int64
}

var _ interface {
	ports.Session
	ports.Watcher
} = (*session)(nil)

// command runs one command with a context that ends with the session too, and says
// what an error of it means for the session.
func (s *session) command(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := s.ctx.Err()
	if err == nil {
		err = do(ctx)
	}
	switch {
	case err == nil, errors.Is(err, ports.ErrSessionEnded):
		return err
	case s.ctx.Err() != nil:
		return errDestroyed
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("%w: %w", ports.ErrSessionEnded, err)
	default:
		return err
	}
}

// leaseID is the session's lease; clientv3.NoLease if it has none.
func (s *session) leaseID() clientv3.LeaseID {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return clientv3.NoLease
	}
	return s.lease.Lease()
}

// renew has the server count the time of the lease from now on. It is one round
// trip, unlike Lease.KeepAliveOnce, which tries again without a pause where there
// is no server.
func (s *session) renew(ctx context.Context) error {
	id := s.leaseID()
	if id == clientv3.NoLease {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // which ends the stream
	stream, err := clientv3.RetryLeaseClient(s.client).LeaseKeepAlive(clientv3.WithRequireLeader(ctx))
	if err != nil {
		return clientv3.ContextError(ctx, err)
	}
	if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return clientv3.ContextError(ctx, err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return clientv3.ContextError(ctx, err)
	}
	if resp.GetTTL() <= 0 {
		return rpctypes.ErrLeaseNotFound
	}
	return nil
}

// Lock implements ports.Session. It reads first: a lock that somebody has costs no
// write, however long it is waited for.
func (s *session) Lock(ctx context.Context, r ports.LockRequest) (g ports.Grant, err error) {
	deadline := time.Now().Add(r.Wait)
	err = s.command(ctx, func(ctx context.Context) error {
		if err := s.renew(ctx); err != nil {
			return err
		}
		for {
			free, revision, err := s.look(ctx, r)
			if err != nil {
				return err
			}
			if free {
				if g, err = s.take(ctx, r); err != nil || g.Granted {
					return err
				}
			}
			if time.Until(deadline) <= 0 {
				return nil
			}
			if free {
				continue // somebody came first: look who, and since when
			}
			if g.Interrupted = !s.await(ctx, r, revision, deadline); g.Interrupted {
				return nil
			}
		}
	})
	if err != nil {
		return ports.Grant{}, err
	}
	g.PID = int(s.leaseID())
	return g, nil
}

// rivals is the range of keys of which none may be there for r to be granted.
func rivals(r ports.LockRequest) (key string, opts []clientv3.OpOption) {
	if r.Mode == ports.Shared {
		return lockKey(r.ID, ports.Exclusive, 0), nil
	}
	return directory(r.ID), []clientv3.OpOption{clientv3.WithPrefix()}
}

// look reports whether the lock is free for r, and at which revision that was so.
func (s *session) look(ctx context.Context, r ports.LockRequest) (free bool, revision int64, err error) {
	key, opts := rivals(r)
	resp, err := s.client.Get(ctx, key, append(opts, clientv3.WithLimit(1), clientv3.WithKeysOnly())...)
	if err != nil {
		return false, 0, err
	}
	return len(resp.Kvs) == 0, resp.Header.GetRevision(), nil
}

// take takes the lock, in one transaction that finds it free or does nothing.
func (s *session) take(ctx context.Context, r ports.LockRequest) (ports.Grant, error) {
	lease, err := s.grantLease(ctx, r.Liveness)
	if err != nil {
		return ports.Grant{}, err
	}
	key := lockKey(r.ID, r.Mode, lease)
	rival, opts := rivals(r)
	none := clientv3.Compare(clientv3.CreateRevision(rival), "=", 0)
	if len(opts) > 0 {
		none = none.WithPrefix()
	}
	resp, err := s.client.Txn(ctx).
		If(none, clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, r.HolderID, clientv3.WithLease(lease))).
		Commit()
	if err != nil || !resp.Succeeded {
		return ports.Grant{}, err
	}
	revision := resp.Header.GetRevision()
	s.locks[key], s.seen = revision, revision
	g := ports.Grant{Granted: true, Database: cluster(resp.Header)}
	if r.Fencing {
		g.Token = ports.Token(revision)
	}
	return g, nil
}

// grantLease gets the session a lease, if it has none.
func (s *session) grantLease(ctx context.Context, liveness time.Duration) (clientv3.LeaseID, error) {
	if id := s.leaseID(); id != clientv3.NoLease {
		return id, nil
	}
	if liveness <= 0 {
		liveness = pglock.DefaultLivenessWindow
	}
	seconds := int64((liveness + leaseMargin + time.Second - 1) / time.Second)
	granted, err := s.client.Grant(ctx, seconds)
	if err != nil {
		return clientv3.NoLease, err
	}
	lease, err := concurrency.NewSession(s.client, concurrency.WithLease(granted.ID), concurrency.WithContext(s.ctx))
	if err != nil {
		revoke(s.client, granted.ID)
		return clientv3.NoLease, err
	}
	s.mu.Lock()
	s.lease = lease
	s.mu.Unlock()
	if s.ctx.Err() != nil { // Destroy came before it could see the lease
		revoke(s.client, granted.ID)
	}
	return granted.ID, nil
}

// revoke ends a lease, as far as the server can be reached; it runs out otherwise.
func revoke(client *clientv3.Client, id clientv3.LeaseID) {
	go func() {
		ctx, cancel := context.WithTimeout(client.Ctx(), revokeLimit)
		defer cancel()
		_, _ = client.Revoke(ctx, id)
	}()
}

// await waits until something of what is in the way of r has gone after revision,
// or the deadline. It returns false if the watch has ended for another reason, such
// as a member that has lost its leader.
func (s *session) await(ctx context.Context, r ports.LockRequest, revision int64, deadline time.Time) bool {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	key, opts := rivals(r)
	opts = append(opts, clientv3.WithRev(revision+1), clientv3.WithFilterPut())
	for resp := range s.client.Watch(clientv3.WithRequireLeader(ctx), key, opts...) {
		if len(resp.Events) > 0 {
			return true
		}
	}
	return ctx.Err() != nil
}

// Unlock implements ports.Session.
func (s *session) Unlock(ctx context.Context, id int64, mode ports.Mode) (held bool, err error) {
	key := lockKey(id, mode, s.leaseID())
	err = s.command(ctx, func(ctx context.Context) error {
		revision, ok := s.locks[key]
		if ok {
			resp, err := s.client.Txn(ctx).
				If(clientv3.Compare(clientv3.CreateRevision(key), "=", revision)).
				Then(clientv3.OpDelete(key)).
				Commit()
			if err != nil {
				return err
			}
			delete(s.locks, key)
			held = resp.Succeeded
		}
		if held {
			return nil
		}
		return s.renew(ctx) // has it ended?
	})
	return held, err
}

// Check implements ports.Session. It renews the lease, without which there is
// nothing to check; if full it also reads the keys of the locks.
func (s *session) Check(ctx context.Context, full bool) (pid int, err error) {
	err = s.command(ctx, func(ctx context.Context) error {
		if err := s.renew(ctx); err != nil || !full {
			return err
		}
		var seen int64 // by the first read: what is there later was there then
		for key, revision := range s.locks {
			resp, err := s.client.Get(ctx, key, clientv3.WithKeysOnly())
			if err != nil {
				return err
			}
			if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != revision {
				return gone(key)
			}
			if seen == 0 {
				seen = resp.Header.GetRevision()
			}
		}
		s.seen = max(s.seen, seen)
		return nil
	})
	return int(s.leaseID()), err
}

// gone says that the key of a lock is no longer there, or no longer ours.
func gone(key string) error {
	return fmt.Errorf("%w: its key %q was deleted, or its lease has run out", ports.ErrSessionEnded, key)
}

// Watch implements ports.Watcher: it waits for the end of the key of a lock.
func (s *session) Watch(ctx context.Context) error {
	err := s.command(ctx, s.watch)
	if err == nil && s.ctx.Err() != nil {
		return errDestroyed
	}
	return err
}

// watch returns when ctx ends, if nothing else does.
func (s *session) watch(ctx context.Context) error {
	for key := range s.locks {
		// One key is enough: all end with the lease. What else can happen to the
		// others is found by a full check, and so is everything if the watch breaks.
		for resp := range s.client.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithRev(s.seen+1), clientv3.WithFilterPut()) {
			if len(resp.Events) > 0 {
				return gone(key)
			}
		}
		break
	}
	<-ctx.Done()
	return nil
}

// Recycle implements ports.Session: leases are not kept, so it ends this one.
func (s *session) Recycle(ctx context.Context) bool {
	if len(s.locks) > 0 {
		s.Destroy()
		return false
	}
	err := s.command(ctx, func(ctx context.Context) error {
		id := s.leaseID()
		if id == clientv3.NoLease {
			return nil
		}
		_, err := s.client.Revoke(ctx, id)
		return err
	})
	if err != nil {
		s.Destroy()
		return false
	}
	s.close()
	return true
}

// Destroy implements ports.Session. The lease is revoked in the background, for as
// long as that can be sooner than its end.
func (s *session) Destroy() {
	// The lease is looked at after the end: one that a command is getting in this
	// moment is revoked there.
	if s.close() && s.leaseID() != clientv3.NoLease {
		revoke(s.client, s.leaseID())
	}
}

// close ends the client's side, and reports whether it was not ended before.
func (s *session) close() (first bool) {
	s.once.Do(func() {
		first = true
		s.cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lease != nil {
			<-s.lease.Done() // the end of its context ends it
		}
		s.pool.inUse.Add(-1)
	})
	return first
}
