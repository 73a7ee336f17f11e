// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"pgregory.net/rapid"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

func TestServes(t *testing.T) {
	ours, foreign := millracev1alpha1.Class, "example.com/lb"
	now := metav1.Now()
	tests := []struct {
		name               string
		service            corev1.Service
		plain, whenDefault bool
	}{
		{"our class", corev1.Service{Spec: corev1.ServiceSpec{Type: "LoadBalancer", LoadBalancerClass: &ours}}, true, true},
		{"another class", corev1.Service{Spec: corev1.ServiceSpec{Type: "LoadBalancer", LoadBalancerClass: &foreign}}, false, false},
		{"no class", corev1.Service{Spec: corev1.ServiceSpec{Type: "LoadBalancer"}}, false, true},
		{"another type", corev1.Service{Spec: corev1.ServiceSpec{Type: "NodePort"}}, false, false},
		{"being deleted", corev1.Service{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now},
			Spec: corev1.ServiceSpec{Type: "LoadBalancer", LoadBalancerClass: &ours}}, false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if plain, whenDefault := Serves(&test.service, false), Serves(&test.service, true); plain != test.plain || whenDefault != test.whenDefault {
				t.Errorf("Serves = %v and, as the default, %v", plain, whenDefault)
			}
		})
	}
}

func TestRequest(t *testing.T) {
	prefer := corev1.IPFamilyPolicyPreferDualStack
	pools, _ := Pools([]millracev1alpha1.IPPool{
		poolAged("any", 0, "203.0.113.0/30"),
		with(poolAged("web", 0, "203.0.113.4/30"), func(s *millracev1alpha1.IPPoolSpec) {
			s.ServiceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		}),
	})
	service := func(change func(*corev1.Service)) *corev1.Service {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1", Annotations: map[string]string{}},
			Spec:       corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{"IPv6", "IPv4"}},
		}
		change(service)
		return service
	}
	plain := ipam.Request{
		Owner: ipam.Owner{Namespace: "shop", Name: "web", UID: "1"}, Families: []ipam.Family{ipam.IPv6, ipam.IPv4},
		RequireAll: true, Eligible: []string{"any"},
	}
	tests := []struct {
		name    string
		service *corev1.Service
		want    func(*ipam.Request)
		err     string
	}{
		{"plain", service(func(*corev1.Service) {}), func(*ipam.Request) {}, ""},
		{"prefers dual stack", service(func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &prefer }), func(r *ipam.Request) { r.RequireAll = false }, ""},
		{"labels", service(func(s *corev1.Service) { s.Labels = map[string]string{"app": "web"} }), func(r *ipam.Request) {
			r.Eligible = []string{"any", "web"}
		}, ""},
		{"pool", service(func(s *corev1.Service) { s.Annotations["millrace.io/pool"] = " any " }), func(r *ipam.Request) { r.Pool = "any" }, ""},
		{"addresses", service(func(s *corev1.Service) {
			s.Annotations["millrace.io/addresses"] = "203.0.113.1, 2001:DB8::0:1,"
			s.Spec.LoadBalancerIP = "203.0.113.9"
		}), func(r *ipam.Request) { r.Asked = parsed("203.0.113.1", "2001:db8::1") }, ""},
		{"loadBalancerIP", service(func(s *corev1.Service) { s.Spec.LoadBalancerIP = "203.0.113.9" }), func(r *ipam.Request) {
			r.Asked = parsed("203.0.113.9")
		}, ""},
		{"status", service(func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{Hostname: "example.com"}, {IP: "203.0.113.3"}}
		}), func(r *ipam.Request) { r.Hints = parsed("203.0.113.3") }, ""},
		{"sharing key and ports", service(func(s *corev1.Service) {
			s.Annotations["millrace.io/sharing-key"] = " dns "
			s.Spec.Ports = []corev1.ServicePort{{Port: 80}, {Port: 53, Protocol: "UDP"}, {Port: 53, Protocol: "TCP"}}
		}), func(r *ipam.Request) {
			r.SharingKey = "dns"
			r.Ports = []ipam.Port{{Number: 53, Protocol: "TCP"}, {Number: 53, Protocol: "UDP"}, {Number: 80, Protocol: "TCP"}}
		}, ""},
		{"a mistake elsewhere keeps the key", service(func(s *corev1.Service) {
			s.Annotations["millrace.io/sharing-key"], s.Spec.LoadBalancerIP = "dns", "web"
		}), func(r *ipam.Request) { r.SharingKey, r.Eligible = "dns", nil }, "spec.loadBalancerIP"},
		{"sharing key too long", service(func(s *corev1.Service) {
			s.Annotations["millrace.io/sharing-key"] = strings.Repeat("k", 254)
		}), func(r *ipam.Request) { r.Eligible = nil }, "metadata.annotations[millrace.io/sharing-key]: is longer than 253 bytes"},
		{"two of a family", service(func(s *corev1.Service) { s.Annotations["millrace.io/addresses"] = "203.0.113.1,203.0.113.2" }),
			func(r *ipam.Request) { r.Eligible = nil },
			"metadata.annotations[millrace.io/addresses]: 203.0.113.1 and 203.0.113.2 are of the same family"},
		{"no address", service(func(s *corev1.Service) { s.Spec.LoadBalancerIP = "web" }), func(r *ipam.Request) { r.Eligible = nil },
			`spec.loadBalancerIP: "web" is not an IP address`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Request(test.service, labels.Set{}, pools)
			want := plain
			test.want(&want)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("Request = %+v, want %+v", got, want)
			}
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("error is %v, want %q", err, test.err)
			}
		})
	}
}

