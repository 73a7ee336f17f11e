// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/bfd"
)

const (
	// bfdProcessDir is set in the process that runs lbbfd.
	bfdProcessDir = "MILLRACE_TEST_BFD"

	thirdNode = "node3"
)

func runBFD() {
	config := bfd.DefaultConfig()
	config.State = filepath.Join(os.Getenv(bfdProcessDir), "sessions.json")
	if err := bfd.Run(context.Background(), config, logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A node that is connected to its routers but not to other nodes deprefers its routes and keeps them: if they
// are the last ones, clients reach its local endpoints. Then probes detect that the router loses packets to a
// node, with three agents.
func TestCutOffNode(t *testing.T) {
	w := cutOff(t)
	w.prove()
	w.awaitProof()
	w.loseFromRouter("ip daddr " + canaryAddress)
	w.awaitVerdict(millracev1beta1.ReasonPacketsLost, thirdNode)
}

// cutOff disconnects the node from the others for a while, and returns when all routes are restored.
func cutOff(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	t.Cleanup(func() {
		report := &millracev1beta1.LBNodeReport{}
		if t.Failed() && w.client.Get(context.Background(), client.ObjectKey{Name: thisNode}, report) == nil {
			t.Logf("the LBNodeReport is %+v", report.Status)
		}
	})
	w.switched()
	w.install()
	w.populate()
	w.create(&millracev1beta1.VIPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: "links"},
		Spec:       millracev1beta1.VIPAdvertisementSpec{L2: &millracev1beta1.L2Advertisement{Interfaces: []string{"eth0"}}},
	})
	w.hearRouter()
	w.servePods()
	kubeconfig := w.sharedKubeconfig()
	w.start()
	for i, node := range []string{otherNode, thirdNode} {
		w.join(node, i+2, kubeconfig)
	}
	// Loading three agents' programs takes long under load.
	w.Await(90*time.Second, "the routes of all nodes, none of them to be left", func() bool { return w.isPreferred(0, 3) })
	w.Await(30*time.Second, "a session by BFD, and the node ready", func() bool {
		status := w.report().Status
		return len(status.Sessions) == 1 && status.Sessions[0].BFD != nil && status.Sessions[0].BFD.State == "Up" &&
			meta.IsStatusConditionTrue(status.Conditions, millracev1beta1.ConditionReady)
	})
	w.awaitWatching()

	// Only the tunnel between nodes is blocked at the node's switch port.
	w.switchRule("iifname eth0 udp dport 6081 drop")
	w.switchRule("oifname eth0 udp dport 6081 drop")
	w.switchRule("oifname eth0 udp sport 6081 drop")
	cut := time.Now()
	w.Await(30*time.Second, "the route as one to be left", func() bool { return w.isPreferred(1, 3) })
	t.Logf("low-preference route observed %s after the cut", time.Since(cut).Round(time.Millisecond))
	// The router loses its other paths; the remaining path is the last one.
	w.Configure("router bgp 64500", "neighbor 198.51.100.3 shutdown", "neighbor 198.51.100.4 shutdown")
	w.Await(30*time.Second, "a single path", w.isLast)
	// The others are retained for the router's detection time.
	w.Await(30*time.Second, "only connections to local endpoints", func() bool {
		for range 40 {
			if w.connect() != nil {
				return false
			}
		}
		return true
	})
	w.Await(30*time.Second, "not ready, with a reason", func() bool {
		if !w.isLast() {
			t.Fatal("the last path was withdrawn, or is no longer low-preference")
		}
		status := w.report().Status
		condition := meta.FindStatusCondition(status.Conditions, millracev1beta1.ConditionReady)
		isCutOff := condition.Status == metav1.ConditionFalse && condition.Reason == millracev1beta1.ReasonNodeIsolated
		if isCutOff && len(status.L2VIPs) > 0 {
			t.Errorf("the node still answers for %v on its link while cut off from other endpoints", status.L2VIPs)
		}
		return isCutOff
	})
	w.Await(30*time.Second, "another node that answers for the VIP on the link", func() bool {
		for _, node := range []string{otherNode, thirdNode} {
			report := &millracev1beta1.LBNodeReport{}
			if err := w.client.Get(t.Context(), client.ObjectKey{Name: node}, report); err == nil && slices.Contains(report.Status.L2VIPs, vip) {
				return true
			}
		}
		return false
	})

	run(t, "ip netns exec "+routerSpace+" nft flush chain bridge filter forward")
	w.Configure("router bgp 64500", "no neighbor 198.51.100.3 shutdown", "no neighbor 198.51.100.4 shutdown")
	w.Await(30*time.Second, "the routes of all nodes again, none of them to be left", func() bool {
		if !w.isAnnouncedBy(nodeAddress) {
			t.Fatal("the path was withdrawn")
		}
		return w.isPreferred(0, 3)
	})
	return w
}

