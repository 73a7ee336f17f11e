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
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/test/frr"
	"github.com/millrace-lb/millrace/test/isolated"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

// The tests of this file run the agent as a separate process with a real API server, its programs and maps in
// the kernel, and a real router behind its uplink. They require root.

const (
	// agentProcess is set in the agent's process; the variables below configure it.
	agentProcess = "MILLRACE_TEST_AGENT"
	// agentBoot is the path of a file that replaces the kernel's boot id.
	agentBoot      = "MILLRACE_TEST_BOOT"
	agentHold      = "MILLRACE_TEST_HOLD"
	agentRetention = "MILLRACE_TEST_RETENTION"
	agentState     = "MILLRACE_TEST_STATE"
	agentRoom      = "MILLRACE_TEST_ROOM"
	agentNode      = "MILLRACE_TEST_NODE"

	agentUser = "agent"
	// operatorUser is the service account of config/rbac/operator.
	operatorUser = "system:serviceaccount:millrace-system:millrace-operator"

	healthPort  = "127.0.0.1:7481"
	routerSpace = "router"
	vip         = "203.0.113.10"
	nodeAddress = "198.51.100.2"
)

var served = client.ObjectKey{Namespace: "default", Name: "service-010"}

func TestMain(m *testing.M) {
	if os.Getenv(bfdProcessDir) != "" {
		runBFD()
	}
	if os.Getenv(relayAddress) != "" {
		if err := runRelay(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(agentProcess) == "" {
		isolated.Main(m)
	}
	if err := pretendBoot(os.Getenv(agentBoot)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := runAgent(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pretendBoot replaces the boot id in a mount namespace of this process.
func pretendBoot(file string) error {
	if file == "" {
		return nil
	}
	if err := unix.Mount(file, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s in place of the boot id: %w", file, err)
	}
	return nil
}

func runAgent() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := DefaultConfig()
	config.NodeName = os.Getenv(agentNode)
	config.Kubeconfig = os.Getenv("KUBECONFIG")
	config.PinRoot = os.Getenv(agentProcess)
	config.RemovalGracePeriod, _ = time.ParseDuration(os.Getenv(agentHold))
	if text := os.Getenv(agentRetention); text != "" {
		config.EndpointRetention, _ = time.ParseDuration(text)
	}
	config.StateDir = os.Getenv(agentState)
	if config.Relay = os.Getenv(agentRelay); config.Relay != "" {
		config.LiveBindAddress, config.LiveCertificates = "0", os.Getenv(relayDirectory)
		config.RelayToken = filepath.Join(config.LiveCertificates, "token")
	}
	room, err := strconv.Atoi(os.Getenv(agentRoom))
	if err != nil {
		return fmt.Errorf("%s: %w", agentRoom, err)
	}
	config.MaxFrontends, config.MaxNodeTables, config.MaxEndpointTables, config.MaxEndpoints, config.MaxVIPs = room, room, room, room, room
	config.MaxSourceRanges = 64
	config.Connections = 1024
	config.reportAfter, config.proxyGracePeriod = 2*time.Second, time.Second
	if config.NodeName != thisNode {
		// Shared by all agents of the machine.
		config.Socket, config.BFDSocket = "", ""
	}
	return Run(ctx, config, logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)))
}

type world struct {
	*frr.Router
	t          *testing.T
	api        *controlplane.Server
	client     client.Client
	kubeconfig string
	pinRoot    string
	// stateDir is the checkpoint's directory; empty disables it.
	stateDir string
	hold     time.Duration
	boot     string
	room     int
	log      *controlplane.Log
	// relays are the agents' EndpointSlice relays, or nil.
	relays *relays
}

func run(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Cleanup(func() {
		// A namespace is removed after its deletion returns, and with it its end of the link.
		_ = exec.Command("ip", "link", "delete", "eth0").Run()
		_ = exec.Command("ip", "netns", "delete", routerSpace).Run()
	})
	for _, command := range []string{
		"ip link set lo up",
		"ip netns add " + routerSpace,
		"ip -n " + routerSpace + " link set lo up",
		"ip link add eth0 type veth peer name eth0 netns " + routerSpace,
		"ip address add " + nodeAddress + "/24 dev eth0",
		"ip link set eth0 up",
		"ip -n " + routerSpace + " address add 198.51.100.1/24 dev eth0",
		"ip -n " + routerSpace + " link set eth0 up",
	} {
		run(t, command)
	}
	w := &world{t: t, pinRoot: filepath.Join(mountBPF(t), "millrace"), boot: "first", room: 64}
	w.Router = frr.Start(t, routerSpace, ` neighbor 198.51.100.2 remote-as 64512
 address-family ipv4 unicast
  neighbor 198.51.100.2 activate
 exit-address-family
`)
	w.api = controlplane.Start(t, "..", agentUser, scraper, stranger, operatorUser)
	var err error
	if w.kubeconfig, err = w.api.WriteKubeconfig(agentUser); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, rbacv1.AddToScheme, millracev1beta1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	if w.client, err = client.New(w.api.Admin(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	return w
}

func mountBPF(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		t.Fatalf("mount a bpf file system (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// install applies the CRDs and the agent's RBAC role.
func (w *world) install() {
	w.t.Helper()
	files, err := filepath.Glob("../config/crd/millrace.io_*.yaml")
	if err != nil || len(files) == 0 {
		w.t.Fatalf("%d CRDs, error %v", len(files), err)
	}
	for _, file := range append(files, "../config/rbac/agent/role.yaml", "../config/rbac/metrics_reader.yaml") {
		text, err := os.ReadFile(file)
		if err != nil {
			w.t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, object); err != nil {
			w.t.Fatal(err)
		}
		w.create(object)
	}
	w.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "millrace-agent"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: agentUser}},
	})
	w.createTunnelKey()
	w.Await(30*time.Second, "the API server serves the CRDs", func() bool {
		for _, list := range []client.ObjectList{
			&millracev1beta1.LBNodeList{}, &millracev1beta1.LBNodeReportList{}, &millracev1beta1.VIPList{},
			&millracev1beta1.LBPeerList{}, &millracev1beta1.VIPAdvertisementList{}, &millracev1beta1.VIPRouteList{},
		} {
			if w.client.List(w.t.Context(), list) != nil {
				return false
			}
		}
		return true
	})
}

// createTunnelKey creates the operator's Secret with a seed, readable by the agent.
func (w *world) createTunnelKey() {
	w.t.Helper()
	w.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tunnelkey.Namespace}})
	w.create(&rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: tunnelkey.Namespace, Name: "tunnelkey"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{tunnelkey.SecretName},
			Verbs: []string{"get", "list", "watch"},
		}},
	})
	w.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: tunnelkey.Namespace, Name: "tunnelkey"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tunnelkey"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: agentUser}},
	})
	state := &tunnelkey.State{Phase: tunnelkey.Publishing, Accepted: []tunnelkey.Key{tunnelkey.New(1)}, Seed: flowhash.NewSeed()}
	w.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: tunnelkey.Namespace, Name: tunnelkey.SecretName}, Data: state.Data(),
	})
}

