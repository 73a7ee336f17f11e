// SPDX-License-Identifier: Apache-2.0

package unprogrammed

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slice returns an EndpointSlice with endpoints such as "a@node1", or "a@node1-" if unready.
func slice(service string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, text := range endpoints {
		name, unready := strings.CutSuffix(text, "-")
		address, node, _ := strings.Cut(name, "@")
		ready := !unready
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

func ready(all []*discoveryv1.EndpointSlice) (addresses []string) {
	for _, s := range all {
		for i := range s.Endpoints {
			if isReady(&s.Endpoints[i]) {
				addresses = append(addresses, s.Endpoints[i].Addresses[0])
			}
		}
	}
	slices.Sort(addresses)
	return addresses
}

// The agent of node 3 is silent from 60 s on, and node 4 is down. Times are in seconds.
func TestAdvance(t *testing.T) {
	type step struct {
		at      int
		slices  []*discoveryv1.EndpointSlice
		returns bool
		want    string
	}
	one := func(endpoints ...string) []*discoveryv1.EndpointSlice {
		return []*discoveryv1.EndpointSlice{slice("web", endpoints...)}
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"endpoint that appears later is withheld until the return", []step{
			{0, one("a@node1", "b@node3"), false, "a b"},
			{70, one("a@node1", "b@node3", "c@node3"), false, "a b"},
			{200, one("a@node1", "b@node3", "c@node3"), false, "a b"},
			{210, one("a@node1", "b@node3", "c@node3"), true, "a b c"},
		}},
		{"endpoint from just before the silence is withheld", []step{
			{0, one("a@node1"), false, "a"}, {55, one("a@node1", "c@node3"), false, "a c"}, {61, one("a@node1", "c@node3"), false, "a"},
		}},
		{"endpoint from long before the silence is programmed", []step{
			{0, one("a@node1"), false, "a"}, {40, one("a@node1", "c@node3"), false, "a c"}, {61, one("a@node1", "c@node3"), false, "a c"},
		}},
		{"endpoint that becomes ready later is withheld", []step{
			{0, one("a@node1", "c@node3-"), false, "a"}, {70, one("a@node1", "c@node3"), false, "a"},
		}},
		{"the only endpoints are used", []step{
			{0, one(), false, ""}, {70, one("c@node3"), false, "c"}, {80, one("c@node3", "d@node3"), false, "c d"},
			{90, one("c@node3", "d@node3", "e@node2"), false, "e"},
		}},
		{"endpoint of another Service does not count", []step{
			{0, []*discoveryv1.EndpointSlice{slice("web"), slice("other", "x@node1")}, false, "x"},
			{70, []*discoveryv1.EndpointSlice{slice("web", "c@node3"), slice("other", "x@node1", "y@node3")}, false, "c x"},
		}},
		{"endpoint on a down node does not count", []step{
			{0, one("a@node4"), false, "a"}, {70, one("a@node4", "c@node3"), false, "a c"},
		}},
		{"address in another Service is programmed", []step{
			{0, []*discoveryv1.EndpointSlice{slice("web", "a@node1", "n@node3"), slice("other", "x@node1")}, false, "a n x"},
			{70, []*discoveryv1.EndpointSlice{slice("web", "a@node1", "n@node3"), slice("other", "x@node1", "n@node3")}, false, "a n x"},
		}},
		{"endpoints of the first pass are programmed", []step{{70, one("a@node1", "c@node3"), false, "a c"}}},
		{"recreated slice is programmed", []step{
			{0, one("a@node1", "b@node3"), false, "a b"}, {70, nil, false, ""}, {80, one("a@node1", "b@node3"), false, "a b"},
		}},
		{"slice removed before the silence", []step{
			{0, one("a@node1", "b@node3"), false, "a b"}, {50, one("a@node1"), false, "a"}, {80, one("a@node1", "b@node3"), false, "a"},
		}},
		{"endpoint moved to another slice is programmed", []step{
			{0, one("a@node1", "b@node3"), false, "a b"},
			{70, append(one("a@node1"), slice("web", "b@node3")), false, "a b"},
			{80, append(one("a@node1", "c@node3"), slice("web", "b@node3")), false, "a b"},
			{90, append(one("a@node1"), slice("web", "b@node3", "c@node3")), false, "a b"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			tracker := New(nil)
			for _, step := range test.steps {
				silent := map[string]time.Time{}
				if step.at >= 60 && !step.returns {
					silent["node3"] = start.Add(time.Minute)
				}
				got := tracker.Advance(step.slices, silent, map[string]bool{"node4": true}, start.Add(time.Duration(step.at)*time.Second))
				if addresses := strings.Join(ready(got), " "); addresses != step.want {
					t.Errorf("after %d s: ready endpoints = %q, want %q", step.at, addresses, step.want)
				}
			}
		})
	}
}

// Without a change the result has the same objects, and cached objects are not modified.
func TestSameObjects(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	silent := map[string]time.Time{"node3": start}
	tracker := New([]*discoveryv1.EndpointSlice{slice("web", "a@node1"), slice("other", "x@node1")})
	present := []*discoveryv1.EndpointSlice{slice("web", "a@node1", "c@node3"), slice("other", "x@node1")}
	first := tracker.Advance(present, silent, nil, start)
	second := tracker.Advance(slices.Clone(present), silent, nil, start.Add(time.Second))
	if first[0] != second[0] || first[0] == present[0] || first[1] != present[1] {
		t.Error("two passes return different EndpointSlices, or the changed slice was not copied")
	}
	if got := strings.Join(ready(present), " "); got != "a c x" {
		t.Errorf("ready endpoints in the cache = %q, want all", got)
	}
	if serving := first[0].Endpoints[1].Conditions.Serving; serving == nil || !*serving {
		t.Error("a withheld endpoint is not serving")
	}
}

// Endpoints that left while their node's agent is silent take no memory.
func TestForget(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	silent := map[string]time.Time{"node3": start}
	tracker := New([]*discoveryv1.EndpointSlice{slice("web", "a@node1", "b@node3")})
	for i := range 100 {
		tracker.Advance([]*discoveryv1.EndpointSlice{slice("web", fmt.Sprintf("c%d@node3", i))}, silent, nil, start.Add(time.Minute))
	}
	if appeared, left := len(tracker.appeared), len(tracker.left); appeared != 1 || left != 2 {
		t.Errorf("%d new and %d removed endpoints are tracked, want 1 and 2", appeared, left)
	}
	tracker.Advance(nil, nil, nil, start.Add(2*time.Minute))
	tracker.Advance(nil, nil, nil, start.Add(3*time.Minute))
	if n := len(tracker.appeared) + len(tracker.left) + len(tracker.slices); n > 0 {
		t.Errorf("%d entries remain", n)
	}
}
