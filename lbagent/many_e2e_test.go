// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package lbagent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const (
	// manyVariable is the number of Services in TestOneMore before more are added.
	manyVariable  = "MILLRACE_VIPS"
	createdAtOnce = 8
)

// TestOneMore adds Services to a node that announces many, and prints the time until each VIP is in the
// router's kernel: with a real API server, operator, agent and FRR. The test creates the EndpointSlices.
// Delays are printed, not failed: make bench-vips is for a quiet machine.
func TestOneMore(t *testing.T) {
	many, more := 20, 2
	if text := os.Getenv(manyVariable); text != "" {
		var err error
		if many, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", manyVariable, err)
		}
		more = 10
	}
	w := newWorld(t)
	// An eighth of the node tables is reserved for Cluster frontends. Without room, each change affects all
	// Local ones.
	w.room = (many + 2*more) * 8 / 7
	w.install()
	w.operate()
	w.populateNodes()
	start := time.Now()
	w.createServices(many)
	t.Logf("%d Services were created within %s", many, time.Since(start).Round(time.Millisecond))
	w.Await(30*time.Minute, "all Services have a VIP", func() bool { return w.countVIPs() == many })
	t.Logf("all VIPs were assigned %s after the first creation", time.Since(start).Round(time.Millisecond))
	routes := w.monitorRoutes()
	start = time.Now()
	agent := w.start()
	first := w.awaitArrivals(routes, many)
	t.Logf("in the router's kernel after the start of the agent: first route after %s, all routes after %s",
		first.Sub(start).Round(time.Millisecond), time.Since(start).Round(time.Millisecond))

	var all []phases
	for n := range more {
		w.awaitQuiet()
		took := w.addOne(many+n+1, routes)
		t.Log(took)
		all = append(all, took)
	}
	slices.SortFunc(all, func(a, b phases) int { return cmp.Compare(a.routed, b.routed) })
	t.Logf("one additional Service: median %s, longest %s", all[len(all)/2].routed.Round(time.Millisecond), all[len(all)-1].routed.Round(time.Millisecond))
	t.Logf("resident memory of the agent: %s", residentMemory(t, agent.cmd.Process.Pid))
}

// A node that was cut off becomes ready again; a report may be delayed by 40 s. Then the switch drops long
// packets between nodes: the node reports both and stays ready.
func TestCutOffNodeIsReadyAgain(t *testing.T) {
	w := cutOff(t)
	w.Await(time.Minute, "ready again", func() bool {
		return meta.IsStatusConditionTrue(w.report().Status.Conditions, millracev1beta1.ConditionReady)
	})
	reached := func() *metav1.Condition {
		return meta.FindStatusCondition(w.report().Status.Conditions, millracev1beta1.ConditionNodesReachable)
	}
	w.Await(30*time.Second, "all nodes reached", func() bool { return reached() == nil })
	w.switchRule("udp dport 6081 meta length > 1400 drop")
	w.Await(90*time.Second, "both nodes beyond a narrow path", func() bool {
		condition := reached()
		return condition != nil && condition.Reason == millracev1beta1.ReasonLargePacketsLost &&
			strings.Contains(condition.Message, otherNode) && strings.Contains(condition.Message, thirdNode)
	})
	if !meta.IsStatusConditionTrue(w.report().Status.Conditions, millracev1beta1.ConditionReady) {
		t.Error("not ready because of long packets")
	}
}

// countVIPs lets the API server count, because polling a long list is expensive.
func (w *world) countVIPs() int {
	vips := &metav1.PartialObjectMetadataList{}
	vips.SetGroupVersionKind(millracev1beta1.GroupVersion.WithKind("VIPList"))
	if err := w.client.List(w.t.Context(), vips, client.Limit(1)); err != nil {
		return 0
	}
	count := len(vips.Items)
	if vips.RemainingItemCount != nil {
		count += int(*vips.RemainingItemCount)
	}
	return count
}

type phases struct {
	// created: the API server responded; told: the status of the Service contains the address; routed: the
	// router's kernel has the route.
	created, told, routed time.Duration
	passes                int
	passing               time.Duration
}

