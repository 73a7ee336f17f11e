// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Resources with their namespace.
const (
	passwords  = "millrace-bgp/secrets"
	tunnelKeys = "millrace-system/secrets"
)

func run(t *testing.T, clients *Clients) *Source {
	t.Helper()
	source, err := New(clients, "node1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = source.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return source
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout after 20 s: %s", what)
		}
	}
}

func awaitChange(t *testing.T, source *Source, what string) {
	t.Helper()
	select {
	case <-source.Changed():
	case <-time.After(20 * time.Second):
		t.Fatalf("no change reported within 20 s: %s", what)
	}
}

func service(name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

func (s *apiServer) watched(t *testing.T) {
	t.Helper()
	await(t, "watches of everything", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.watchers) == len(kinds)
	})
}

func TestSnapshot(t *testing.T) {
	s := newAPIServer(t)
	s.send(t, "ADDED", "services", service("web"))
	s.send(t, "ADDED", "endpointslices", &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}})
	s.send(t, "ADDED", "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	s.send(t, "ADDED", "vips", &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.1"}})
	s.send(t, "ADDED", "lbnodes", &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	s.send(t, "ADDED", "lbpeers", &millracev1beta1.LBPeer{ObjectMeta: metav1.ObjectMeta{Name: "router"}})
	s.send(t, "ADDED", "viproutes", &millracev1beta1.VIPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "edge"}})
	s.send(t, "ADDED", "vipadvertisements", &millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}})
	source := s.start(t)
	awaitChange(t, source, "the first lists")
	snapshot := source.Snapshot()
	if snapshot.NodeName != "node1" || snapshot.Node == nil || len(snapshot.Services) != 1 || len(snapshot.EndpointSlices) != 1 ||
		len(snapshot.VIPs) != 1 || len(snapshot.LBNodes) != 1 || len(snapshot.Peers) != 1 || len(snapshot.Advertisements) != 1 ||
		len(snapshot.Routes) != 1 {
		t.Errorf("snapshot %+v is incomplete", snapshot)
	}
	if lbNode := source.LBNode(); lbNode == nil || lbNode.Name != "node1" {
		t.Errorf("LBNode = %v, want node1", lbNode)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range []string{"nodes", "lbnodereports"} {
		if got, want := s.selectors[resource], "metadata.name=node1"; got != want {
			t.Errorf("selector for %s = %q, want %q", resource, got, want)
		}
	}
	// VIPRoutes may refer to headless Services.
	if got := s.selectors["endpointslices"]; got != "" {
		t.Errorf("selector for EndpointSlices = %q, want none", got)
	}
}

// Changed waits for all kinds, including one whose CRD is installed late.
func TestGatedOnSync(t *testing.T) {
	s := newAPIServer(t)
	s.missing = "lbpeers"
	s.send(t, "ADDED", "services", service("web"))
	source := s.start(t)
	await(t, "the Service", func() bool { return len(source.Snapshot().Services) == 1 })
	select {
	case <-source.Synced():
		t.Fatal("Synced is closed without LBPeers")
	case <-source.Changed():
		t.Fatal("change reported before all kinds were listed")
	case <-time.After(5 * coalesceDelay):
	}
	s.mu.Lock()
	s.missing = ""
	s.mu.Unlock()
	awaitChange(t, source, "the last kind")
	select {
	case <-source.Synced():
	default:
		t.Error("change reported before Synced was closed")
	}
}

func TestBurstIsOneChange(t *testing.T) {
	s := newAPIServer(t)
	source := s.start(t)
	awaitChange(t, source, "the first lists")
	s.watched(t)
	began := time.Now()
	for i := range 200 {
		s.send(t, "ADDED", "services", service(fmt.Sprint("service-", i)))
	}
	changes := 0
	await(t, "all Services and quiet", func() bool {
		select {
		case <-source.Changed():
			changes++
			return false
		case <-time.After(4 * coalesceDelay):
			return len(source.Snapshot().Services) == 200
		}
	})
	if most := 2 + int(time.Since(began)/coalesceDelay); changes < 1 || changes > most {
		t.Errorf("%d reported changes, want 1 to %d", changes, most)
	}
}

