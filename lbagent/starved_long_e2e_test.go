// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package lbagent

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

type trio struct {
	*world
	// this is the agent under test; third is the agent of the node that fails.
	this, third *agent
	logs        map[string]*controlplane.Log
}

func newTrio(t *testing.T) *trio {
	t.Helper()
	w := newWorld(t)
	w.switched()
	w.install()
	w.populate()
	w.hearRouter()
	w.servePods()
	kubeconfig := w.sharedKubeconfig()
	n := &trio{world: w, logs: map[string]*controlplane.Log{}}
	begin := func(node string) {
		n.logs[node] = &controlplane.Log{}
		w.log = n.logs[node]
	}
	begin(thisNode)
	n.this = w.start()
	begin(otherNode)
	w.join(otherNode, 2, kubeconfig)
	begin(thirdNode)
	n.third = w.join(thirdNode, 3, kubeconfig)
	w.Await(90*time.Second, "the routes of all nodes", func() bool { return w.isPreferred(0, 3) })
	w.Await(30*time.Second, "a session by BFD, and the node ready", func() bool {
		status := w.report().Status
		return len(status.Sessions) == 1 && status.Sessions[0].BFD != nil && status.Sessions[0].BFD.State == "Up" &&
			meta.IsStatusConditionTrue(status.Conditions, millracev1beta1.ConditionReady)
	})
	w.awaitWatching()
	w.Await(30*time.Second, "the routes of all nodes", func() bool { return w.isPreferred(0, 3) })
	return n
}

// die disconnects the third node from the switch, or reconnects it.
func (n *trio) die(dead bool) {
	n.t.Helper()
	state := map[bool]string{true: "down", false: "up"}[dead]
	run(n.t, "ip -n "+routerSpace+" link set port3 "+state)
}

// taken returns how often an agent considered a node failed.
func (n *trio) taken(by, node string) int {
	return strings.Count(n.logs[by].String(), `msg="Node is down: it receives no packets until it answers probes again" logger=watch peer=`+node)
}

func (n *trio) awaitTaken(by string, times int, limit time.Duration) {
	n.t.Helper()
	began := time.Now()
	n.Await(limit, fmt.Sprintf("%s taken for down by %s", thirdNode, by), func() bool { return n.taken(by, thirdNode) >= times })
	n.t.Logf("%s reports %s as down after %s", by, thirdNode, time.Since(began).Round(time.Millisecond))
}

// checkVerdicts checks that agents considered no other node than the third failed.
func (n *trio) checkVerdicts() {
	n.t.Helper()
	for by, log := range n.logs {
		if by == thirdNode {
			continue
		}
		for _, node := range []string{thisNode, otherNode} {
			if times := n.taken(by, node); times > 0 {
				n.t.Errorf("%s reported %s as down %d times", by, node, times)
			}
		}
		for _, words := range []string{"More nodes are down than are left", "The agent is stuck"} {
			if said(log, words) > 0 {
				n.t.Errorf("log of %s contains %q", by, words)
			}
		}
	}
}

// starve limits a process to thousandths of a CPU until feed is called or the test ends.
func starve(t *testing.T, process, thousandths int) (feed func()) {
	t.Helper()
	// With a period of 1 s the process uses its whole share at the start, and is then stopped for long.
	const period = 1_000_000
	root, quota := t.TempDir(), strconv.Itoa(thousandths*period/1000)
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	group := "millrace-test-" + strconv.Itoa(process)
	begin := func() {
		t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
		if err := os.Mkdir(filepath.Join(root, group), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	controllers := []byte(nil)
	if err := unix.Mount("none", root, "cgroup2", 0, ""); err == nil {
		controllers, _ = os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	}
	if strings.Contains(" "+strings.TrimSpace(string(controllers))+" ", " cpu ") {
		write("cgroup.subtree_control", "+cpu")
		begin()
		write(group+"/cpu.max", quota+" "+strconv.Itoa(period))
	} else {
		_ = unix.Unmount(root, 0)
		if err := unix.Mount("none", root, "cgroup", 0, "cpu"); err != nil {
			t.Fatalf("no cgroup with the cpu controller: %v", err)
		}
		begin()
		write(group+"/cpu.cfs_period_us", strconv.Itoa(period))
		write(group+"/cpu.cfs_quota_us", quota)
	}
	write(group+"/cgroup.procs", strconv.Itoa(process))
	fed := false
	feed = func() {
		if fed {
			return
		}
		fed = true
		if text, err := os.ReadFile(filepath.Join(root, group, "cpu.stat")); err == nil {
			t.Logf("cpu.stat: %s", strings.Join(strings.Fields(string(text)), " "))
		}
		_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(process)), 0)
		var err error
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
			if err = os.Remove(filepath.Join(root, group)); err == nil {
				return
			}
		}
		t.Errorf("remove the cgroup: %v", err)
	}
	t.Cleanup(feed)
	return feed
}