func (p phases) String() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%3d ms", d.Milliseconds()) }
	return fmt.Sprintf("created %s, status written %s, in the router's kernel %s; %d passes of the agent took %s",
		ms(p.created), ms(p.told), ms(p.routed), p.passes, ms(p.passing))
}

func (w *world) operate() {
	w.t.Helper()
	w.installOperator()
	w.startOperator(w.buildOperator())
}

func (w *world) installOperator() {
	w.t.Helper()
	for _, file := range []string{"role.yaml", "role_binding.yaml"} {
		text, err := os.ReadFile(filepath.Join("../config/rbac/operator", file))
		if err != nil {
			w.t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			object := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(document), object); err != nil {
				w.t.Fatal(err)
			}
			w.create(object)
		}
	}
	w.create(&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: scraper},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "millrace-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: scraper}},
	})
}

func (w *world) buildOperator(flags ...string) (program string) {
	w.t.Helper()
	program = filepath.Join(w.t.TempDir(), "operator")
	arguments := slices.Concat([]string{"build", "-o", program}, flags, []string{"../cmd/operator"})
	if out, err := exec.Command("go", arguments...).CombinedOutput(); err != nil {
		w.t.Fatalf("build the operator: %v: %s", err, out)
	}
	return program
}

// startOperator runs an operator without leader election until the test ends.
func (w *world) startOperator(program string) *exec.Cmd {
	w.t.Helper()
	kubeconfig, err := w.api.WriteKubeconfig(operatorUser)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(program, "--kubeconfig="+kubeconfig, "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--leader-election-namespace=millrace-system")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	})
	return cmd
}

func (w *world) populateNodes() {
	w.t.Helper()
	for name, address := range map[string]string{thisNode: nodeAddress, otherNode: "198.51.100.3"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.create(node)
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if err := w.client.Status().Update(w.t.Context(), node); err != nil {
			w.t.Fatal(err)
		}
	}
	w.peer("router", func(spec *millracev1beta1.LBPeerSpec) { spec.Router.Address = "198.51.100.1" })
	w.create(&millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}})
	w.create(&millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "many"},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: []string{"198.18.0.0/16"}},
	})
	other := &millracev1beta1.LBNode{}
	w.Await(30*time.Second, "both LBNodes", func() bool {
		return w.client.Get(w.t.Context(), client.ObjectKey{Name: thisNode}, &millracev1beta1.LBNode{}) == nil &&
			w.client.Get(w.t.Context(), client.ObjectKey{Name: otherNode}, other) == nil
	})
	other.Status = millracev1beta1.LBNodeStatus{BootID: "b", ServingBootID: "b"}
	if err := w.client.Status().Update(w.t.Context(), other); err != nil {
		w.t.Fatal(err)
	}
}

// createService creates the n-th Service and its EndpointSlice, with a pod on each node. One in twenty has
// policy Local, because each of these takes a healthCheckNodePort.
func (w *world) createService(ctx context.Context, n int) error {
	objects := &model.Snapshot{}
	addService(objects, n, n%20 == 0, 1, 1)
	service, slice := objects.Services[0], objects.EndpointSlices[0]
	service.UID = ""
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	service.Spec.AllocateLoadBalancerNodePorts = pointer(false)
	slice.AddressType = "IPv4"
	for i := range slice.Endpoints {
		slice.Endpoints[i].Addresses = []string{netip.AddrFrom4([4]byte{198, 19, byte(n >> 7), byte(n<<1 + i)}).String()}
	}
	if err := w.client.Create(ctx, service); err != nil {
		return err
	}
	return w.client.Create(ctx, slice)
}

func (w *world) createServices(count int) {
	w.t.Helper()
	group, ctx := errgroup.WithContext(w.t.Context())
	group.SetLimit(createdAtOnce)
	for n := range count {
		group.Go(func() error { return w.createService(ctx, n+1) })
	}
	if err := group.Wait(); err != nil {
		w.t.Fatal(err)
	}
}

type arrival struct {
	address string
	at      time.Time
}