func TestVIPIsReportedSoon(t *testing.T) {
	for name, test := range map[string]struct {
		// events and arrivals are the input times; told is when signals are expected.
		events, arrivals, told []time.Duration
	}{
		"only a Service":          {events: []time.Duration{0}, told: []time.Duration{coalesceDelay}},
		"a Service, then its VIP": {events: []time.Duration{0}, arrivals: []time.Duration{10}, told: []time.Duration{10 + vipDelay}},
		"events after a VIP":      {arrivals: []time.Duration{0}, events: []time.Duration{1}, told: []time.Duration{vipDelay}},
		"late VIP": {
			events: []time.Duration{0}, arrivals: []time.Duration{coalesceDelay - 1, coalesceDelay + 1}, told: []time.Duration{coalesceDelay, coalesceDelay + 1 + vipDelay},
		},
		"series of VIPs": {arrivals: []time.Duration{0, vipDelay - 1}, told: []time.Duration{2*vipDelay - 1}},
		"long series of VIPs": {
			arrivals: []time.Duration{0, vipDelay - 1, 2*vipDelay - 2, 3*vipDelay - 3, 4*vipDelay - 4}, told: []time.Duration{coalesceDelay, 5*vipDelay - 4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				s := &Source{events: make(chan struct{}, 1), arrivals: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
				start := time.Now()
				var told []time.Duration
				go func() { _ = s.coalesce(ctx) }()
				go func() {
					for {
						select {
						case <-ctx.Done():
							return
						case <-s.changed:
							told = append(told, time.Since(start))
						}
					}
				}()
				for channel, times := range map[chan struct{}][]time.Duration{s.events: test.events, s.arrivals: test.arrivals} {
					for _, at := range times {
						time.AfterFunc(at, func() { signal(channel) })
					}
				}
				time.Sleep(time.Second)
				cancel()
				synctest.Wait()
				if !slices.Equal(told, test.told) {
					t.Errorf("changes reported after %v, want %v", told, test.told)
				}
			})
		})
	}
}

// Reports are signaled separately and do not delay Changed.
func TestReport(t *testing.T) {
	s := newAPIServer(t)
	s.missing = "lbnodereports"
	source := s.start(t)
	awaitChange(t, source, "all kinds but LBNodeReport")
	if report := source.Report(); report != nil {
		t.Errorf("report = %+v, want nil", report)
	}
	s.mu.Lock()
	s.missing = ""
	s.mu.Unlock()
	s.watched(t)
	report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{
		Name: "node1", OwnerReferences: []metav1.OwnerReference{{Name: "node1"}},
	}}
	for _, version := range []string{"v1", "v2"} {
		report.Status.Version = version
		s.send(t, map[string]string{"v1": "ADDED", "v2": "MODIFIED"}[version], "lbnodereports", report)
		await(t, "the report of "+version, func() bool {
			<-source.Reported()
			return source.Report() != nil && source.Report().Status.Version == version
		})
	}
	if got := source.Report(); len(got.OwnerReferences) > 0 {
		t.Errorf("stripped report = %+v", got.ObjectMeta)
	}
	select {
	case <-source.Changed():
		t.Error("an update of the report was reported as a change")
	case <-time.After(5 * coalesceDelay):
	}
}

func TestServerDown(t *testing.T) {
	s := newAPIServer(t)
	s.send(t, "ADDED", "services", service("web"))
	source := s.start(t)
	awaitChange(t, source, "the first lists")
	s.watched(t)
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()
	s.CloseClientConnections()
	select {
	case <-source.Changed():
		t.Error("change reported after the loss of the API server")
	case <-time.After(2 * time.Second):
	}
	if count := len(source.Snapshot().Services); count != 1 {
		t.Errorf("%d Services, want 1", count)
	}
	s.mu.Lock()
	s.down = false
	s.mu.Unlock()
	s.send(t, "ADDED", "services", service("another"))
	awaitChange(t, source, "the API server is back")
	await(t, "the new Service", func() bool { return len(source.Snapshot().Services) == 2 })
}