func (w *world) switched() {
	w.t.Helper()
	for _, command := range []string{
		"link add br0 type bridge",
		"address delete 198.51.100.1/24 dev eth0",
		"link set eth0 master br0",
		"address add 198.51.100.1/24 dev br0",
		"link set br0 up",
	} {
		run(w.t, "ip -n "+routerSpace+" "+command)
	}
	run(w.t, "ip netns exec "+routerSpace+" ethtool -K eth0 gro on tx off")
	run(w.t, "ip netns exec "+routerSpace+" nft add table bridge filter")
	run(w.t, "ip netns exec "+routerSpace+" nft add chain bridge filter forward { type filter hook forward priority 0 ; }")
}

func (w *world) hearRouter() {
	w.t.Helper()
	// A detection time of 3 s tolerates a loaded machine.
	w.StartBFD(" profile slow\n  detect-multiplier 10\n")
	w.Configure("router bgp 64500", "neighbor "+nodeAddress+" bfd", "neighbor "+nodeAddress+" bfd profile slow")
	peer := &millracev1beta1.LBPeer{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: "router"}, peer); err != nil {
		w.t.Fatal(err)
	}
	peer.Spec.BFD = &millracev1beta1.BFD{DetectMultiplier: 10, ReceiveInterval: &metav1.Duration{Duration: 300 * time.Millisecond}}
	if err := w.client.Update(w.t.Context(), peer); err != nil {
		w.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(bfd.DefaultConfig().Socket), 0o700); err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), bfdProcessDir+"="+w.t.TempDir())
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

func (w *world) servePods() {
	w.t.Helper()
	run(w.t, "ip -n "+routerSpace+" route add 198.18.0.0/15 via "+nodeAddress)
	for i := range 2 {
		pod := podOf(10, 0, i+1)
		run(w.t, "ip address add "+pod.String()+"/32 dev lo")
		w.t.Cleanup(func() { _ = exec.Command("ip", "address", "delete", pod.String()+"/32", "dev", "lo").Run() })
		listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(pod, 8080)))
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = listener.Close() })
		go acceptEach(listener, func(connection net.Conn) { _, _ = connection.Write([]byte("pod")) })
	}
}

func acceptEach(listener net.Listener, f func(net.Conn)) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			f(connection)
		}()
	}
}