func parsed(texts ...string) []netip.Addr {
	var addresses []netip.Addr
	for _, text := range texts {
		addresses = append(addresses, netip.MustParseAddr(text))
	}
	return addresses
}

func TestNodeAddresses(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"},
		{Type: corev1.NodeInternalIP, Address: "2001:DB8:0::1"}, {Type: corev1.NodeInternalIP, Address: "nonsense"},
		{Type: corev1.NodeInternalIP, Address: "198.51.100.1"}, {Type: corev1.NodeInternalIP, Address: "198.51.100.2"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::2"},
	}}}
	if got := NodeAddresses(node); !reflect.DeepEqual(got, []string{"2001:db8::1", "198.51.100.1"}) {
		t.Errorf("NodeAddresses = %v", got)
	}
}

func TestNextNodeID(t *testing.T) {
	all := sets.New[int32]()
	for id := int32(1); id <= MaxNodeID; id++ {
		all.Insert(id)
	}
	tests := []struct {
		name string
		used sets.Set[int32]
		last int32
		want int32
		ok   bool
	}{
		{"the first", sets.New[int32](), 0, 1, true},
		{"above the highest", sets.New[int32](3, 7), 2, 8, true},
		{"above the last that was given", sets.New[int32](3, 7), 8, 9, true},
		{"the last", sets.New[int32](4094), 0, 4095, true},
		{"from the start again", sets.New[int32](1, 2, 4, 4095), 1, 3, true},
		{"from the start again, the last is gone", sets.New[int32](1, 2), 4095, 3, true},
		{"none", all, 4095, 0, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if id, ok := NextNodeID(test.used, test.last); id != test.want || ok != test.ok {
				t.Errorf("NextNodeID = %d, %v, want %d, %v", id, ok, test.want, test.ok)
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		used := sets.New(rapid.SliceOf(rapid.Int32Range(1, MaxNodeID)).Draw(t, "used")...)
		if id, ok := NextNodeID(used, 0); !ok || used.Has(id) || id < 1 || id > MaxNodeID {
			t.Fatalf("NextNodeID = %d, %v", id, ok)
		}
	})
}