func (w *world) create(object client.Object) {
	w.t.Helper()
	if err := w.client.Create(w.t.Context(), object); err != nil {
		w.t.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
}

func (w *world) populate() {
	w.t.Helper()
	objects := cluster()
	addService(objects, 10, false, 2, 1)
	w.create(objects.Node)
	objects.LBNodes[0].Spec.Addresses = []string{nodeAddress}
	objects.LBNodes[1].Spec.Addresses = []string{"198.51.100.3"}
	for _, lbNode := range objects.LBNodes {
		lbNode.UID = ""
		status := lbNode.Status
		w.create(lbNode)
		if lbNode.Name == otherNode {
			lbNode.Status = status
			if err := w.client.Status().Update(w.t.Context(), lbNode); err != nil {
				w.t.Fatal(err)
			}
		}
		w.create(&millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: lbNode.Name}})
	}
	peer := objects.Peers[0]
	peer.Spec.Router.Address = "198.51.100.1"
	peer.Spec.HoldTime = &metav1.Duration{Duration: 9 * time.Second}
	peer.Spec.ConnectRetryTime = &metav1.Duration{Duration: time.Second}
	w.create(peer)
	w.create(objects.Advertisements[0])
	objects.Services[0].UID = ""
	w.create(objects.Services[0])
	w.create(objects.EndpointSlices[0])
	w.create(objects.VIPs[0])
}

type agent struct {
	t   *testing.T
	cmd *exec.Cmd
}

func (w *world) start() *agent {
	w.t.Helper()
	return w.startAt(thisNode, w.pinRoot, w.kubeconfig, "/proc/self/exe")
}

