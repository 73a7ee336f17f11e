// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"testing"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/uitest"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

func count(state *view.State, node int, announced int32) {
	state.Input.LBNodeReports[node].Status.VIPs = millracev1beta1.VIPCounts{Programmed: 2, Announced: announced}
}

// TestUnknown checks that without a source, each number and level is known from another one, or unknown.
func TestUnknown(t *testing.T) {
	refuse := func(state *view.State, kinds ...string) {
		for _, kind := range kinds {
			state.Refused = append(state.Refused, view.Refusal{Kind: kind})
		}
	}
	withoutLive := func(state *view.State, announced ...int32) {
		state.Traffic, state.Announcements = nil, nil
		state.LiveOutage = &view.Outage{Since: time.Unix(1, 0), Message: "live.millrace.io is not installed"}
		for node, vips := range announced {
			count(state, node, vips)
		}
	}
	good, bad, unknown := view.Count{Good: 2, All: 2}, view.Count{All: 2}, view.Count{All: 2, Unknown: 2}
	sessions := view.Count{Good: 4, All: 4}
	for name, test := range map[string]struct {
		change func(*view.State)
		// vips, nodes and sessions are the head's, levels those of a Service, a node and a router.
		vips, nodes, sessions view.Count
		levels                [3]view.Level
	}{
		"all sources": {
			func(*view.State) {}, good, good, sessions, [3]view.Level{view.Good, view.Good, view.Good},
		},
		"no aggregated API, all nodes report all VIPs": {
			func(s *view.State) { withoutLive(s, 2, 2) }, good, good, sessions, [3]view.Level{view.Good, view.Good, view.Good},
		},
		"no aggregated API, no node reports a VIP": {
			func(s *view.State) { withoutLive(s, 0, 0) }, bad, good, sessions, [3]view.Level{view.Bad, view.Good, view.Good},
		},
		"no aggregated API, nodes report some VIPs": {
			func(s *view.State) { withoutLive(s, 1, 0) }, unknown, good, sessions, [3]view.Level{view.Unknown, view.Good, view.Good},
		},
		"no aggregated API, one node reports all": {
			func(s *view.State) { withoutLive(s, 1, 2) }, good, good, sessions, [3]view.Level{view.Good, view.Good, view.Good},
		},
		"no aggregated API, the reports may be old": {
			func(s *view.State) {
				withoutLive(s, 2, 2)
				s.Input.Pods = nil
				refuse(s, "pods")
			}, unknown, unknown, view.Count{All: 4, Unknown: 4}, [3]view.Level{view.Unknown, view.Unknown, view.Unknown},
		},
		"no aggregated API, no reports": {
			func(s *view.State) {
				withoutLive(s)
				s.Input.LBNodeReports = nil
				refuse(s, "lbnodereports")
			}, unknown, unknown, view.Count{}, [3]view.Level{view.Unknown, view.Unknown, view.Unknown},
		},
		"the aggregated API is stale": {
			func(s *view.State) {
				s.LiveOutage = &view.Outage{Since: time.Unix(2, 0), Seen: time.Unix(1, 0), Message: "no answer"}
			}, unknown, good, sessions, [3]view.Level{view.Unknown, view.Good, view.Good},
		},
		"the aggregated API has no answer of any node": {
			func(s *view.State) {
				s.Announcements.Answered, s.Announcements.Silent = nil, []string{"node-001", "node-002"}
				count(s, 0, 1)
				count(s, 1, 1)
			}, unknown, good, sessions, [3]view.Level{view.Unknown, view.Good, view.Good},
		},
		"agents do not run": {
			func(s *view.State) { s.Input.Pods = s.Input.Pods[:1] },
			good, bad, view.Count{All: 4, Unknown: 4}, [3]view.Level{view.Good, view.Bad, view.Unknown},
		},
	} {
		t.Run(name, func(t *testing.T) {
			state := uitest.Cluster(uitest.Size{Nodes: 2, VIPs: 2, Zones: 1})
			test.change(state)
			built := view.Build(state)
			if head := built.Head; head.VIPs != test.vips || head.Nodes != test.nodes || head.Sessions != test.sessions {
				t.Errorf("VIPs %+v, want %+v; nodes %+v, want %+v; sessions %+v, want %+v",
					head.VIPs, test.vips, head.Nodes, test.nodes, head.Sessions, test.sessions)
			}
			if got := [3]view.Level{built.Services[0].Level, built.Nodes[0].Level, built.Routers[0].Level}; got != test.levels {
				t.Errorf("the levels are %v, want %v", got, test.levels)
			}
			if (built.Head.Rates != nil) != (state.Traffic != nil) {
				t.Errorf("the rates are %+v", built.Head.Rates)
			}
		})
	}
}

func TestUnknownEndpoints(t *testing.T) {
	state := uitest.Cluster(uitest.Size{Nodes: 2, VIPs: 2, Zones: 1})
	state.Input.EndpointSlices, state.Refused = nil, []view.Refusal{{Kind: "endpointslices"}}
	if got := view.Build(state).Head.Endpoints; got != (view.Count{}) {
		t.Errorf("the endpoints are %+v", got)
	}
}
