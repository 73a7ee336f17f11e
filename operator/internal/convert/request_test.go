// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

func TestRequest(t *testing.T) {
	prefer := corev1.IPFamilyPolicyPreferDualStack
	pools, _ := desired.Pools([]millracev1beta1.VIPPool{
		{ObjectMeta: metav1.ObjectMeta{Name: "any"}, Spec: millracev1beta1.VIPPoolSpec{Addresses: []string{"203.0.113.0/30"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: millracev1beta1.VIPPoolSpec{
			Addresses:       []string{"203.0.113.4/30"},
			ServiceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}},
	}, desired.Occupation{})
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
		}), func(r *ipam.Request) { r.Addresses = parsed("203.0.113.1", "2001:db8::1") }, ""},
		{"loadBalancerIP", service(func(s *corev1.Service) { s.Spec.LoadBalancerIP = "203.0.113.9" }), func(r *ipam.Request) {
			r.Addresses = parsed("203.0.113.9")
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
		{"invalid annotation elsewhere keeps the key", service(func(s *corev1.Service) {
			s.Annotations["millrace.io/sharing-key"], s.Spec.LoadBalancerIP = "dns", "web"
		}), func(r *ipam.Request) { r.SharingKey, r.Eligible = "dns", nil }, "spec.loadBalancerIP"},
		{"sharing key too long", service(func(s *corev1.Service) {
			s.Annotations["millrace.io/sharing-key"] = strings.Repeat("k", 254)
		}), func(r *ipam.Request) { r.Eligible = nil }, "metadata.annotations[millrace.io/sharing-key]: exceeds 253 bytes"},
		{"two addresses of a family", service(func(s *corev1.Service) { s.Annotations["millrace.io/addresses"] = "203.0.113.2,203.0.113.1" }),
			func(r *ipam.Request) { r.Addresses = parsed("203.0.113.2", "203.0.113.1") }, ""},
		{"duplicate address", service(func(s *corev1.Service) { s.Annotations["millrace.io/addresses"] = "2001:db8::1,2001:DB8:0::1" }),
			func(r *ipam.Request) { r.Eligible = nil }, "metadata.annotations[millrace.io/addresses]: 2001:db8::1 is a duplicate"},
		{"too many", service(func(s *corev1.Service) {
			s.Annotations["millrace.io/addresses"] = "::1,::2,::3,::4,::5,::6,::7,::8,::9,203.0.113.1"
		}), func(r *ipam.Request) { r.Eligible = nil },
			"metadata.annotations[millrace.io/addresses]: 9 IPv6 addresses exceed the maximum of 8"},
		{"no address", service(func(s *corev1.Service) { s.Spec.LoadBalancerIP = "web" }), func(r *ipam.Request) { r.Eligible = nil },
			`spec.loadBalancerIP: "web" is not an IP address`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parser{}.Request(test.service, labels.Set{}, pools)
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

// Only the named annotations of other load balancers count, and only if a Service does not have ours.
func TestAnnotationsOfOthers(t *testing.T) {
	const ours, metallb, cilium, kubeVIP = "203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{
			"metallb.universe.tf/loadBalancerIPs": metallb, "metallb.io/address-pool": "public", "metallb.io/allow-shared-ip": "key",
			"lbipam.cilium.io/ips": cilium, "lbipam.cilium.io/sharing-key": "other", "kube-vip.io/loadbalancerIPs": kubeVIP,
		}},
		Spec: corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{"IPv4"}},
	}
	for _, test := range []struct{ names, own, address, pool, key string }{
		{"", "", "", "", ""},
		{"metallb", "", metallb, "public", "key"},
		{"cilium, metallb", "", cilium, "public", "other"},
		{"kube-vip", "", kubeVIP, "", ""},
		{"metallb,cilium,kube-vip", ours, ours, "public", "key"},
	} {
		t.Run(test.names, func(t *testing.T) {
			others, err := ParseAnnotations(test.names)
			if err != nil {
				t.Fatal(err)
			}
			service := service.DeepCopy()
			if test.own != "" {
				service.Annotations["millrace.io/addresses"] = test.own
			}
			got, err := Parser{Others: others}.Request(service, labels.Set{}, nil)
			var addresses []netip.Addr
			if test.address != "" {
				addresses = parsed(test.address)
			}
			if err != nil || !reflect.DeepEqual(got.Addresses, addresses) || got.Pool != test.pool || got.SharingKey != test.key {
				t.Errorf("%v from pool %q with key %q, %v; want %v from %q with %q", got.Addresses, got.Pool, got.SharingKey, err, addresses, test.pool, test.key)
			}
		})
	}
	if _, err := ParseAnnotations("metallb,f5"); err == nil || !strings.Contains(err.Error(), `"f5" is unknown: must be one of cilium, kube-vip, metallb`) {
		t.Errorf("unknown load balancer: %v", err)
	}
	service.Annotations["metallb.io/loadBalancerIPs"] = "web"
	others, _ := ParseAnnotations("metallb")
	if _, err := (Parser{Others: others}).Request(service, labels.Set{}, nil); err == nil ||
		!strings.Contains(err.Error(), "metadata.annotations[metallb.io/loadBalancerIPs]") {
		t.Errorf("invalid annotation of another load balancer: %v", err)
	}
}

func TestAdoptOnly(t *testing.T) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"millrace.io/addresses": "203.0.113.9", "millrace.io/pool": "any"}},
		Spec:       corev1.ServiceSpec{IPFamilies: []corev1.IPFamily{"IPv4", "IPv6"}},
	}
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.3"}}
	got, err := Parser{AdoptOnly: true}.Request(service, labels.Set{}, nil)
	if err != nil || !got.AdoptOnly || !reflect.DeepEqual(got.Addresses, parsed("203.0.113.3")) || got.Pool != "" || got.RequireAll {
		t.Errorf("%+v, %v; want to adopt 203.0.113.3", got, err)
	}
}

func parsed(texts ...string) []netip.Addr {
	var addresses []netip.Addr
	for _, text := range texts {
		addresses = append(addresses, netip.MustParseAddr(text))
	}
	return addresses
}
