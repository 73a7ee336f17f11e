// SPDX-License-Identifier: Apache-2.0

package report

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func problemsOf(view *View, reason string) []string {
	var found []string
	for _, problem := range view.Problems {
		if problem.Reason == reason {
			found = append(found, problem.Object()+": "+problem.Message)
		}
	}
	return found
}

func group(peer, reason string, addresses ...string) consoleapi.VIPGroup {
	group := consoleapi.VIPGroup{Reason: reason}
	if peer != "" {
		group.Peers = []string{peer}
	}
	for _, address := range addresses {
		group.Addresses = append(group.Addresses, netip.MustParseAddr(address))
	}
	return group
}

// The VIPs of sized(3, 3) are 203.0.0.0, of policy Local, 203.0.0.1 and 203.0.0.2.
func TestSingleAnnouncer(t *testing.T) {
	const spread1, spread2, local = "203.0.0.1", "203.0.0.2", "203.0.0.0"
	for name, test := range map[string]struct {
		first  []consoleapi.VIPGroup
		others []consoleapi.VIPGroup
		want   string
	}{
		"all nodes": {
			[]consoleapi.VIPGroup{group("r", "", spread1, spread2)}, []consoleapi.VIPGroup{group("r", "", spread1, spread2)}, "",
		},
		"one node for a fault": {
			[]consoleapi.VIPGroup{group("r", "", spread1)}, []consoleapi.VIPGroup{group("", "NotAttached", spread1)},
			"VIP/203.0.0.1: only node0 of 3 selected nodes announces it; node1: NotAttached (and on 1 more)",
		},
		"several VIPs for the same fault": {
			[]consoleapi.VIPGroup{group("r", "", spread1, spread2)}, []consoleapi.VIPGroup{group("", "NotAttached", spread1, spread2)},
			"VIP/203.0.0.1: only node0 of 3 selected nodes announces it; node1: NotAttached (and on 1 more); the same applies to 1 more VIPs",
		},
		"one node that is selected": {
			[]consoleapi.VIPGroup{group("r", "", spread1)}, []consoleapi.VIPGroup{group("", "NotSelected", spread1)}, "",
		},
		"policy Local": {
			[]consoleapi.VIPGroup{group("r", "", local)}, []consoleapi.VIPGroup{group("", "NoLocalEndpoint", local)}, "",
		},
		"nodes that do not know it": {
			[]consoleapi.VIPGroup{group("r", "", spread1)}, nil,
			"VIP/203.0.0.1: only node0 of 3 selected nodes announces it; the VIP is unknown there (and on 1 more)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := sized(3, 3)
			in.Agents.Responses["node0"].Groups = test.first
			in.Agents.Responses["node1"].Groups, in.Agents.Responses["node2"].Groups = test.others, test.others
			if got := strings.Join(problemsOf(Build(in), ReasonSingleAnnouncer), "\n"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestGenericXDP(t *testing.T) {
	in := sized(3, 1)
	for i, mode := range []millracev1beta1.XDPMode{millracev1beta1.XDPNative, millracev1beta1.XDPGeneric, millracev1beta1.XDPGeneric} {
		in.LBNodeReports[i].Status.Interfaces = []millracev1beta1.InterfaceStatus{{Name: "eth0", XDPMode: mode, Message: "native XDP not possible: x"}}
	}
	want := "LBNode/node1: XDP runs on eth0 in generic mode, which takes more time per packet: native XDP not possible: x (and on 1 more)"
	if got := strings.Join(problemsOf(Build(in), ReasonGenericXDP), "\n"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDifferences(t *testing.T) {
	in := sized(2, 5)
	in.Agents.Responses["node0"].Groups = []consoleapi.VIPGroup{
		group("r", "", "203.0.0.0", "203.0.0.4"), group("", "NotProgrammed", "203.0.0.1"), group("r", "", "203.0.113.9"),
	}
	view := Build(in)
	if got := problemsOf(view, ReasonNotProgrammed); len(got) != 1 || got[0] != "LBNode/node0: the node has not programmed 203.0.0.1, 203.0.0.2, 203.0.0.3" {
		t.Errorf("not programmed: %q", got)
	}
	if got := problemsOf(view, ReasonStaleVIP); len(got) != 1 || !strings.HasSuffix(got[0], "not VIPs: 203.0.113.9") {
		t.Errorf("stale: %q", got)
	}
	// The report of a node that did not answer has counts.
	delete(in.Agents.Responses, "node0")
	in.LBNodeReports[0].Status.Conditions = append(in.LBNodeReports[0].Status.Conditions, metav1.Condition{Type: millracev1beta1.ConditionReady, Status: metav1.ConditionTrue})
	in.LBNodeReports[0].Status.VIPs.Programmed = 4
	if got := problemsOf(Build(in), ReasonNotProgrammed); len(got) != 1 || !strings.HasSuffix(got[0], "4 of the 5 VIPs that belong to Services") {
		t.Errorf("not programmed, by the counts: %q", got)
	}
}
