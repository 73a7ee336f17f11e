// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report/reporttest"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/uitest"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

func load(t *testing.T, name string) *view.State {
	t.Helper()
	return &view.State{Input: reporttest.Load(t, "../../render/testdata/"+name)}
}

func messages(built *view.View) string {
	var text strings.Builder
	for _, router := range built.Routers {
		fmt.Fprintf(&text, "%s %s %d/%d\n", router.ID, router.Level, router.Sessions.Good, router.Sessions.All)
	}
	for _, node := range built.Nodes {
		fmt.Fprintf(&text, "%s %s %s\n", node.ID, node.Level, node.Reason)
	}
	for _, service := range built.Services {
		fmt.Fprintf(&text, "%s %s %s %v by %v\n", service.ID, service.Level, service.Reason, service.VIPs, service.By)
	}
	return text.String()
}

func TestHealthy(t *testing.T) {
	built := view.Build(load(t, "healthy"))
	if built.Head.Nodes.Good != 3 || built.Head.VIPs.Good != built.Head.VIPs.All || built.Head.VIPs.All == 0 {
		t.Errorf("the head is %+v", built.Head)
	}
	for _, service := range built.Services {
		if service.Level == view.Bad || service.Level == view.Warning {
			t.Errorf("%+v", service)
		}
	}
	if text := messages(built); !strings.Contains(text, "node/node1 good \n") || !strings.Contains(text, "by [node1 node2 node3]") {
		t.Errorf("the rows are\n%s", text)
	}
}

func TestProblems(t *testing.T) {
	state := load(t, "trouble")
	built := view.Build(state)
	if found := report.Build(state.Input).Problems; len(built.Problems) != len(found) {
		t.Errorf("%d problems, and %d of the report", len(built.Problems), len(found))
	}
	ids := map[string]bool{}
	for _, problem := range built.Problems {
		if ids[problem.ID] {
			t.Errorf("two problems are %q", problem.ID)
		}
		ids[problem.ID] = true
	}
	if !slices.IsSortedFunc(built.Problems, func(a, b view.Problem) int {
		return strings.Compare(strings.Replace(string(a.Level), "bad", "a", 1), strings.Replace(string(b.Level), "bad", "a", 1))
	}) {
		t.Error("the worst problems are not first")
	}
	if text := messages(built); !strings.Contains(text, " bad ") {
		t.Errorf("nothing is bad of\n%s", text)
	}
}

func TestRefused(t *testing.T) {
	state := load(t, "healthy")
	state.Input.Pods, state.Input.LBNodeReports, state.Input.Services, state.Input.EndpointSlices = nil, nil, nil, nil
	if len(view.Build(state).Problems) == 0 {
		t.Fatal("nothing is wrong without pods and Services")
	}
	for _, kind := range []string{"pods", "lbnodereports", "services", "endpointslices"} {
		state.Refused = append(state.Refused, view.Refusal{Kind: kind})
	}
	built := view.Build(state)
	for _, problem := range built.Problems {
		t.Errorf("%+v", problem)
	}
	for _, node := range built.Nodes {
		if node.Level != view.Unknown {
			t.Errorf("%s is %s", node.ID, node.Level)
		}
	}
}

// With the aggregated API, the reason why no node announces a VIP is that of the report.
func TestNotAnnounced(t *testing.T) {
	built := view.Build(uitest.Cluster(uitest.Size{Nodes: 3, VIPs: 3, Zones: 1, Unserved: 1}))
	row := built.Services[slices.IndexFunc(built.Services, func(row view.Service) bool { return row.ID == "service/team-01/web" })]
	if row.Level != view.Bad || row.Announcing == nil || *row.Announcing != 0 || !strings.Contains(row.Note, "no ready endpoint of team-01/web") {
		t.Errorf("the row is %+v", row)
	}
	if built.Head.VIPs != (view.Count{Good: 2, All: 3}) {
		t.Errorf("VIPs are %+v", built.Head.VIPs)
	}
}

