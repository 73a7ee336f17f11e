// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/relay"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func pointer[T any](value T) *T { return &value }

// controllerSlice returns an EndpointSlice like the Kubernetes controller's.
func controllerSlice(n, endpoints int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprintf("web-%d-x7f2k", n), GenerateName: fmt.Sprintf("web-%d-", n),
			UID: types.UID(fmt.Sprintf("6f2b6a1c-3f0e-4b57-9d53-%012d", n)), ResourceVersion: fmt.Sprint(n), Generation: 7,
			CreationTimestamp: metav1.Unix(1, 0),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: fmt.Sprintf("web-%d", n), discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
			Annotations: map[string]string{"endpoints.kubernetes.io/last-change-trigger-time": "2026-03-01T00:00:00Z"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: fmt.Sprintf("web-%d", n), UID: "0c0e3a5e-95e1-4a0f-a6d1-000000000000",
				Controller: pointer(true), BlockOwnerDeletion: pointer(true),
			}},
			ManagedFields: []metav1.ManagedFieldsEntry{{
				Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate,
				FieldsV1: metav1.NewFieldsV1(strings.Repeat(" ", 512)),
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: pointer("http"), Protocol: pointer(corev1.ProtocolTCP), Port: pointer(int32(8080))}},
	}
	for i := range endpoints {
		zone := fmt.Sprintf("zone-%d", i%3)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("198.18.%d.%d", n%256, i)},
			Conditions: discoveryv1.EndpointConditions{Ready: pointer(true), Serving: pointer(true), Terminating: pointer(false)},
			NodeName:   pointer(fmt.Sprintf("node-%04d.example.com", (n*endpoints+i)%1000)), Zone: &zone,
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("web-%d-5d4f8c7b9-%05d", n, i), UID: "9a0f6c62-0d6f-4a59-8f0e-000000000000",
			},
		})
	}
	return slice
}

// decoded copies a slice through its encoding, so that it shares no memory.
func decoded(t testing.TB, slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	t.Helper()
	wire, err := slice.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	result := &discoveryv1.EndpointSlice{}
	if err := result.Unmarshal(wire); err != nil {
		t.Fatal(err)
	}
	return result
}

// TestEndpointsAreSmall measures the heap of 150,000 endpoints, the limit of Kubernetes.
func TestEndpointsAreSmall(t *testing.T) {
	const count, each, most = 1500, 100, 24 << 20
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before, common, kept := heap(), newShared(), make([]any, count)
	for n := range kept {
		var err error
		if kept[n], err = common.strip(decoded(t, controllerSlice(n, each))); err != nil {
			t.Fatal(err)
		}
	}
	bytes := heap() - before
	t.Logf("%d endpoints use %.1f MiB", count*each, float64(bytes)/(1<<20))
	if bytes > most {
		t.Errorf("%d endpoints use %d bytes, want at most %d", count*each, bytes, most)
	}
	runtime.KeepAlive(kept)
	runtime.KeepAlive(common)
}

func TestSlimSlice(t *testing.T) {
	slice := controllerSlice(1, 2)
	slice.Annotations[millracev1beta1.AnnotationConfirmRemoval] = "yes"
	slice.Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: pointer(false)}
	slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{}, discoveryv1.Endpoint{
		Addresses: []string{"198.51.100.1", "198.51.100.2"},
		Hints:     &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "a"}, {Name: "b"}}},
	}, discoveryv1.Endpoint{
		Addresses: []string{"198.51.100.3"}, NodeName: pointer("node-0100.example.com"),
		Hints: &discoveryv1.EndpointHints{
			ForZones: []discoveryv1.ForZone{{Name: "zone-0"}}, ForNodes: []discoveryv1.ForNode{{Name: "a"}},
		},
	})
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: slice.Name, UID: slice.UID, ResourceVersion: "1", Generation: 7, CreationTimestamp: metav1.Unix(1, 0),
			Labels:      map[string]string{discoveryv1.LabelServiceName: "web-1"},
			Annotations: map[string]string{millracev1beta1.AnnotationConfirmRemoval: ""},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: slice.DeepCopy().Ports,
		Endpoints: []discoveryv1.Endpoint{
			{
				Addresses:  []string{"198.18.1.0"},
				Conditions: discoveryv1.EndpointConditions{Ready: pointer(true), Serving: pointer(true), Terminating: pointer(false)},
				NodeName:   pointer("node-0002.example.com"),
				Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-0"}}},
			},
			{
				Addresses: []string{"198.18.1.1"}, Conditions: discoveryv1.EndpointConditions{Ready: pointer(false)},
				NodeName: pointer("node-0003.example.com"),
				Hints:    &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-1"}}},
			},
			{},
			{
				Addresses: []string{"198.51.100.1"},
				Hints:     &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "a"}, {Name: "b"}}},
			},
			{
				Addresses: []string{"198.51.100.3"}, NodeName: pointer("node-0100.example.com"),
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "zone-0"}}},
			},
		},
	}
	common := newShared()
	for range 2 {
		if _, err := common.strip(slice); err != nil || !equality.Semantic.DeepEqual(slice, want) {
			t.Errorf("stripped EndpointSlice = %+v, want %+v, error %v", slice, want, err)
		}
	}
	another := controllerSlice(2, 2)
	another.Endpoints[0].NodeName = pointer("node-0002.example.com")
	if _, err := common.strip(another); err != nil {
		t.Fatal(err)
	}
	if another.Endpoints[0].NodeName != slice.Endpoints[0].NodeName || another.Endpoints[0].Hints != slice.Endpoints[0].Hints {
		t.Error("node name and hints of two endpoints on one node are not shared")
	}
}

