// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

var (
	v4 = netip.MustParseAddr("203.0.113.1")
	v6 = netip.MustParseAddr("2001:db8::1")
)

func advertisement(t *testing.T, spec millracev1beta1.VIPAdvertisementSpec) desired.Advertisement {
	t.Helper()
	parsed, problems := desired.ParseAdvertisement(&millracev1beta1.VIPAdvertisement{Spec: spec})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return parsed
}

func TestValidate(t *testing.T) {
	prefer, sctp := corev1.ServiceTrafficDistributionPreferClose, corev1.ProtocolSCTP
	all, links := millracev1beta1.VIPAdvertisementSpec{}, millracev1beta1.VIPAdvertisementSpec{L2: &millracev1beta1.L2Advertisement{}}
	gold := millracev1beta1.VIPAdvertisementSpec{ServiceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}}
	tests := []struct {
		name         string
		spec         corev1.ServiceSpec
		selects      []millracev1beta1.VIPAdvertisementSpec
		services     []labels.Set
		conflicts    []ipam.Conflict
		zones        int
		overCapacity string
		foreign      string
		contested    bool
		silent, v4   bool
		networks     []netip.Prefix

		problems, notes, ports []string
	}{
		{name: "no problem", spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}, {Port: 53, Protocol: "UDP"}}},
			selects: []millracev1beta1.VIPAdvertisementSpec{all}, zones: MaxZones},
		{name: "no advertisement", problems: []string{
			"NotSelected no VIPAdvertisement selects 203.0.113.1, so no node announces it",
			"NotSelected no VIPAdvertisement selects 2001:db8::1, so no node announces it",
		}},
		{name: "no session", selects: []millracev1beta1.VIPAdvertisementSpec{all}, silent: true, problems: []string{
			"NotAnnounced no node selected by VIPAdvertisement all has an established BGP session that carries IPv4 routes, so no node announces 203.0.113.1",
			"NotAnnounced no node selected by VIPAdvertisement all has an established BGP session that carries IPv6 routes, so no node announces 2001:db8::1",
		}},
		{name: "sessions for IPv4", selects: []millracev1beta1.VIPAdvertisementSpec{all}, v4: true, problems: []string{
			"NotAnnounced no node selected by VIPAdvertisement all has an established BGP session that carries IPv6 routes, so no node announces 2001:db8::1",
		}},
		{name: "no node is ready to answer", selects: []millracev1beta1.VIPAdvertisementSpec{links}, silent: true,
			networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}, problems: []string{
				"NotAnnounced no node selected by VIPAdvertisement all is ready, so no node answers for 203.0.113.1",
				"NotAnnounced no node selected by VIPAdvertisement all is ready, so no node answers for 2001:db8::1",
			}},
		{name: "no node has the network", selects: []millracev1beta1.VIPAdvertisementSpec{links},
			networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:1::/64")}, problems: []string{
				"NoLink no node selected by VIPAdvertisement all has an attached uplink in a network that contains 2001:db8::1, " +
					"so no node answers for it: add addresses of the nodes' network to the pool, or list the interfaces in " +
					"spec.l2.interfaces of the VIPAdvertisement",
			}},
		{name: "no node has the network, but routers are notified", selects: []millracev1beta1.VIPAdvertisementSpec{links, all}},
		{name: "status conflict with another load balancer", selects: []millracev1beta1.VIPAdvertisementSpec{all}, foreign: "198.51.100.7", contested: true, problems: []string{
			"StatusConflict another controller repeatedly overwrites the Service's status, so Millrace writes it only every 30 s: " +
				"stop that controller for this Service; metadata.managedFields names it",
			"ForeignAddress status.loadBalancer.ingress also has 198.51.100.7, which is not a VIP of the Service: " +
				"stop the other load balancer for this Service, then remove the entry",
		}},
		{name: "advertisement for one pool only", selects: []millracev1beta1.VIPAdvertisementSpec{{Pools: []string{"six"}}},
			problems: []string{"NotSelected no VIPAdvertisement selects 203.0.113.1, so no node announces it"}},
		{name: "one advertisement per pool", selects: []millracev1beta1.VIPAdvertisementSpec{{Pools: []string{"six"}}, {Pools: []string{"four"}}}},
		{name: "other labels", selects: []millracev1beta1.VIPAdvertisementSpec{gold}, services: []labels.Set{{"tier": "tin"}}, problems: []string{
			"NotSelected no VIPAdvertisement selects 203.0.113.1, so no node announces it",
			"NotSelected no VIPAdvertisement selects 2001:db8::1, so no node announces it",
		}},
		{name: "labels of another Service on the address", selects: []millracev1beta1.VIPAdvertisementSpec{gold},
			services: []labels.Set{{"tier": "tin"}, {"tier": "gold"}}},
		{name: "source ranges", selects: []millracev1beta1.VIPAdvertisementSpec{all},
			spec: corev1.ServiceSpec{LoadBalancerSourceRanges: []string{"198.51.100.0/24", "nonsense"}}, problems: []string{
				`Invalid spec.loadBalancerSourceRanges[1]: "nonsense" is not a prefix such as 198.51.100.0/24, so it permits no client; the other prefixes apply`,
				"Invalid spec.loadBalancerSourceRanges: no prefix has the family of 2001:db8::1, so that address rejects all clients",
			}},
		{name: "SCTP", selects: []millracev1beta1.VIPAdvertisementSpec{all}, spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Port: 1, Protocol: sctp, TargetPort: intstr.FromInt32(1)}, {Port: 2, Protocol: sctp, TargetPort: intstr.FromString("named")},
			{Port: 3, Protocol: sctp, TargetPort: intstr.FromInt32(4)}, {Port: 3, TargetPort: intstr.FromInt32(4)},
		}}, problems: []string{"Unsupported spec.ports[2].targetPort: 4 differs from port 3: ports of SCTP are not translated, because its checksum covers the whole packet"},
			ports: []string{"203.0.113.1 3/SCTP Unsupported", "2001:db8::1 3/SCTP Unsupported"}},
		{name: "unsupported protocol", selects: []millracev1beta1.VIPAdvertisementSpec{all},
			spec:     corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5, Protocol: "QUIC"}}},
			problems: []string{"Unsupported spec.ports[0].protocol: QUIC is not supported: must be TCP, UDP or SCTP"},
			ports:    []string{"203.0.113.1 5/QUIC Unsupported", "2001:db8::1 5/QUIC Unsupported"}},
		{name: "port of another Service", selects: []millracev1beta1.VIPAdvertisementSpec{all},
			conflicts: []ipam.Conflict{{Address: v6, Port: ipam.Port{Number: 53, Protocol: "UDP"}, Owner: ipam.Owner{Namespace: "shop", Name: "dns"}}},
			problems:  []string{"PortConflict port 53/UDP of 2001:db8::1 belongs to Service shop/dns"},
			ports:     []string{"2001:db8::1 53/UDP PortConflict"}},
		{name: "over capacity", selects: []millracev1beta1.VIPAdvertisementSpec{all}, overCapacity: "node1 and others", problems: []string{
			"MapFull the maps are too full for the whole Service on node1 and others: raise the agents' flag that the LBNodeReport names",
		}},
		{name: "too many zones", selects: []millracev1beta1.VIPAdvertisementSpec{all}, zones: MaxZones + 1,
			spec: corev1.ServiceSpec{TrafficDistribution: &prefer}, notes: []string{
				"spec.trafficDistribution is ignored: the nodes are in 8 zones, at most 7 are supported; all endpoints get equal shares of the clients",
			}},
		{name: "too many zones, under policy Local", selects: []millracev1beta1.VIPAdvertisementSpec{all}, zones: MaxZones + 1,
			spec: corev1.ServiceSpec{TrafficDistribution: &prefer, ExternalTrafficPolicy: "Local"}},
		{name: "too many zones, distribution not requested", selects: []millracev1beta1.VIPAdvertisementSpec{all}, zones: MaxZones + 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			inputs := Inputs{Zones: test.zones}
			for _, spec := range test.selects {
				parsed := advertisement(t, spec)
				if spec.Pools == nil {
					parsed.Name = "all"
				}
				inputs.Advertisements = append(inputs.Advertisements, parsed)
				inputs.Announced = append(inputs.Announced, Families{IPv4: !test.silent, IPv6: !test.silent && !test.v4})
				inputs.Networks = append(inputs.Networks, test.networks)
			}
			result := Validate(Subject{
				Service: &corev1.Service{Spec: test.spec},
				Addresses: []Address{
					{Addr: v4, Pool: "four", Services: test.services}, {Addr: v6, Pool: "six", Services: test.services},
				},
				Conflicts:    test.conflicts,
				OverCapacity: test.overCapacity,
				Foreign:      test.foreign,
				Contested:    test.contested,
			}, inputs)
			for i, announcement := range result.Announcements {
				want := Problem{}
				if at := slices.IndexFunc(result.Problems, func(p Problem) bool {
					return strings.HasPrefix(p.Reason, "No") && strings.Contains(p.Message, announcement.Address.String())
				}); at >= 0 {
					want = result.Problems[at]
				}
				if announcement.Problem != want || announcement.Address != []netip.Addr{v4, v6}[i] {
					t.Errorf("announcement %+v, want %+v", announcement, want)
				}
			}
			var problems, ports []string
			for _, problem := range result.Problems {
				problems = append(problems, problem.Reason+" "+problem.Message)
			}
			for _, port := range result.Ports {
				ports = append(ports, fmt.Sprintf("%s %s %s", port.Address, port.Port, port.Reason))
			}
			for what, lists := range map[string][2][]string{
				"problems": {problems, test.problems}, "ports": {ports, test.ports}, "notes": {result.Notes, test.notes},
			} {
				if !slices.Equal(lists[0], lists[1]) {
					t.Errorf("%s are %q, want %q", what, lists[0], lists[1])
				}
			}
		})
	}
}

// An address of a node or router is served on no port, which is the most severe problem.
func TestHosts(t *testing.T) {
	result := Validate(Subject{
		Service:   &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}, {Port: 53, Protocol: "UDP"}}}},
		Addresses: []Address{{Addr: v4, Host: `Node "node1"`}, {Addr: v6}},
	}, Inputs{})
	if len(result.Problems) != 3 || result.Problems[0].Reason != millracev1beta1.ReasonOccupied {
		t.Errorf("problems = %+v", result.Problems)
	}
	if got := result.Announcements[0].Problem; got != result.Problems[0] {
		t.Errorf("problem of the announcement = %+v", got)
	}
	want := []PortError{
		{v4, ipam.Port{Number: 80, Protocol: "TCP"}, millracev1beta1.ReasonOccupied},
		{v4, ipam.Port{Number: 53, Protocol: "UDP"}, millracev1beta1.ReasonOccupied},
	}
	if !slices.Equal(result.Ports, want) {
		t.Errorf("ports = %v, want %v", result.Ports, want)
	}
}
