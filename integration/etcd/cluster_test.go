package etcd

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/holdfast-go/holdfast/ports"
)

// freePorts returns n addresses on which nobody listens.
func freePorts(t testing.TB, n int) (addresses []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer l.Close() // when all are known, so that none comes twice
		addresses = append(addresses, l.Addr().String())
	}
	return addresses
}

// A process of these tests that finds the first of these in its environment is a
// member of a cluster.
const (
	memberName   = "ETCD_TEST_MEMBER"
	memberDir    = "ETCD_TEST_DIR"
	memberPeer   = "ETCD_TEST_PEER"
	memberClient = "ETCD_TEST_CLIENT"
	memberOthers = "ETCD_TEST_CLUSTER"
)

// serve is the life of a member, which ends with its standard input.
func serve() int {
	cfg := config(os.Getenv(memberDir))
	cfg.Name = os.Getenv(memberName)
	peer, client := address(os.Getenv(memberPeer)), address(os.Getenv(memberClient))
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = peer, peer
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = client, client
	cfg.InitialCluster = os.Getenv(memberOthers)
	member, err := embed.StartEtcd(cfg)
	if err != nil {
		return failed(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	member.Close()
	return 0
}

// newCluster starts a cluster of three processes, which the test stops at its end.
func newCluster(t testing.TB) (members []*exec.Cmd, endpoints []string) {
	t.Helper()
	const size = 3
	addresses := freePorts(t, 2*size)
	var initial []string
	for i := range size {
		initial = append(initial, fmt.Sprintf("member-%d=http://%s", i, addresses[i]))
	}
	for i := range size {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(),
			memberName+"="+fmt.Sprint("member-", i), memberDir+"="+t.TempDir(),
			memberPeer+"="+addresses[i], memberClient+"="+addresses[size+i],
			memberOthers+"="+strings.Join(initial, ","))
		cmd.Stderr = os.Stderr
		_, err := cmd.StdinPipe() // it ends with this process
		must(t, err)
		must(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		members = append(members, cmd)
	}
	return members, addresses[size:]
}

func TestAHoldSurvivesTheCrashOfTheLeader(t *testing.T) {
	t.Parallel()
	members, endpoints := newCluster(t)
	client := newClient(t, endpoints...)
	holder, rival := newManager(t, client), newManager(t, newClient(t, endpoints...))
	eventually(t, "the cluster answers", func() bool {
		ctx, cancel := context.WithTimeout(bg, patience)
		defer cancel()
		_, err := client.Get(ctx, "x")
		return err == nil
	})
	lock := acquire(t, holder, "k", ports.WithFencing())
	crashed := 0
	for i, endpoint := range endpoints {
		status, err := client.Status(bg, endpoint)
		must(t, err)
		if status.Leader == status.Header.MemberId {
			must(t, members[i].Process.Kill())
			crashed++
		}
	}
	if crashed != 1 {
		t.Fatalf("%d members led", crashed)
	}
	var other ports.Lock
	eventually(t, "a lock is granted under the next leader", func() (ok bool) {
		var err error
		other, err = rival.Acquire(bg, "other", ports.WithFencing(), ports.WithTimeout(patience))
		return err == nil
	})
	if other.Info().Token <= lock.Info().Token {
		t.Errorf("token %d after %d", other.Info().Token, lock.Info().Token)
	}
	if _, acquired, err := rival.TryAcquire(bg, "k"); acquired || err != nil {
		t.Errorf("acquired %v, %v", acquired, err)
	}
	if err := lock.Err(); err != nil {
		t.Error(err)
	}
	must(t, lock.Release(bg))
	must(t, acquire(t, rival, "k").Release(bg))
	must(t, other.Release(bg))
}