func TestSharedNamesAreBounded(t *testing.T) {
	common := newShared()
	for n := range 3 * maxShared {
		if name := fmt.Sprint(n); *common.name(&name) != name {
			t.Fatalf("name = %s, want it unchanged", name)
		}
	}
	if kept := len(common.names); kept > maxShared {
		t.Errorf("%d names are retained, limit exceeded", kept)
	}
}

func TestSlimService(t *testing.T) {
	original := func() *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "web", UID: "1", ResourceVersion: "1", Labels: map[string]string{"a": "b"},
				Annotations: map[string]string{millracev1beta1.AnnotationClass: "c"}, Finalizers: []string{millracev1beta1.Finalizer},
				OwnerReferences: []metav1.OwnerReference{{Name: "web"}},
			},
			Spec:   corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"}, ClusterIPs: []string{"192.0.2.1"}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}}},
		}
	}
	want := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "1", ResourceVersion: "1", Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{millracev1beta1.AnnotationClass: "c"},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Selector: someSelector, ClusterIPs: []string{"192.0.2.1"}},
	}
	before := original()
	if _, err := newShared().strip(before); err != nil || !equality.Semantic.DeepEqual(before, want) {
		t.Errorf("stripped Service = %+v, error %v", before, err)
	}
	for name, test := range map[string]struct {
		change     func(*corev1.Service)
		isRelevant bool
	}{
		"status":     {func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = nil }, false},
		"finalizers": {func(s *corev1.Service) { s.Finalizers = nil }, false},
		"annotation": {func(s *corev1.Service) { s.Annotations[millracev1beta1.AnnotationClass] = "d" }, true},
		"label":      {func(s *corev1.Service) { s.Labels["a"] = "c" }, true},
		"spec":       {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }, true},
		"deletion":   {func(s *corev1.Service) { s.DeletionTimestamp = pointer(metav1.Unix(1, 0)) }, true},
		"another":    {func(s *corev1.Service) { s.UID = "2" }, true},
	} {
		after := original()
		after.ResourceVersion = "2"
		test.change(after)
		if _, err := newShared().strip(after); err != nil {
			t.Fatal(err)
		}
		if got := isRelevant(before, after); got != test.isRelevant {
			t.Errorf("%s: isRelevant = %v", name, got)
		}
	}
}

// The relay retains all fields that agents read.
func TestRelayLeavesWhatAgentsRead(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", UID: "u", ResourceVersion: "7", Generation: 3, GenerateName: "web-",
			Labels:          map[string]string{discoveryv1.LabelServiceName: "web", "other": "label"},
			Annotations:     map[string]string{millracev1beta1.AnnotationConfirmRemoval: "yes", "other": "annotation"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Service", Name: "web"}}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80)), Protocol: new(corev1.ProtocolTCP), AppProtocol: new("h2c")}},
		Endpoints: []discoveryv1.Endpoint{
			{
				Addresses: []string{"198.18.0.1", "198.18.0.2"}, NodeName: new("node-a"), Zone: new("a"), Hostname: new("web-0"),
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(false), Terminating: new(true)},
				Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}, ForNodes: []discoveryv1.ForNode{{Name: "node-a"}}},
				TargetRef:  &corev1.ObjectReference{Name: "web-0"},
			},
			{Addresses: []string{"198.18.0.3"}, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}}},
		},
	}
	relayed := relay.Slim(slice.DeepCopy())
	newShared().slimSlice(relayed)
	newShared().slimSlice(slice)
	if !equality.Semantic.DeepEqual(relayed, slice) {
		t.Errorf("slice from a relay =\n%+v, from the API server\n%+v", relayed, slice)
	}
}