func TestDrained(t *testing.T) {
	state := uitest.Cluster(uitest.Size{Nodes: 2, VIPs: 1, Zones: 1})
	state.Input.LBNodes[0].Spec.DrainReason = millracev1beta1.DrainReasonDrained
	if node := view.Build(state).Nodes[0]; node.Level != view.Idle || node.Reason != "Drained" {
		t.Errorf("%+v", node)
	}
}

// Above 60 nodes, rows have indexes instead of names, which would be millions.
func TestManyNodes(t *testing.T) {
	for nodes, names := range map[int]bool{60: true, 61: false} {
		built := view.Build(uitest.Cluster(uitest.Size{Nodes: nodes, VIPs: 2, Zones: 1}))
		row := built.Services[0]
		if (len(row.By) == nodes) != names || *row.Announcing != nodes {
			t.Errorf("with %d nodes a Service is announced by %d, and names %d", nodes, *row.Announcing, len(row.By))
		}
		if (row.Ranges == "0-60" && len(built.Answered) == 61) == names {
			t.Errorf("with %d nodes a Service has the places %q of %d", nodes, row.Ranges, len(built.Answered))
		}
	}
}

// Equal ranges of a Service's VIPs are merged, and long ones omitted.
func TestRanges(t *testing.T) {
	var many []string
	for place := 0; place < 400; place += 2 {
		many = append(many, fmt.Sprint(place))
	}
	for name, test := range map[string]struct {
		announced []livev1alpha1.Announced
		want      string
	}{
		"by peers":  {[]livev1alpha1.Announced{{NodeRanges: "0-4,7"}, {NodeRanges: "9"}, {NodeRanges: "7"}}, "0-4,7,9"},
		"by nobody": {nil, ""},
		"long":      {[]livev1alpha1.Announced{{NodeRanges: strings.Join(many, ",")}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			state := uitest.Cluster(uitest.Size{Nodes: 400, VIPs: 1, Zones: 1})
			state.Announcements.Items[0].Announced = test.announced
			if got := view.Build(state).Services[0].Ranges; got != test.want {
				t.Errorf("the ranges are %q, want %q", got, test.want)
			}
		})
	}
}

func TestDetails(t *testing.T) {
	state := uitest.Cluster(uitest.Size{Nodes: 3, VIPs: 3, Zones: 1, Down: 1, Unserved: 1})
	built := view.Build(state)
	for id, want := range map[string]string{
		"node/node-001":         "connection refused",
		"router/tor-b":          "no packet of the router came",
		"service/team-01/web":   "no ready endpoint of team-01/web",
		"service/team-01/api":   "198.18.100.3",
		"node/none":             "",
		"service/team-01":       "",
		"service/team-01/web/x": "",
		"vip/203.0.113.200":     "",
		"":                      "",
	} {
		details, found := view.DetailsOf(state, built, id)
		text, err := json.Marshal(details)
		if err != nil || found != (want != "") || !strings.Contains(string(text), want) {
			t.Errorf("%s: no %q in %s (%v)", id, want, text, err)
		}
	}
}

func TestChanges(t *testing.T) {
	encode := func(size uitest.Size) *view.Encoded {
		encoded, err := view.Encode(view.Build(uitest.Cluster(size)))
		if err != nil {
			t.Fatal(err)
		}
		return encoded
	}
	before := encode(uitest.Size{Nodes: 4, VIPs: 5, Zones: 1})
	after := encode(uitest.Size{Nodes: 3, VIPs: 5, Zones: 1, Down: 1})
	if same := view.Changes(before, before); !reflect.DeepEqual(same, view.Change{}) {
		t.Errorf("between the same: %+v", same)
	}
	change := view.Changes(before, after)
	if change.Full || !slices.Equal(change.Nodes.Gone, []string{"node/node-004"}) || len(change.Nodes.Set) != 1 {
		t.Errorf("nodes: %+v", change.Nodes)
	}
	if len(change.Problems.Set) == 0 || len(change.Routers.Set) != 2 || change.Head == nil {
		t.Errorf("%+v", change)
	}
	if first := view.Changes(nil, after); !first.Full || len(first.Nodes.Set) != 3 || first.Nodes.Gone != nil {
		t.Errorf("the first: %+v", first.Nodes)
	}
}
