// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"strings"
	"testing"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func TestDescribe(t *testing.T) {
	packet, err := marshal(clientPacket{Source: client, Destination: webPort, Protocol: TCP})
	if err != nil {
		t.Fatal(err)
	}
	pod := netip.MustParseAddrPort("198.18.1.2:8080")
	owned := func(primary forwarding.NodeID, chain ...forwarding.NodeID) forwarding.Row {
		row := forwarding.Row{Primary: primary}
		copy(row.Chain[:], chain)
		return row
	}
	for _, test := range []struct {
		name  string
		trace dataplane.Trace
		want  consoleapi.Trace
		steps string
	}{
		{
			"no VIP",
			dataplane.Trace{Verdict: dataplane.TracePassed},
			consoleapi.Trace{Verdict: consoleapi.NotOurs},
			`frontend: 203.0.113.1 is not a VIP on this node
verdict: passed to the node's network stack`,
		},
		{
			"unused port",
			dataplane.Trace{Verdict: dataplane.TraceDropped, VIP: true, Reason: "no_frontend"},
			consoleapi.Trace{Verdict: consoleapi.Dropped, Reason: "no_frontend"},
			`frontend: 203.0.113.1 is a VIP, but no Service serves this packet
verdict: dropped: no_frontend`,
		},
		{
			"refused",
			dataplane.Trace{Verdict: dataplane.TraceDropped, VIP: true, Frontend: 1, Key: webKey, SourceChecked: true, Reason: "source_range"},
			consoleapi.Trace{Verdict: consoleapi.Dropped, Reason: "source_range", Service: "default/web"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: loadBalancerSourceRanges of the Service do not contain the source
verdict: dropped: source_range`,
		},
		{
			"another node's",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, VIP: true, Frontend: 1, Key: webKey, Stage1: true, Row: 17, Rows: 4096, Owners: owned(2, 3, 1),
				Node: 2, LeavesBy: "eth0", ToKernel: true, Packet: []byte{1, 2},
			},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node2", Packet: []byte{1, 2}},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: the Service has no loadBalancerSourceRanges: every source is admitted
row: 17 of 4096
primary: node2
secondary: node3, node1: queried in this order for a connection that the primary does not have
verdict: encapsulated to node2, by eth0, the kernel resolves the next hop`,
		},
		{
			"an override",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, VIP: true, Frontend: 1, Key: webKey, SourceChecked: true, Stage1: true, Row: 17, Rows: 4096,
				Owners: owned(1), Override: true, Node: 3,
			},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node3"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: loadBalancerSourceRanges of the Service contain the source
row: 17 of 4096
primary: node1
secondary: none: no other node is queried
override: another node than the row's primary owns the connection
verdict: encapsulated to node3`,
		},
		{
			"by the zone's table",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, VIP: true, Frontend: 1, Key: webKey, Zonal: true, SourceChecked: true, Stage1: true,
				Row: 17, Rows: 4096, Owners: owned(2), Node: 2,
			},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node2"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: loadBalancerSourceRanges of the Service contain the source
row: 17 of 4096, in the table for zone east
primary: node2
secondary: none: no other node is queried
verdict: encapsulated to node2`,
		},
		{
			"the agent is silent",
			dataplane.Trace{Verdict: dataplane.TraceSent, FromNode: true, Frontend: 1, Key: webKey, Stage2: true, Delegated: true, Node: 3},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node3"},
			`tunnel: encapsulated by another node of the cluster
frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
connection: not found on this node
verdict: encapsulated to node3, another node of the row, which selects the endpoint: the agent of this node is silent, so its maps may be stale`,
		},
		{
			"in another zone",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, FromNode: true, Frontend: 1, Key: webKey, Zonal: true, Stage2: true, OtherZone: true, Node: 3,
			},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node3"},
			`tunnel: encapsulated by another node of the cluster
frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
connection: not found on this node
verdict: encapsulated to node3, the primary by the table of another zone, in which the connection may have begun`,
		},
		{
			"the owner notifies the ingress node",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, FromNode: true, Frontend: 1, Key: webKey, Stage2: true, Established: true, RedirectSent: true,
				Endpoint: 4, EndpointAddress: pod, Node: 2,
			},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node2"},
			`tunnel: encapsulated by another node of the cluster
frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
connection: known, established
endpoint: 198.18.1.2:8080, that of the connection
verdict: encapsulated to node2, the ingress node, as a notice that this node owns the connection`,
		},
		{
			"the ingress node is notified",
			dataplane.Trace{Verdict: dataplane.TraceSent, FromNode: true, Frontend: 1, Key: webKey, RedirectReceived: true, Node: 3},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node3"},
			`tunnel: encapsulated by another node of the cluster
frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
override: the queried node has named the owner of the connection, which this node records
verdict: encapsulated to node3`,
		},
		{
			"here",
			dataplane.Trace{
				Verdict: dataplane.TraceDelivered, VIP: true, Frontend: 1, Key: webKey, SourceChecked: true, Stage1: true, Row: 17, Rows: 4096,
				Owners: owned(1), Stage2: true, Chosen: true, Endpoint: 4, EndpointAddress: pod, EndpointRow: 9,
			},
			consoleapi.Trace{Verdict: consoleapi.Delivered, Service: "default/web", Endpoint: pod},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: loadBalancerSourceRanges of the Service contain the source
row: 17 of 4096
primary: node1
secondary: none: no other node is queried
connection: not found on this node
endpoint: 198.18.1.2:8080, selected by row 9 of 512
verdict: delivered to 198.18.1.2:8080 through the node's network stack
reply: leaves node1 directly to the client, with the VIP as its source`,
		},
		{
			"session affinity",
			dataplane.Trace{
				Verdict: dataplane.TraceDelivered, VIP: true, Frontend: 1, Key: webKey, Local: true, Stage2: true,
				Chosen: true, Affinity: true, Endpoint: 4, EndpointAddress: pod,
			},
			consoleapi.Trace{Verdict: consoleapi.Delivered, Service: "default/web", Endpoint: pod},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Local
range check: the Service has no loadBalancerSourceRanges: every source is admitted
row: none: traffic policy Local stays on the ingress node, unless another node owns the connection
connection: not found on this node
endpoint: 198.18.1.2:8080, the client's previous endpoint (session affinity)
verdict: delivered to 198.18.1.2:8080 through the node's network stack
reply: leaves node1 directly to the client, with the VIP as its source`,
		},
		{
			"lookup by another node, unknown here",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, FromNode: true, Frontend: 1, Key: webKey, Stage2: true, Returned: true, Node: 9,
			},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node with id 9"},
			`tunnel: encapsulated by another node of the cluster
frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
connection: not found on this node
verdict: encapsulated to node with id 9, which queried first: no previous owner has the connection`,
		},
		{
			"removed endpoint, policy Local",
			dataplane.Trace{
				Verdict: dataplane.TraceDropped, VIP: true, Frontend: 1, Key: webKey, Local: true, Stage2: true,
				Established: true, Endpoint: 4, Reason: "endpoint_gone",
			},
			consoleapi.Trace{Verdict: consoleapi.Dropped, Service: "default/web", Reason: "endpoint_gone"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Local
range check: the Service has no loadBalancerSourceRanges: every source is admitted
row: none: traffic policy Local stays on the ingress node, unless another node owns the connection
connection: known, established
endpoint: number 4, which no longer exists
verdict: dropped: endpoint_gone`,
		},
		{
			"lookup, policy Local",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, VIP: true, Frontend: 1, Key: webKey, Local: true, Stage2: true,
				LookupForwarded: true, Node: 9,
			},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node with id 9"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Local
range check: the Service has no loadBalancerSourceRanges: every source is admitted
row: none: traffic policy Local stays on the ingress node, unless another node owns the connection
connection: not found on this node
verdict: encapsulated to node with id 9, the row's primary or a previous owner, which may have the connection or know its owner`,
		},
		{
			"held elsewhere under policy Local",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, VIP: true, Frontend: 1, Key: webKey, Local: true, Stage2: true,
				Override: true, Node: 9,
			},
			consoleapi.Trace{Verdict: consoleapi.Sent, Service: "default/web", NextNode: "node with id 9"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Local
range check: the Service has no loadBalancerSourceRanges: every source is admitted
row: none: traffic policy Local stays on the ingress node, unless another node owns the connection
connection: not found on this node
verdict: encapsulated to node with id 9, which has reported that it owns the connection`,
		},
		{
			"answered",
			dataplane.Trace{Verdict: dataplane.TraceAnswered, VIP: true},
			consoleapi.Trace{Verdict: consoleapi.Answered},
			`frontend: 203.0.113.1 is a VIP
verdict: answered by the VIP itself`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := describe(packet, test.trace, testDirectory())
			var lines []string
			for _, step := range got.Steps {
				lines = append(lines, step.Name+": "+step.Text)
			}
			if steps := strings.Join(lines, "\n"); steps != test.steps {
				t.Errorf("steps\n%s\nwant\n%s", steps, test.steps)
			}
			if got.Verdict != test.want.Verdict || got.Reason != test.want.Reason || got.Service != test.want.Service ||
				got.NextNode != test.want.NextNode || string(got.Packet) != string(test.want.Packet) || got.Endpoint != test.want.Endpoint {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

// TestDescribePolicyLocalWithAffinity checks that the trace shows the Service's policy even if session
// affinity selects the endpoint.
func TestDescribePolicyLocalWithAffinity(t *testing.T) {
	names := testDirectory()
	names.Local = map[forwarding.FrontendKey]bool{webKey: true}
	trace := dataplane.Trace{
		Verdict: dataplane.TraceSent, VIP: true, Frontend: 1, Key: webKey, Stage1: true, Row: 17, Rows: 4096,
		Owners: forwarding.Row{Primary: 2}, Node: 2,
	}
	got := describe(nil, trace, names).Steps[0]
	if want := "203.0.113.1:80/TCP of Service default/web, traffic policy Local"; got.Text != want {
		t.Errorf("%s: %s, want %s", got.Name, got.Text, want)
	}
}

// TestDescribeRoute checks that the trace of a frontend with a VIPRoute names its Services and the
// endpoint's Service.
func TestDescribeRoute(t *testing.T) {
	pod := netip.MustParseAddrPort("198.18.1.2:8080")
	names := testDirectory()
	names.Backends = map[forwarding.FrontendKey][]Backend{webKey: {
		{Service: "shop/blue", Weight: 90},
		{Service: "shop/green", Weight: 10, Endpoints: []netip.AddrPort{pod}},
		{Service: "shop/gone", Weight: 5, Refused: true},
		{Weight: 1, Refused: true},
	}}
	route := "a VIPRoute leads to Service shop/blue, weight 90; Service shop/green, weight 10; " +
		"Service shop/gone, weight 5 (refused); an invalid backend, weight 1 (refused)"
	chosen := dataplane.Trace{
		Verdict: dataplane.TraceDelivered, FromNode: true, Frontend: 1, Key: webKey, Stage2: true, Chosen: true,
		Endpoint: 4, EndpointAddress: pod, EndpointRow: 9,
	}
	refused := dataplane.Trace{
		Verdict: dataplane.TraceDropped, FromNode: true, Frontend: 1, Key: webKey, Stage2: true, Reason: "backend_invalid",
	}
	for want, trace := range map[string]dataplane.Trace{
		"198.18.1.2:8080 of Service shop/green, selected by row 9 of 512": chosen,
		"none: the flow is in the share of a rejected backend":            refused,
	} {
		told := map[string]string{}
		for _, step := range describe(nil, trace, names).Steps {
			told[step.Name] = step.Text
		}
		if told["route"] != route {
			t.Errorf("route: %s, want %s", told["route"], route)
		}
		if told["endpoint"] != want {
			t.Errorf("endpoint: %s, want %s", told["endpoint"], want)
		}
	}
}
