// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func TestCompareNamesIsATotalOrder(t *testing.T) {
	name := rapid.StringMatching(`(node|n|)0{0,2}[0-9]{0,3}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		if (CompareNames(a, b) == 0) != (a == b) {
			t.Fatalf("%q and %q: equal in order, not as names", a, b)
		}
		if CompareNames(a, b) != -CompareNames(b, a) {
			t.Fatalf("%q and %q: both orders return %d", a, b, CompareNames(a, b))
		}
		if CompareNames(a, b) < 0 && CompareNames(b, c) < 0 && CompareNames(a, c) >= 0 {
			t.Fatalf("%q < %q < %q, but not the first before the last", a, b, c)
		}
	})
	names := []string{"node10", "node2", "cp", "node1", "node"}
	slices.SortFunc(names, CompareNames)
	if want := []string{"cp", "node", "node1", "node2", "node10"}; !slices.Equal(names, want) {
		t.Errorf("sorted %v, want %v", names, want)
	}
}

func TestCountEndpoints(t *testing.T) {
	yes, no := true, false
	endpoint := func(address string, ready, terminating *bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Addresses:  []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: ready, Terminating: terminating},
		}
	}
	slice := func(kind discoveryv1.AddressType, list ...discoveryv1.Endpoint) discoveryv1.EndpointSlice {
		return discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: kind, Endpoints: list,
		}
	}
	counts := countEndpoints([]discoveryv1.EndpointSlice{
		slice(discoveryv1.AddressTypeIPv4, endpoint("198.18.0.1", nil, nil), endpoint("198.18.0.2", &no, nil), endpoint("198.18.0.3", &no, &yes)),
		// The same address in a slice for another port counts once.
		slice(discoveryv1.AddressTypeIPv4, endpoint("198.18.0.1", &no, &no), endpoint("198.18.0.4", &yes, nil)),
		slice(discoveryv1.AddressTypeIPv6, endpoint("2001:db8::1", &yes, nil), discoveryv1.Endpoint{}),
	})
	for kind, want := range map[discoveryv1.AddressType]endpoints{
		discoveryv1.AddressTypeIPv4: {ready: 2, total: 3},
		discoveryv1.AddressTypeIPv6: {ready: 1, total: 1},
	} {
		have := counts[family{service: types.NamespacedName{Namespace: "ns", Name: "web"}, kind: kind}]
		if have != want {
			t.Errorf("%s: %+v, want %+v", kind, have, want)
		}
	}
}

func TestOurs(t *testing.T) {
	class := func(name string) *string { return &name }
	assigned := []metav1.Condition{{Type: millracev1beta1.ConditionAddressAssigned}}
	for _, test := range []struct {
		name       string
		kind       corev1.ServiceType
		class      *string
		conditions []metav1.Condition
		want       bool
	}{
		{"our class", corev1.ServiceTypeLoadBalancer, class(millracev1beta1.Class), nil, true},
		{"another class, of the operator", corev1.ServiceTypeLoadBalancer, class("example.com/lb"), assigned, true},
		{"another class", corev1.ServiceTypeLoadBalancer, class("example.com/lb"), nil, false},
		{"no class, taken by the operator", corev1.ServiceTypeLoadBalancer, nil, assigned, true},
		{"no class, not taken", corev1.ServiceTypeLoadBalancer, nil, nil, false},
		{"was of type LoadBalancer", corev1.ServiceTypeClusterIP, nil, assigned, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			service := &corev1.Service{
				Spec:   corev1.ServiceSpec{Type: test.kind, LoadBalancerClass: test.class},
				Status: corev1.ServiceStatus{Conditions: test.conditions},
			}
			if have := ours(service); have != test.want {
				t.Errorf("ours is %v, want %v", have, test.want)
			}
		})
	}
}

// TestCertificateProblems checks that a tenant's Service reports no problem of another namespace's Secret.
func TestCertificateProblems(t *testing.T) {
	class := millracev1beta1.Class
	proxies := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "millrace-system", Name: "proxies", Annotations: map[string]string{
			model.AnnotationCertificateProblems: "shop/a: the certificate expired at X\nblog/b: expires",
		}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class},
	}
	dedicated, other := *proxies.DeepCopy(), *proxies.DeepCopy()
	dedicated.Name = "dedicated"
	other.Spec.Type, other.Annotations[model.AnnotationCertificateProblems] = corev1.ServiceTypeClusterIP, "x/y: z"
	tenant := *dedicated.DeepCopy()
	tenant.Namespace, tenant.Name = "blog", "blog"
	tenant.Annotations[model.AnnotationCertificateProblems] = "blog/c: expires\nshop/a: \x1b[31mforged\nno problem"
	got := strings.Join(problemsOf(Build(&Input{
		Namespace: "millrace-system", Services: []corev1.Service{proxies, dedicated, other, tenant},
	}), ReasonCertificate), "\n")
	if want := "Secret/b (blog): expires\nService/blog (blog): Secret shop/a:  [31mforged\nSecret/c (blog): expires\n" +
		"Secret/a (shop): the certificate expired at X"; got != want {
		t.Errorf("the problems are\n%s\nwant\n%s", got, want)
	}
}

func TestWhyNotAnnounced(t *testing.T) {
	ready := []Service{{Namespace: "ns", Name: "web", TrafficPolicy: "Cluster", Ready: 1, Total: 1}}
	configured := func(answers ...string) Input {
		in := Input{
			Peers: []millracev1beta1.LBPeer{{}}, Advertisements: []millracev1beta1.VIPAdvertisement{{}},
			LBNodes: make([]millracev1beta1.LBNode, 2), Agents: Agents{Responses: map[string]*consoleapi.VIPs{}},
		}
		for _, node := range answers {
			in.Agents.Responses[node] = &consoleapi.VIPs{}
		}
		return in
	}
	withheld := func(reason, message string, nodes ...string) VIP {
		return VIP{Services: ready, Programmed: 1, WithheldBy: []Withheld{{Reason: reason, Message: message, Nodes: nodes}}}
	}
	for _, test := range []struct {
		name    string
		in      Input
		vip     VIP
		reason  string
		message string
	}{
		{
			"no endpoint comes first", Input{}, VIP{Services: []Service{{Namespace: "ns", Name: "web", Total: 2}}},
			ReasonNoReadyEndpoint, "no node announces it: no ready endpoint of ns/web",
		},
		{"no peer", Input{Advertisements: configured().Advertisements}, VIP{Services: ready}, ReasonNotAnnounced, "no node announces it: there is no LBPeer"},
		{"no advertisement", Input{Peers: configured().Peers}, VIP{Services: ready}, ReasonNotAnnounced, "no node announces it: there is no VIPAdvertisement"},
		{"nobody was asked", configured(), VIP{Services: ready}, "", ""},
		{"the condition, without agents", configured(), VIP{Services: ready, NotAnnounced: "no link"}, ReasonNotAnnounced, "no link"},
		{"a tenant", Input{Sole: "ns"}, VIP{Services: ready, NotAnnounced: "no link"}, ReasonNotAnnounced, "no link"},
		{
			"agents before the condition", configured("node1"), VIP{Services: ready, NotAnnounced: "no link"},
			ReasonNotAnnounced, "of the 1 nodes that answered, no node announces it: no node has programmed it",
		},
		{"not programmed", configured("node1", "node2"), VIP{Services: ready}, ReasonNotAnnounced, "no node announces it: no node has programmed it"},
		{
			"only a reason", configured("node1", "node2"), withheld("NotSelected", "", "node1"),
			ReasonNotAnnounced, "no node announces it: node1: NotSelected",
		},
		{
			"one node did not answer", configured("node1"), withheld("NotSelected", "", "node1"),
			ReasonNotAnnounced, "of the 1 nodes that answered, no node announces it: node1: NotSelected",
		},
		{
			"nodes that say nothing", configured("node1", "node2"), withheld("", "", "node1", "node2"),
			ReasonNotAnnounced, "no node announces it: node1: the reason is unknown (and on 1 more)",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			reason, message := newLookup(&test.in).notAnnouncedReason(test.vip)
			if reason != test.reason || message != test.message {
				t.Errorf("%s: %q, want %s: %q", reason, message, test.reason, test.message)
			}
		})
	}
}

func TestNotAnnounced(t *testing.T) {
	condition := func(name string, status metav1.ConditionStatus, message string) []metav1.Condition {
		return []metav1.Condition{{Type: name, Status: status, Message: message}}
	}
	const both = "IPv4: no link of 203.0.113.1; IPv6: no session"
	for _, test := range []struct {
		name            string
		address, listed string
		vip, service    []metav1.Condition
		want            string
	}{
		{"no condition", "203.0.113.1", "1", nil, nil, ""},
		{"the VIP's", "203.0.113.1", "1", condition(millracev1beta1.ConditionAnnounced, metav1.ConditionFalse, "no link"), nil, "no link"},
		{"an announced VIP of a Service with another", "203.0.113.1", "1", nil, condition(millracev1beta1.ConditionServiceAnnounced, metav1.ConditionFalse, "IPv4: no link"), ""},
		{"the Service's for IPv4", "203.0.113.1", "", nil, condition(millracev1beta1.ConditionServiceAnnounced, metav1.ConditionFalse, both), "no link of 203.0.113.1"},
		{"the Service's for IPv6", "2001:db8::1", "", nil, condition(millracev1beta1.ConditionServiceAnnounced, metav1.ConditionFalse, both), "no session"},
		{"an announced family", "203.0.113.1", "", nil, condition(millracev1beta1.ConditionServiceAnnounced, metav1.ConditionFalse, "announced: IPv4; IPv6: no session"), ""},
		{"both announced", "203.0.113.1", "", nil, condition(millracev1beta1.ConditionServiceAnnounced, metav1.ConditionTrue, "announced: IPv4"), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			vip := &millracev1beta1.VIP{Spec: millracev1beta1.VIPSpec{Address: test.address}, Status: millracev1beta1.VIPStatus{Conditions: test.vip}}
			vip.UID = types.UID(test.listed)
			service := &corev1.Service{Status: corev1.ServiceStatus{Conditions: test.service}}
			if got := notAnnounced(vip, service); got != test.want {
				t.Errorf("notAnnounced = %q, want %q", got, test.want)
			}
		})
	}
}

// A retained VIP of a Service that is not of type LoadBalancer is not a problem.
func TestReservationIsNoProblem(t *testing.T) {
	for _, kind := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeLoadBalancer} {
		service := corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{Type: kind}}
		vip := millracev1beta1.VIP{Spec: millracev1beta1.VIPSpec{
			Address: "203.0.113.1", Claims: []millracev1beta1.VIPClaim{{Namespace: "ns", Name: "web"}},
		}}
		in := Input{Services: []corev1.Service{service}, VIPs: []millracev1beta1.VIP{vip}}
		found := newLookup(&in).disagreement(&in.VIPs[0])
		if isLoadBalancer := kind == corev1.ServiceTypeLoadBalancer; (len(found) > 0) != isLoadBalancer {
			t.Errorf("problems of a VIP reserved for a Service of type %s: %+v", kind, found)
		}
	}
}

func TestIdleServiceOnSharedVIP(t *testing.T) {
	web := Service{Namespace: "ns", Name: "web", TrafficPolicy: "Cluster", Ready: 1, Total: 1}
	idler := Service{Namespace: "ns", Name: "dns", TrafficPolicy: "Local", Total: 2}
	gone := Service{Namespace: "ns", Name: "gone"}
	for _, test := range []struct {
		name     string
		services []Service
		want     string
	}{
		{"all are served", []Service{web, web}, ""},
		{"one is not", []Service{idler, web}, "no ready endpoint of ns/dns; the other Services of the VIP are served"},
		{"gone is another problem", []Service{gone, web}, ""},
		{"alone is just losing its last endpoint", []Service{idler}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := idle(VIP{Allocation: Allocation{Address: "203.0.113.1"}, Services: test.services})
			if test.want == "" && len(found) == 0 || len(found) == 1 && found[0].Message == test.want && found[0].Reason == ReasonNoReadyEndpoint {
				return
			}
			t.Errorf("found %+v, want %q", found, test.want)
		})
	}
}

func TestAgentBeingReplaced(t *testing.T) {
	pod := func(name string, leaving bool) corev1.Pod {
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{labelName: "millrace", labelComponent: "agent"}},
			Spec:       corev1.PodSpec{NodeName: "node1"},
		}
		if leaving {
			pod.DeletionTimestamp = &metav1.Time{}
		}
		return pod
	}
	for _, pods := range [][]corev1.Pod{
		{pod("old", true), pod("new", false)},
		{pod("new", false), pod("old", true)},
	} {
		if have := AgentPods(pods)["node1"].Name; have != "new" {
			t.Errorf("agent of node1 is %s, want new", have)
		}
	}
}

func TestReportIsStable(t *testing.T) {
	var in Input
	for _, address := range []string{"203.0.113.9", "203.0.113.10", "2001:db8::1"} {
		in.VIPs = append(in.VIPs, millracev1beta1.VIP{Spec: millracev1beta1.VIPSpec{Address: address}})
	}
	view := Build(&in)
	slices.Reverse(in.VIPs)
	again := Build(&in)
	for i, vip := range view.VIPs {
		if vip.Address != again.VIPs[i].Address {
			t.Errorf("VIP %d is %s, then %s", i, vip.Address, again.VIPs[i].Address)
		}
	}
	if have := view.VIPs[0].Address; have != "203.0.113.9" {
		t.Errorf("first VIP is %s, want 203.0.113.9", have)
	}
}