// monitorRoutes reports routes added to the router's kernel. The socket buffer holds a burst of 20,000.
func (w *world) monitorRoutes() <-chan arrival {
	w.t.Helper()
	space, err := netns.GetFromName(routerSpace)
	if err != nil {
		w.t.Fatal(err)
	}
	defer space.Close()
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	w.t.Cleanup(func() { close(done) })
	if err := netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{
		Namespace: &space, ReceiveBufferSize: 64 << 20, ReceiveBufferForceSize: true,
		// Lost notifications fail the test by missing routes.
		ErrorCallback: func(err error) { w.t.Logf("watch the router's routes: %v", err) },
	}); err != nil {
		w.t.Fatal(err)
	}
	routes := make(chan arrival, 1024)
	go func() {
		defer close(routes)
		for update := range updates {
			if update.Type != unix.RTM_NEWROUTE || update.Dst == nil {
				continue
			}
			select {
			case routes <- arrival{update.Dst.IP.String(), time.Now()}:
			case <-done:
				return
			}
		}
	}()
	return routes
}

// awaitArrivals waits for routes to count addresses, and returns the time of the first.
func (w *world) awaitArrivals(routes <-chan arrival, count int) (first time.Time) {
	w.t.Helper()
	deadline := time.After(5 * time.Minute)
	for arrived := map[string]struct{}{}; len(arrived) < count; {
		select {
		case route := <-routes:
			if first.IsZero() {
				first = route.at
			}
			arrived[route.address] = struct{}{}
		case <-deadline:
			w.t.Fatalf("%d of %d routes are in the router's kernel", len(arrived), count)
		}
	}
	return first
}

func (w *world) addOne(n int, routes <-chan arrival) (took phases) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	watching, err := client.NewWithWatch(w.api.Admin(), client.Options{Scheme: w.client.Scheme()})
	if err != nil {
		w.t.Fatal(err)
	}
	services, err := watching.Watch(ctx, &corev1.ServiceList{}, client.InNamespace("default"),
		client.MatchingFields{"metadata.name": fmt.Sprintf("service-%03d", n)})
	if err != nil {
		w.t.Fatal(err)
	}
	defer services.Stop()
	passes, passing := w.passes()
	start := time.Now()
	if err := w.createService(ctx, n); err != nil {
		w.t.Fatal(err)
	}
	took.created = time.Since(start)
	address := ""
	for address == "" {
		event, open := <-services.ResultChan()
		service, is := event.Object.(*corev1.Service)
		if !open || !is {
			w.t.Fatalf("the Service has no address: %v", event.Object)
		}
		if ingress := service.Status.LoadBalancer.Ingress; len(ingress) > 0 {
			address, took.told = ingress[0].IP, time.Since(start)
		}
	}
	for took.routed == 0 {
		select {
		case route := <-routes:
			if route.address == address {
				took.routed = route.at.Sub(start)
			}
		case <-ctx.Done():
			w.t.Fatalf("no route to %s", address)
		}
	}
	w.awaitQuiet()
	passesNow, passingNow := w.passes()
	took.passes, took.passing = passesNow-passes, passingNow-passing
	return took
}

// awaitQuiet waits until the agent ran no pass for a second. It polls slowly, because with many VIPs the
// response is expensive.
func (w *world) awaitQuiet() {
	w.t.Helper()
	deadline := time.After(time.Minute)
	for last := -1; ; {
		passes, _ := w.passes()
		if passes == last {
			return
		}
		last = passes
		select {
		case <-time.After(time.Second):
		case <-deadline:
			w.t.Fatalf("the agent keeps running passes: %d so far", passes)
		}
	}
}

func (w *world) passes() (count int, took time.Duration) {
	w.t.Helper()
	code, body := w.scrape(scraper)
	if code != http.StatusOK {
		w.t.Fatalf("metrics of the agent: status %d, %s", code, body)
	}
	for line := range strings.Lines(body) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		value, _ := strconv.ParseFloat(text, 64)
		switch name {
		case "millrace_pass_duration_seconds_count":
			count = int(value)
		case "millrace_pass_duration_seconds_sum":
			took = time.Duration(value * float64(time.Second))
		}
	}
	return count, took
}

func residentMemory(t *testing.T, pid int) string {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); name == "VmRSS" || name == "VmHWM" {
			found = append(found, name+" "+strings.TrimSpace(value))
		}
	}
	return strings.Join(found, ", ")
}
