// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
)

// The agents' answers can be restored from the aggregated API's announcements for any decisions.
func TestAnnouncedLive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := []string{"node1", "node2", "node3", "node4", "node5"}
		decisions := []consoleapi.VIPGroup{{Peers: []string{"a"}}, {Peers: []string{"a", "b"}}, {Reason: "NoEndpoint"}, {Reason: "NoEndpoint", Message: "x"}}
		want := map[string]map[string]string{}
		list := &livev1alpha1.VIPAnnouncementList{NodeAnswers: livev1alpha1.NodeAnswers{Answered: nodes, Silent: []string{"node6", "node7"}}}
		for _, node := range nodes {
			want[node] = map[string]string{}
		}
		for i := range rapid.IntRange(0, 6).Draw(t, "vips") {
			vip := netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})
			item := livev1alpha1.VIPAnnouncement{Address: vip.String()}
			places := map[int][]string{}
			for place, node := range nodes {
				if number := rapid.IntRange(-1, len(decisions)-1).Draw(t, "decision"); number >= 0 {
					places[number] = append(places[number], fmt.Sprint(place))
					want[node][vip.String()] = fmt.Sprint(decisions[number].Peers, decisions[number].Reason, decisions[number].Message)
				}
			}
			for number, places := range places {
				if decision := decisions[number]; len(decision.Peers) > 0 {
					item.Announced = append(item.Announced, livev1alpha1.Announced{Peers: decision.Peers, NodeRanges: strings.Join(places, ",")})
				} else {
					item.Withheld = append(item.Withheld, livev1alpha1.Withheld{Reason: decision.Reason, Message: decision.Message, NodeRanges: strings.Join(places, ",")})
				}
			}
			list.Items = append(list.Items, item)
		}
		agents, err := AnnouncedLive(list, nil, []string{"node1", "node6"})
		if err != nil {
			t.Fatal(err)
		}
		if failures := slices.Collect(maps.Keys(agents.Failures)); !slices.Equal(failures, []string{"node6"}) {
			t.Fatalf("failures of %v, want node6: no agent runs on node7", failures)
		}
		got := map[string]map[string]string{}
		for node, answer := range agents.Responses {
			got[node] = map[string]string{}
			for _, group := range answer.Groups {
				for _, address := range group.Addresses {
					got[node][address.String()] = fmt.Sprint(group.Peers, group.Reason, group.Message)
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

func TestAnnouncedLivePartial(t *testing.T) {
	group := []livev1alpha1.Announced{{Peers: []string{"a"}, NodeRanges: "0-2"}}
	list := &livev1alpha1.VIPAnnouncementList{
		NodeAnswers: livev1alpha1.NodeAnswers{Answered: []string{"node1", "node2", "node3"}},
		Items:       []livev1alpha1.VIPAnnouncement{{Address: "203.0.113.1", Announced: group}, {Address: "203.0.113.2", Announced: group}},
	}
	agents, err := AnnouncedLive(list, []string{"203.0.113.2"}, nil)
	if groups := agents.Responses["node3"].Groups; err != nil || len(groups) != 1 || len(groups[0].Addresses) != 1 || groups[0].Addresses[0].String() != "203.0.113.2" {
		t.Errorf("%+v, %v", groups, err)
	}
	for _, ranges := range []string{"", "3", "2-1", "0-3", "x", "-1"} {
		list.Items[0].Announced = []livev1alpha1.Announced{{Peers: []string{"a"}, NodeRanges: ranges}}
		if _, err := AnnouncedLive(list, nil, nil); err == nil {
			t.Errorf("%q is read without an error", ranges)
		}
	}
}

func TestSessionsLive(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	list := &livev1alpha1.BGPSessionList{
		NodeAnswers: livev1alpha1.NodeAnswers{Answered: []string{"node1", "node10", "node2"}},
		Items: []livev1alpha1.BGPSession{{
			Node: "node2", Peer: "tor1", Address: "198.51.100.1", LocalAddress: "198.51.100.11", State: "Established", Since: &metav1.Time{Time: at},
			LastError: "closed", LastErrorTime: &metav1.Time{Time: at}, Flaps: 2, Families: []string{"IPv4"}, RoutesSent: 3, UpdatesSent: 4, UpdatesReceived: 5,
			Due: &metav1.Time{Time: at}, BFD: "Down", BFDMessage: "no packet",
		}},
	}
	peer := consoleapi.BGPPeer{
		Peer: "tor1", Address: netip.MustParseAddr("198.51.100.1"), LocalAddress: netip.MustParseAddr("198.51.100.11"), State: "Established", Since: at,
		LastError: "closed", LastErrorTime: at, Flaps: 2, Families: []string{"IPv4"}, RoutesSent: 3, UpdatesSent: 4, UpdatesReceived: 5, Due: at,
		BFD: "Down", BFDMessage: "no packet",
	}
	want := []consoleapi.BGP{{Node: "node1"}, {Node: "node2", Peers: []consoleapi.BGPPeer{peer}}, {Node: "node10"}}
	if got := SessionsLive(list, nil); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := SessionsLive(list, []string{"node2", "node3"}); !reflect.DeepEqual(got, want[1:2]) {
		t.Errorf("of one: %+v, want %+v", got, want[1:2])
	}
}