func TestRelevantChanges(t *testing.T) {
	meta := func(version string, generation int64, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{UID: types.UID("1"), ResourceVersion: version, Generation: generation, Labels: labels}
	}
	for name, test := range map[string]struct {
		before, after any
		want          bool
	}{
		"LBNode metadata":      {&millracev1beta1.LBNode{ObjectMeta: meta("1", 1, nil)}, &millracev1beta1.LBNode{ObjectMeta: meta("2", 1, nil)}, false},
		"LBNode has booted":    {&millracev1beta1.LBNode{ObjectMeta: meta("1", 1, nil)}, &millracev1beta1.LBNode{ObjectMeta: meta("2", 1, nil), Status: millracev1beta1.LBNodeStatus{BootID: "a"}}, true},
		"LBNode is up":         {&millracev1beta1.LBNode{ObjectMeta: meta("1", 1, nil)}, &millracev1beta1.LBNode{ObjectMeta: meta("2", 1, nil), Status: millracev1beta1.LBNodeStatus{ServingBootID: "a"}}, true},
		"LBNode spec":          {&millracev1beta1.LBNode{ObjectMeta: meta("1", 1, nil)}, &millracev1beta1.LBNode{ObjectMeta: meta("2", 2, nil)}, true},
		"LBNode created again": {&millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{UID: "0"}}, &millracev1beta1.LBNode{ObjectMeta: meta("2", 0, nil)}, true},
		"Node status":          {&corev1.Node{ObjectMeta: meta("1", 0, nil)}, &corev1.Node{ObjectMeta: meta("2", 0, nil)}, false},
		"Node labels":          {&corev1.Node{ObjectMeta: meta("1", 0, nil)}, &corev1.Node{ObjectMeta: meta("2", 0, map[string]string{"a": "b"})}, true},
		"Node shuts down":      {&corev1.Node{ObjectMeta: meta("1", 0, nil)}, &corev1.Node{ObjectMeta: meta("2", 0, nil), Status: notReady("node is shutting down")}, true},
		"Node not ready":       {&corev1.Node{ObjectMeta: meta("1", 0, nil)}, &corev1.Node{ObjectMeta: meta("2", 0, nil), Status: notReady("PLEG is not healthy")}, false},
		"Service status":       {&corev1.Service{ObjectMeta: meta("1", 0, nil)}, &corev1.Service{ObjectMeta: meta("2", 0, nil)}, false},
		"EndpointSlice":        {&discoveryv1.EndpointSlice{ObjectMeta: meta("1", 0, nil)}, &discoveryv1.EndpointSlice{ObjectMeta: meta("2", 0, nil)}, true},
		"listed again":         {&corev1.Service{ObjectMeta: meta("1", 0, nil)}, &corev1.Service{ObjectMeta: meta("1", 0, nil)}, false},
		"Node pods":            {&corev1.Node{ObjectMeta: meta("1", 0, nil)}, &corev1.Node{ObjectMeta: meta("2", 0, nil), Spec: corev1.NodeSpec{PodCIDRs: []string{"10.0.0.0/24"}}}, true},
		"Node addresses":       {&corev1.Node{ObjectMeta: meta("1", 0, nil)}, &corev1.Node{ObjectMeta: meta("2", 0, nil), Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: "10.0.0.1"}}}}, true},
		"VIPPool counted":      {&millracev1beta1.VIPPool{ObjectMeta: meta("1", 1, nil)}, &millracev1beta1.VIPPool{ObjectMeta: meta("2", 1, nil), Status: millracev1beta1.VIPPoolStatus{Assigned: new(int64)}}, false},
		"VIPPool usable":       {&millracev1beta1.VIPPool{ObjectMeta: meta("1", 1, nil)}, &millracev1beta1.VIPPool{ObjectMeta: meta("2", 1, nil), Status: millracev1beta1.VIPPoolStatus{Usable: []string{"203.0.113.0/24"}}}, true},
	} {
		if got := isRelevant(test.before, test.after); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func notReady(message string) corev1.NodeStatus {
	return corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
		{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.Now(), Message: message},
	}}
}

func TestStripKeepsShutdown(t *testing.T) {
	for message, want := range map[string]millracev1beta1.DrainReason{
		"container runtime is down, node is shutting down": millracev1beta1.DrainReasonShuttingDown,
		"PLEG is not healthy":                              "",
	} {
		stripped, err := newShared().strip(&corev1.Node{Status: notReady(message)})
		if err != nil {
			t.Fatal(err)
		}
		node := stripped.(*corev1.Node)
		conditions := node.Status.Conditions
		if got := desired.NodeDrainReason(node); got != want || len(conditions) != 1 || !conditions[0].LastHeartbeatTime.IsZero() {
			t.Errorf("%s: NodeDrainReason = %q with %+v", message, got, conditions)
		}
	}
}