func (w *world) startAt(node, pinRoot, kubeconfig string, command ...string) *agent {
	w.t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	boot := filepath.Join(w.t.TempDir(), "boot_id")
	if err := os.WriteFile(boot, []byte(w.boot+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), agentProcess+"="+pinRoot, agentNode+"="+node, agentBoot+"="+boot, agentState+"="+w.stateDir, agentHold+"="+w.hold.String(),
		agentRoom+"="+strconv.Itoa(w.room), "KUBECONFIG="+kubeconfig)
	cmd.Env = append(cmd.Env, w.relays.environment()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if w.log != nil {
		cmd.Stderr = io.MultiWriter(os.Stderr, w.log)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	a := &agent{t: w.t, cmd: cmd}
	w.t.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			_ = a.cmd.Process.Kill()
			_ = a.cmd.Wait()
		}
	})
	return a
}

func (a *agent) end(sent os.Signal) error {
	a.t.Helper()
	if err := a.cmd.Process.Signal(sent); err != nil {
		a.t.Fatal(err)
	}
	return a.cmd.Wait()
}

func answers() bool {
	response, err := http.Get("http://" + healthPort + "/readyz")
	if err == nil {
		_ = response.Body.Close()
	}
	return err == nil
}

func ready() bool {
	response, err := http.Get("http://" + healthPort + "/readyz")
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func get[T client.Object](w *world, object T) T {
	w.t.Helper()
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: thisNode}, object); err != nil {
		w.t.Fatal(err)
	}
	return object
}

func (w *world) lbNode() *millracev1beta1.LBNode {
	w.t.Helper()
	return get(w, &millracev1beta1.LBNode{})
}

func (w *world) report() *millracev1beta1.LBNodeReport {
	w.t.Helper()
	return get(w, &millracev1beta1.LBNodeReport{})
}

func (w *world) writes() []controlplane.Write {
	w.t.Helper()
	all, err := w.api.Writes()
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(write controlplane.Write) bool { return write.User != agentUser })
}

func (w *world) announced() bool { return w.KernelRoutes()[vip] == nodeAddress }

func TestAgent(t *testing.T) {
	w := newWorld(t)
	w.stateDir = t.TempDir()
	w.install()
	w.populate()
	first := w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })
	w.Await(10*time.Second, "the reason in the LBNodeReport", func() bool {
		status := w.report().Status
		return meta.IsStatusConditionTrue(status.Conditions, millracev1beta1.ConditionReady) && status.VIPs.Announced == 1
	})
	status := w.report().Status
	if len(status.Interfaces) != 1 || status.Interfaces[0].XDPMode != millracev1beta1.XDPNative ||
		len(status.Sessions) != 1 || status.Sessions[0].State != millracev1beta1.SessionEstablished ||
		status.XDPModes != "Native" || status.VIPs.Programmed != 1 || len(status.VIPs.Withheld) > 0 {
		t.Errorf("status %+v", status)
	}
	w.awaitBoot("serving for the first time", millracev1beta1.LBNodeStatus{BootID: "first", ServingBootID: "first"})

	before := len(w.writes())
	time.Sleep(5 * time.Second)
	if idle := w.writes()[before:]; len(idle) > 0 {
		t.Errorf("writes without any change: %+v", idle)
	}

	w.restart(first, syscall.SIGTERM)
	second := w.start()
	w.awaitBack()
	w.awaitRecordedSessions(2)
	w.restart(second, syscall.SIGKILL)
	third := w.start()
	w.awaitBack()

	w.reboot(third)
	w.checkHealthPort()
	w.moveEndpoints()
	w.removeVIP()
	w.checkWrites()
	w.checkHistory()
}

// reboot restarts the agent with another boot id. Its data plane cannot be opened at first, but the boot must
// be reported anyway.
func (w *world) reboot(a *agent) {
	w.t.Helper()
	if err := a.end(syscall.SIGTERM); err != nil {
		w.t.Errorf("the agent exited: %v", err)
	}
	good := w.pinRoot
	// Opening the data plane fails, because this is not a BPF file system.
	w.boot, w.pinRoot = "second", filepath.Join(w.t.TempDir(), "missing")
	failing := w.start()
	if err := failing.cmd.Wait(); err == nil {
		w.t.Error("the agent exited without an error although there is no BPF file system")
	}
	w.pinRoot = good
	w.awaitBoot("booted, not serving", millracev1beta1.LBNodeStatus{BootID: "second", ServingBootID: "first"})
	w.start()
	w.awaitBack()
	w.awaitBoot("serving again", millracev1beta1.LBNodeStatus{BootID: "second", ServingBootID: "second"})
}

func (w *world) awaitBoot(what string, want millracev1beta1.LBNodeStatus) {
	w.t.Helper()
	w.Await(20*time.Second, "LBNode "+what, func() bool { return equality.Semantic.DeepEqual(w.lbNode().Status, want) })
}