// probed returns the maximum number of consecutively failed health checks.
func probed(stop <-chan struct{}) (worst <-chan int) {
	result := make(chan int, 1)
	client := &http.Client{Timeout: 5 * time.Second}
	go func() {
		failed, most := 0, 0
		for {
			response, err := client.Get("http://" + healthPort + "/healthz")
			if failed++; err == nil {
				_ = response.Body.Close()
				if response.StatusCode == http.StatusOK {
					failed = 0
				}
			}
			most = max(most, failed)
			select {
			case <-stop:
				result <- most
				return
			case <-time.After(time.Second):
			}
		}
	}()
	return result
}

// An agent with 2 % of a CPU is slow only: it keeps its sessions, considers no node failed, is not considered
// failed, and is not restarted. Changes are delayed.
func TestStarvedAgent(t *testing.T) {
	n := newTrio(t)
	lost := func() int {
		return said(n.logs[thisNode], "BGP session lost") + said(n.logs[otherNode], "BGP session lost")
	}
	before := lost()
	feed := starve(t, n.this.cmd.Process.Pid, 3)
	stop := make(chan struct{})
	worst := probed(stop)
	keeps := func(limit time.Duration) {
		t.Helper()
		for end := time.Now().Add(limit); time.Now().Before(end); {
			if !n.isAnnouncedBy(nodeAddress) || !n.isAnnouncedBy("198.51.100.3") {
				t.Fatal("a running node lost its route")
			}
		}
	}
	keeps(20 * time.Second)
	n.checkVerdicts()

	n.die(true)
	n.awaitTaken(otherNode, 1, 5*time.Second)
	n.awaitTaken(thisNode, 1, 30*time.Second)
	keeps(15 * time.Second)
	began := time.Now()
	n.replaceVIP()
	n.Await(60*time.Second, "the new VIP announced by both nodes", func() bool {
		var found struct{ Paths []struct{} }
		n.Show("show bgp ipv4 unicast "+otherVIP+"/32 json", &found)
		return len(found.Paths) == 2
	})
	t.Logf("both nodes announce another VIP after %s", time.Since(began).Round(time.Millisecond))
	n.die(false)
	n.Await(60*time.Second, "the third node back", func() bool {
		return strings.Contains(n.logs[thisNode].String(), "Node is no longer considered down")
	})
	close(stop)
	if most := <-worst; most >= 6 {
		t.Errorf("%d consecutive health checks failed: the kubelet would restart the agent", most)
	} else {
		t.Logf("at most %d consecutive health checks failed", most)
	}
	feed()
	n.checkVerdicts()
	if lost() > before {
		t.Error("a session was lost")
	}
}

// An agent that was stopped for longer than all timers considers no node failed on resumption, and forgets
// previous verdicts.
func TestStoppedAmongOthers(t *testing.T) {
	n := newTrio(t)
	n.die(true)
	n.awaitTaken(thisNode, 1, 5*time.Second)
	resume := n.this.stop()
	stopped := time.Now()
	n.Await(20*time.Second, "the route removed after the hold time", func() bool { return !n.isAnnouncedBy(nodeAddress) })
	n.replaceVIP()
	n.die(false)
	n.Await(90*time.Second, "a minute", func() bool { return time.Since(stopped) > 65*time.Second })
	n.checkVerdicts()
	resume()
	resumed := time.Now()
	n.Await(10*time.Second, "the third node back", func() bool {
		return strings.Contains(n.logs[thisNode].String(), "Node is no longer considered down")
	})
	t.Logf("the third node is up again after %s", time.Since(resumed).Round(time.Millisecond))
	n.hasOnlyFrom(10*time.Second, 20*time.Second)
	n.checkVerdicts()
	if times := n.taken(thisNode, thirdNode); times != 1 {
		t.Errorf("%s was reported as down %d times, want once", thirdNode, times)
	}
}

// hasOnlyFrom waits until the router has this node's path to the other VIP, and checks that it had none to
// the removed VIP.
func (n *trio) hasOnlyFrom(limit, watched time.Duration) {
	n.t.Helper()
	look := func() bool {
		if n.isAnnouncedBy(nodeAddress) {
			n.t.Fatal("the agent announces a removed VIP")
		}
		var found struct {
			Paths []struct {
				Peer struct {
					PeerID string `json:"peerId"`
				}
			}
		}
		n.Show("show bgp ipv4 unicast "+otherVIP+"/32 json", &found)
		for _, path := range found.Paths {
			if path.Peer.PeerID == nodeAddress {
				return true
			}
		}
		return false
	}
	began := time.Now()
	n.Await(limit, "the new VIP announced by this node", look)
	n.t.Logf("the new VIP was announced after %s", time.Since(began).Round(time.Millisecond))
	for time.Since(began) < watched {
		look()
	}
}
