// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/api/inspect"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

func TestExplain(t *testing.T) {
	packet, err := probe.Packet(probe.Flow{Source: client, Destination: webPort, Protocol: probe.TCP})
	if err != nil {
		t.Fatal(err)
	}
	pod := netip.MustParseAddrPort("198.18.1.2:8080")
	owned := func(primary program.NodeID, chain ...program.NodeID) program.Row {
		row := program.Row{Primary: primary}
		copy(row.Chain[:], chain)
		return row
	}
	for _, test := range []struct {
		name  string
		trace dataplane.Trace
		want  inspect.Trace
		steps string
	}{
		{
			"no VIP",
			dataplane.Trace{Verdict: dataplane.TracePassed},
			inspect.Trace{Verdict: inspect.NotOurs},
			`frontend: 203.0.113.1 is no VIP on this node
verdict: left to the node's own stack`,
		},
		{
			"unused port",
			dataplane.Trace{Verdict: dataplane.TraceDropped, VIP: true, Reason: "no_frontend"},
			inspect.Trace{Verdict: inspect.Dropped, Reason: "no_frontend"},
			`frontend: 203.0.113.1 is a VIP, but no Service takes this packet
verdict: dropped: no_frontend`,
		},
		{
			"refused",
			dataplane.Trace{Verdict: dataplane.TraceDropped, VIP: true, Frontend: 1, Key: webKey, SourceChecked: true, Reason: "source_range"},
			inspect.Trace{Verdict: inspect.Dropped, Reason: "source_range", Service: "default/web"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: loadBalancerSourceRanges of the Service do not hold the source
verdict: dropped: source_range`,
		},
		{
			"another node's",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, VIP: true, Frontend: 1, Key: webKey, Stage1: true, Row: 17, Owners: owned(2, 3, 1),
				Node: 2, LeavesBy: "eth0", ToKernel: true, Packet: []byte{1, 2},
			},
			inspect.Trace{Verdict: inspect.Sent, Service: "default/web", NextNode: "node2", Packet: []byte{1, 2}},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: the Service has no loadBalancerSourceRanges: every source is let in
row: 17 of 4096
primary: node2
secondary: node3, node1: asked in this order for a connection that the primary does not know
verdict: encapsulated to node2, by eth0, the kernel finds the next hop`,
		},
		{
			"an exception",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, VIP: true, Frontend: 1, Key: webKey, SourceChecked: true, Stage1: true, Row: 17,
				Owners: owned(1), Exception: true, Node: 3,
			},
			inspect.Trace{Verdict: inspect.Sent, Service: "default/web", NextNode: "node3"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: loadBalancerSourceRanges of the Service hold the source
row: 17 of 4096
primary: node1
secondary: none: no other node is asked
exception: the connection is held by another node than the row's primary
verdict: encapsulated to node3`,
		},
		{
			"by the zone's table",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, VIP: true, Frontend: 1, Key: webKey, Zonal: true, SourceChecked: true, Stage1: true,
				Row: 17, Owners: owned(2), Node: 2,
			},
			inspect.Trace{Verdict: inspect.Sent, Service: "default/web", NextNode: "node2"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: loadBalancerSourceRanges of the Service hold the source
row: 17 of 4096, in the table for zone east
primary: node2
secondary: none: no other node is asked
verdict: encapsulated to node2`,
		},
		{
			"in another zone",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, FromNode: true, Frontend: 1, Key: webKey, Zonal: true, Stage2: true, OtherZone: true, Node: 3,
			},
			inspect.Trace{Verdict: inspect.Sent, Service: "default/web", NextNode: "node3"},
			`tunnel: encapsulated by another node of the cluster
frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
connection: not known on this node
verdict: encapsulated to node3, the primary by the table of another zone, in which the connection may have begun`,
		},
		{
			"the holder tells",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, FromNode: true, Frontend: 1, Key: webKey, Stage2: true, Established: true, Tells: true,
				Endpoint: 4, EndpointAddress: pod, Node: 2,
			},
			inspect.Trace{Verdict: inspect.Sent, Service: "default/web", NextNode: "node2"},
			`tunnel: encapsulated by another node of the cluster
frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
connection: known, established
endpoint: 198.18.1.2:8080, that of the connection
verdict: encapsulated to node2, which the router had chosen, to tell it that the connection is here`,
		},
		{
			"and is heard",
			dataplane.Trace{Verdict: dataplane.TraceSent, FromNode: true, Frontend: 1, Key: webKey, Told: true, Node: 3},
			inspect.Trace{Verdict: inspect.Sent, Service: "default/web", NextNode: "node3"},
			`tunnel: encapsulated by another node of the cluster
frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
exception: the node that was asked has told who holds the connection; this node remembers it
verdict: encapsulated to node3`,
		},
		{
			"here",
			dataplane.Trace{
				Verdict: dataplane.TraceDelivered, VIP: true, Frontend: 1, Key: webKey, SourceChecked: true, Stage1: true, Row: 17,
				Owners: owned(1), Stage2: true, Chosen: true, Endpoint: 4, EndpointAddress: pod, EndpointRow: 9,
			},
			inspect.Trace{Verdict: inspect.Delivered, Service: "default/web", Endpoint: pod},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
range check: loadBalancerSourceRanges of the Service hold the source
row: 17 of 4096
primary: node1
secondary: none: no other node is asked
connection: not known on this node
endpoint: 198.18.1.2:8080, chosen by row 9 of 512
verdict: delivered to 198.18.1.2:8080 through the node's own stack
reply: leaves node1 straight to the client, with the VIP as its source`,
		},
		{
			"session affinity",
			dataplane.Trace{
				Verdict: dataplane.TraceDelivered, VIP: true, Frontend: 1, Key: webKey, Local: true, Stage2: true,
				Chosen: true, Affinity: true, Endpoint: 4, EndpointAddress: pod,
			},
			inspect.Trace{Verdict: inspect.Delivered, Service: "default/web", Endpoint: pod},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Local
range check: the Service has no loadBalancerSourceRanges: every source is let in
row: none: traffic policy Local stays on the node that the router chose
connection: not known on this node
endpoint: 198.18.1.2:8080, which the client had before (session affinity)
verdict: delivered to 198.18.1.2:8080 through the node's own stack
reply: leaves node1 straight to the client, with the VIP as its source`,
		},
		{
			"asked by another node, and not known here either",
			dataplane.Trace{
				Verdict: dataplane.TraceSent, FromNode: true, Frontend: 1, Key: webKey, Stage2: true, Returned: true, Node: 9,
			},
			inspect.Trace{Verdict: inspect.Sent, Service: "default/web", NextNode: "node with id 9"},
			`tunnel: encapsulated by another node of the cluster
frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Cluster
connection: not known on this node
verdict: encapsulated to node with id 9, which asked first: no former owner knows the connection`,
		},
		{
			"gone endpoint under policy Local",
			dataplane.Trace{
				Verdict: dataplane.TraceDropped, VIP: true, Frontend: 1, Key: webKey, Local: true, Stage2: true,
				Established: true, Endpoint: 4, Reason: "endpoint_gone",
			},
			inspect.Trace{Verdict: inspect.Dropped, Service: "default/web", Reason: "endpoint_gone"},
			`frontend: 203.0.113.1:80/TCP of Service default/web, traffic policy Local
range check: the Service has no loadBalancerSourceRanges: every source is let in
row: none: traffic policy Local stays on the node that the router chose
connection: known, established
endpoint: number 4, which is gone
verdict: dropped: endpoint_gone`,
		},
		{
			"answered",
			dataplane.Trace{Verdict: dataplane.TraceAnswered, VIP: true},
			inspect.Trace{Verdict: inspect.Answered},
			`frontend: 203.0.113.1 is a VIP
verdict: answered by the VIP itself`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := explain(packet, test.trace, testDirectory())
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