// checkWrites checks that the agent wrote only its own statuses, and the LBNode no more often than the boots
// require.
func (w *world) checkWrites() {
	w.t.Helper()
	identities := 0
	for _, write := range w.writes() {
		// The API server reports the unfinished request of a killed agent as a timeout.
		isUnfinished := write.Code == http.StatusGatewayTimeout
		if write.Resource != "lbnodes" && write.Resource != "lbnodereports" || write.Subresource != "status" || write.Name != thisNode ||
			write.Code != http.StatusOK && !isUnfinished {
			w.t.Errorf("unexpected write: %+v", write)
		}
		if write.Resource == "lbnodes" && !isUnfinished {
			identities++
		}
	}
	if identities != 3 {
		w.t.Errorf("the LBNode was written %d times in two boots, want 3", identities)
	}
}

func (w *world) restart(a *agent, sent os.Signal) {
	w.t.Helper()
	began := time.Now()
	err := a.end(sent)
	if sent == syscall.SIGTERM && (err != nil || time.Since(began) > 2*time.Second) {
		w.t.Errorf("the agent exited with %v after %s", err, time.Since(began))
	}
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		if !w.announced() {
			w.t.Fatalf("the route was withdrawn after %s", sent)
		}
	}
}

// awaitBack waits until the agent is ready, and checks that the router keeps the route.
func (w *world) awaitBack() {
	w.t.Helper()
	w.Await(30*time.Second, "the new agent ready", func() bool {
		if !w.announced() {
			w.t.Fatal("the route was withdrawn while the new agent started")
		}
		return ready()
	})
}

// checkHealthPort changes the Service to policy Local and checks the agent's reply at its
// healthCheckNodePort.
func (w *world) checkHealthPort() {
	w.t.Helper()
	w.makeLocal()
	w.awaitHealth("two endpoints here", http.StatusOK, "2")
	proxy, err := net.Listen("tcp", "127.0.0.1:10256")
	if err != nil {
		w.t.Fatal(err)
	}
	w.awaitHealth("left to a service proxy", 0, "")
	if err := proxy.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.awaitHealth("the service proxy removed", http.StatusOK, "2")
}

func (w *world) makeLocal() {
	w.t.Helper()
	service := &corev1.Service{}
	if err := w.client.Get(w.t.Context(), served, service); err != nil {
		w.t.Fatal(err)
	}
	service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	if err := w.client.Update(w.t.Context(), service); err != nil {
		w.t.Fatal(err)
	}
}

// awaitHealth waits for a status and weight at the healthCheckNodePort; status 0 means a refused connection.
func (w *world) awaitHealth(what string, status int, weight string) {
	w.t.Helper()
	service := &corev1.Service{}
	if err := w.client.Get(w.t.Context(), served, service); err != nil {
		w.t.Fatal(err)
	}
	url := fmt.Sprintf("http://%s/healthz", net.JoinHostPort(nodeAddress, strconv.Itoa(int(service.Spec.HealthCheckNodePort))))
	w.Await(20*time.Second, "health checks: "+what, func() bool {
		response, err := http.Get(url)
		if err != nil {
			return status == 0
		}
		_ = response.Body.Close()
		return response.StatusCode == status && response.Header.Get("X-Load-Balancing-Endpoint-Weight") == weight
	})
}

// moveEndpoints moves the endpoints of the Local Service to the other node: the route is withdrawn, with a
// reason.
func (w *world) moveEndpoints() {
	w.t.Helper()
	slice := &discoveryv1.EndpointSlice{}
	if err := w.client.Get(w.t.Context(), served, slice); err != nil {
		w.t.Fatal(err)
	}
	for i := range slice.Endpoints {
		slice.Endpoints[i].NodeName = pointer(otherNode)
	}
	if err := w.client.Update(w.t.Context(), slice); err != nil {
		w.t.Fatal(err)
	}
	w.Await(10*time.Second, "no route without an endpoint", func() bool { return !w.announced() })
	w.awaitHealth("no endpoint here", http.StatusServiceUnavailable, "0")
	w.Await(10*time.Second, "the problem in the LBNodeReport", func() bool {
		vips := w.report().Status.VIPs
		return vips.Announced == 0 && slices.Equal(vips.Withheld, []millracev1beta1.WithheldCount{{Reason: "NoLocalEndpoint", Count: 1}})
	})
}

func (w *world) removeVIP() {
	w.t.Helper()
	object := &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: vip}}
	if err := w.client.Delete(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
	// Changes of counters are written twice a minute.
	w.Await(45*time.Second, "the LBNodeReport without VIPs", func() bool { return w.report().Status.VIPs.Programmed == 0 })
}
