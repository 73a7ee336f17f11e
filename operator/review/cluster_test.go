// SPDX-License-Identifier: Apache-2.0

package review

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func plain() *Objects {
	return &Objects{
		Class: desired.Class{IsDefault: true},
		Pools: []millracev1beta1.VIPPool{pool("public", "203.0.113.0/30")},
		Peers: []millracev1beta1.LBPeer{{
			ObjectMeta: metav1.ObjectMeta{Name: "tor1"},
			Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: "198.51.100.1"}, PeerASN: 1, LocalASN: 2},
		}},
		Advertisements: []millracev1beta1.VIPAdvertisement{{ObjectMeta: metav1.ObjectMeta{Name: "all"}}},
		Services:       []corev1.Service{loadBalancer("web"), loadBalancer("api")},
	}
}

func loadBalancer(name string) corev1.Service {
	return corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

func annotate(service *corev1.Service, key, value string) {
	service.Annotations = map[string]string{key: value}
}

func node(name, zone string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
}

func TestCluster(t *testing.T) {
	elsewhere := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelTopologyZone: "elsewhere"}}
	namespace := corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{
		millracev1beta1.LabelServiceDefaults: millracev1beta1.ServiceDefaultsEnabled,
	}}}
	for name, test := range map[string]struct {
		change func(*Objects)
		// vips are "ADDRESS SERVICES", problems are "OBJECT REASON".
		vips, problems []string
		remark         string
	}{
		"no problem": {
			change: func(*Objects) {},
			vips:   []string{"203.0.113.0 api", "203.0.113.1 web"},
		},
		"a request without an address is not refused for an unrelated address": {
			change: func(o *Objects) { annotate(&o.Services[0], millracev1beta1.AnnotationAddresses, "203.0.113.0") },
			vips:   []string{"203.0.113.0 web", "203.0.113.1 api"},
		},
		"one shared address": {
			change: func(o *Objects) {
				o.Services[1].Spec.Ports[0].Port = 443
				for i := range o.Services {
					annotate(&o.Services[i], millracev1beta1.AnnotationSharingKey, "site")
				}
			},
			vips: []string{"203.0.113.0 api web"},
		},
		"full pool": {
			change:   func(o *Objects) { o.Pools[0].Spec.Addresses = []string{"203.0.113.9/32"} },
			vips:     []string{"203.0.113.9 api"},
			problems: []string{"Service web PoolExhausted"},
		},
		"reserved VIP": {
			change: func(o *Objects) {
				reserved := vip("203.0.113.0", "web")
				reserved.Spec.Claims[0].UID, reserved.Spec.Claims[0].Namespace = "", "shop"
				o.VIPs = append(o.VIPs, reserved)
			},
			vips: []string{"203.0.113.0 web", "203.0.113.1 api"},
		},
		"Service of another class": {
			change: func(o *Objects) { o.Class.IsDefault = false },
		},
		"class from the namespace defaults": {
			change: func(o *Objects) { o.Class.IsDefault, o.Namespaces = false, []corev1.Namespace{namespace} },
			vips:   []string{"203.0.113.0 api", "203.0.113.1 web"},
		},
		"both families from the namespace defaults": {
			change: func(o *Objects) {
				o.Class.IsDefault, o.Namespaces = false, []corev1.Namespace{namespace}
				o.Pools[0].Spec.Addresses = []string{"203.0.113.0/30", "2001:db8::/64"}
				o.Peers[0].Spec.Families = []millracev1beta1.AddressFamily{"IPv4", "IPv6"}
			},
			vips: []string{"203.0.113.0 api", "203.0.113.1 web", "2001:db8:: api", "2001:db8::1 web"},
		},
		"IPv6 only": {
			change:   func(o *Objects) { o.Pools[0].Spec.Addresses = []string{"2001:db8::/64"} },
			vips:     []string{"2001:db8:: api", "2001:db8::1 web"},
			problems: []string{"VIPPool public NoPeer"},
		},
		"peer for other nodes": {
			change: func(o *Objects) {
				o.Nodes, o.Peers[0].Spec.NodeSelector = []corev1.Node{node("node1", "a")}, elsewhere
			},
			vips:     []string{"203.0.113.0 api", "203.0.113.1 web"},
			problems: []string{"LBPeer tor1 NoMatch", "VIPAdvertisement all NoMatch"},
		},
		"advertisement for other nodes": {
			change: func(o *Objects) {
				o.Nodes, o.Advertisements[0].Spec.NodeSelector = []corev1.Node{node("node1", "a")}, elsewhere
			},
			vips:     []string{"203.0.113.0 api", "203.0.113.1 web"},
			problems: []string{"VIPAdvertisement all NoMatch"},
		},
		"no peer": {
			change:   func(o *Objects) { o.Peers = nil },
			vips:     []string{"203.0.113.0 api", "203.0.113.1 web"},
			problems: []string{"VIPAdvertisement all NoMatch"},
		},
		"L2 without a peer": {
			change: func(o *Objects) { o.Peers, o.Advertisements[0].Spec.L2 = nil, &millracev1beta1.L2Advertisement{} },
			vips:   []string{"203.0.113.0 api", "203.0.113.1 web"},
		},
		"VIP without a matching advertisement": {
			change: func(o *Objects) {
				other := pool("other", "10.9.0.0/30")
				other.Spec.AutoAssign = new(bool)
				o.Pools = append(o.Pools, other)
				o.Advertisements[0].Spec.Pools = []string{"other"}
			},
			vips:     []string{"203.0.113.0 api", "203.0.113.1 web"},
			problems: []string{"Service api NotSelected", "Service web NotSelected", "VIPAdvertisement all NoMatch"},
		},
		"no advertisement": {
			change: func(o *Objects) { o.Advertisements = nil },
			vips:   []string{"203.0.113.0 api", "203.0.113.1 web"},
			remark: "there is no VIPAdvertisement",
		},
		"no pool": {
			change: func(o *Objects) { o.Pools = nil },
			remark: "there is no VIPPool: the addresses of 2 Services are not verified",
		},
		"too many zones": {
			change: func(o *Objects) {
				for _, zone := range strings.Split("abcdefgh", "") {
					o.Nodes = append(o.Nodes, node(zone, zone))
				}
				prefer := corev1.ServiceTrafficDistributionPreferClose
				o.Services[0].Spec.TrafficDistribution = &prefer
			},
			vips:   []string{"203.0.113.0 api", "203.0.113.1 web"},
			remark: "Service shop/web: spec.trafficDistribution is ignored",
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := plain()
			test.change(objects)
			result := Cluster(objects)
			var vips, problems []string
			for i := range result.VIPs {
				words := []string{}
				for _, claim := range result.VIPs[i].Spec.Claims {
					words = append(words, claim.Name)
				}
				slices.Sort(words)
				vips = append(vips, strings.Join(append([]string{result.VIPs[i].Spec.Address}, words...), " "))
			}
			for _, problem := range result.Problems {
				problems = append(problems, strings.Join([]string{problem.Object.Kind, problem.Object.Name, problem.Reason}, " "))
			}
			if !slices.Equal(vips, test.vips) || !slices.Equal(problems, test.problems) {
				t.Errorf("VIPs %q, want %q; problems %q, want %q\n%+v", vips, test.vips, problems, test.problems, result.Problems)
			}
			if remarks := strings.Join(result.Remarks, "\n"); !strings.Contains(remarks, test.remark) || test.remark == "" && remarks != "" {
				t.Errorf("remarks %q, want %q", remarks, test.remark)
			}
		})
	}
}