func TestStrip(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Labels:        map[string]string{"zone": "a"},
			Annotations:   map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "kept": "yes"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{SizeBytes: 1}}},
	}
	annotations := node.Annotations
	stripped, err := newShared().strip(node)
	if err != nil {
		t.Fatal(err)
	}
	result := stripped.(*corev1.Node)
	if result.Labels["zone"] != "a" || len(result.Annotations) != 1 || result.ManagedFields != nil || len(result.Status.Images) != 0 {
		t.Errorf("stripped Node = %+v", result)
	}
	if len(annotations) != 2 {
		t.Error("the original annotations were modified")
	}
	lbNode := &millracev1beta1.LBNode{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node1", UID: "1", ResourceVersion: "2", Generation: 3, CreationTimestamp: metav1.Unix(4, 0),
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"a": "b"},
			OwnerReferences: []metav1.OwnerReference{{Name: "node1"}}, ManagedFields: []metav1.ManagedFieldsEntry{{}},
		},
		Spec:   millracev1beta1.LBNodeSpec{ID: 5, Addresses: []string{"198.51.100.1"}, Zone: "a"},
		Status: millracev1beta1.LBNodeStatus{BootID: "b", ServingBootID: "b"},
	}
	want := &millracev1beta1.LBNode{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node1", UID: "1", ResourceVersion: "2", Generation: 3, CreationTimestamp: metav1.Unix(4, 0),
		},
		Spec:   millracev1beta1.LBNodeSpec{ID: 5, Addresses: []string{"198.51.100.1"}, Zone: "a"},
		Status: lbNode.Status,
	}
	if _, err := newShared().strip(lbNode); err != nil || !equality.Semantic.DeepEqual(lbNode, want) {
		t.Errorf("stripped LBNode = %+v, error %v", lbNode, err)
	}
	var other runtime.Object = service("web")
	if _, err := newShared().strip(other); err != nil {
		t.Error(err)
	}
}

func tunnelSecret(t *testing.T) (*corev1.Secret, *tunnelkey.State) {
	t.Helper()
	at := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	state := &tunnelkey.State{Phase: tunnelkey.Steady, Accepted: []tunnelkey.Key{tunnelkey.New(1)}, Sending: 1, Since: at, Made: at}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: tunnelkey.Namespace, Name: tunnelkey.SecretName}, Data: state.Data(),
	}, state
}

// Changed waits for the Secret with the tunnel key and signals its changes.
func TestTunnelKey(t *testing.T) {
	s := newAPIServer(t)
	s.missing = tunnelKeys
	secret, state := tunnelSecret(t)
	source := s.start(t)
	select {
	case <-source.Changed():
		t.Fatal("change reported before the key was listed")
	case <-time.After(5 * coalesceDelay):
	}
	s.mu.Lock()
	s.missing = ""
	s.mu.Unlock()
	awaitChange(t, source, "no Secret")
	if got := source.Snapshot().TunnelKey; got.State != nil || got.Err != nil {
		t.Errorf("TunnelKey without a Secret = %+v", got)
	}
	s.watched(t)
	s.send(t, "ADDED", tunnelKeys, secret)
	awaitChange(t, source, "the Secret")
	if got := source.Snapshot().TunnelKey; got.Err != nil || !got.State.Equal(state) {
		t.Errorf("parsed TunnelKey = %+v", got)
	}
	secret.Data["phase"] = []byte("nonsense")
	s.send(t, "MODIFIED", tunnelKeys, secret)
	awaitChange(t, source, "a Secret that cannot be read")
	if got := source.Snapshot().TunnelKey; got.Err == nil || got.State != nil {
		t.Errorf("TunnelKey parsed from invalid data = %+v", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got, want := s.selectors[tunnelKeys], "metadata.name=millrace-tunnel-key"; got != want {
		t.Errorf("selector for the Secret = %q, want %q", got, want)
	}
}

// Stripped Secrets retain their store key.
func TestSecretsAreRecovered(t *testing.T) {
	s := newAPIServer(t)
	secret, _ := tunnelSecret(t)
	s.send(t, "ADDED", tunnelKeys, secret)
	s.send(t, "ADDED", passwords, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: millracev1beta1.BGPNamespace, Name: "tor1"},
		Data:       map[string][]byte{"password": []byte("secret"), "more": []byte("secret")},
	})
	source := s.start(t)
	await(t, "both", func() bool {
		snapshot := source.Snapshot()
		return snapshot.TunnelKey.State != nil && snapshot.Passwords["tor1"] == "secret"
	})
	for want, informer := range map[string]cache.SharedIndexInformer{
		"millrace-bgp/tor1": source.secrets, "millrace-system/millrace-tunnel-key": source.tunnelKey,
	} {
		if got := informer.GetStore().ListKeys(); len(got) != 1 || got[0] != want {
			t.Errorf("store keys = %v, want %s", got, want)
		}
	}
}