func (w *world) sharedKubeconfig() string {
	w.t.Helper()
	text, err := os.ReadFile(w.kubeconfig)
	if err != nil {
		w.t.Fatal(err)
	}
	server := regexp.MustCompile(`server: https://(\S+)`)
	found := server.FindSubmatch(text)
	if found == nil {
		w.t.Fatalf("no server in kubeconfig %s", text)
	}
	listener, err := net.Listen("tcp4", nodeAddress+":0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = listener.Close() })
	go acceptEach(listener, func(from net.Conn) {
		to, err := net.Dial("tcp4", string(found[1]))
		if err != nil {
			return
		}
		defer to.Close()
		go func() { _, _ = io.Copy(to, from) }()
		_, _ = io.Copy(from, to)
	})
	file := filepath.Join(w.t.TempDir(), "kubeconfig")
	shared := server.ReplaceAll(text, []byte("server: https://"+listener.Addr().String()+"\n    tls-server-name: 127.0.0.1"))
	if err := os.WriteFile(file, shared, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return file
}

// join starts another node on the switch, in a namespace of its name, with an agent.
func (w *world) join(node string, id int, kubeconfig string) *agent {
	w.t.Helper()
	port, address := "port"+strconv.Itoa(id), "198.51.100."+strconv.Itoa(id+1)
	w.t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", node).Run() })
	for _, command := range []string{
		"ip netns add " + node,
		"ip -n " + node + " link set lo up",
		"ip -n " + routerSpace + " link add " + port + " type veth peer name eth0 netns " + node,
		"ip netns exec " + routerSpace + " ethtool -K " + port + " gro on tx off",
		"ip -n " + routerSpace + " link set " + port + " master br0",
		"ip -n " + routerSpace + " link set " + port + " up",
		"ip -n " + node + " address add " + address + "/24 dev eth0",
		"ip -n " + node + " link set eth0 up",
	} {
		run(w.t, command)
	}
	w.Configure("router bgp 64500", "neighbor "+address+" remote-as 64512", "address-family ipv4 unicast", "neighbor "+address+" activate")
	if node == thirdNode {
		w.create(&millracev1beta1.LBNode{
			ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: millracev1beta1.LBNodeSpec{ID: int32(id), Addresses: []string{address}},
		})
		w.create(&millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node)}})
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.startAt(node, filepath.Join(filepath.Dir(w.pinRoot), node), kubeconfig, "ip", "netns", "exec", node, self)
}

func (w *world) switchRule(rule string) {
	w.t.Helper()
	run(w.t, "ip netns exec "+routerSpace+" nft add rule bridge filter forward "+rule)
}

func (w *world) awaitWatching() {
	w.t.Helper()
	for _, address := range []string{"198.51.100.3", "198.51.100.4"} {
		w.switchRule("ip saddr " + address + " ip daddr " + nodeAddress + " udp sport 6081 counter")
	}
	counted := regexp.MustCompile(`packets [1-9]\d* bytes`)
	w.Await(30*time.Second, "answers of both other nodes", func() bool {
		out, err := exec.Command("ip", "netns", "exec", routerSpace, "nft", "list", "chain", "bridge", "filter", "forward").CombinedOutput()
		if err != nil {
			w.t.Fatalf("list the rules of the switch: %v: %s", err, out)
		}
		return len(counted.FindAll(out, -1)) == 2
	})
}

func (w *world) paths() map[string]string {
	w.t.Helper()
	var found struct {
		Paths []struct {
			Community struct{ String string }
			Peer      struct {
				PeerID string `json:"peerId"`
			}
		}
	}
	w.Show("show bgp ipv4 unicast "+vip+"/32 json", &found)
	paths := map[string]string{}
	for _, path := range found.Paths {
		paths[path.Peer.PeerID] = path.Community.String
	}
	return paths
}

// isPreferred reports whether the router has all paths, of which left, this node's, are depreferred.
func (w *world) isPreferred(left, all int) bool {
	w.t.Helper()
	paths, marked := w.paths(), 0
	for address, communities := range paths {
		if strings.Contains(communities, "graceful-shutdown") {
			marked++
			if address != nodeAddress {
				return false
			}
		}
	}
	return marked == left && len(paths) == all
}

func (w *world) isAnnouncedBy(address string) bool {
	_, found := w.paths()[address]
	return found
}

// isLast reports whether this node's depreferred path is the only one, and used by the router's kernel.
func (w *world) isLast() bool { return w.isPreferred(1, 1) && w.announced() }

func (w *world) connect() error {
	done := make(chan error)
	go func() {
		// The thread terminates with the goroutine, because it is never unlocked.
		runtime.LockOSThread()
		done <- func() error {
			namespace, err := os.Open("/run/netns/" + routerSpace)
			if err != nil {
				return err
			}
			defer namespace.Close()
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			connection, err := net.DialTimeout("tcp4", vip+":80", 2*time.Second)
			if err != nil {
				return err
			}
			defer connection.Close()
			if err := connection.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
				return err
			}
			answer, err := io.ReadAll(connection)
			if err == nil && string(answer) != "pod" {
				err = errors.New("the pod's answer is " + string(answer))
			}
			return err
		}()
	}()
	return <-done
}
