// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"fmt"
	"slices"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	ready       = 'R'
	unready     = 'U'
	terminating = 'T'
	gone        = '-'
)

// slicesOf returns an EndpointSlice per text, with the states of pods on nodes 0, 1, ...
func slicesOf(services ...string) []*discoveryv1.EndpointSlice {
	var all []*discoveryv1.EndpointSlice
	for n, pods := range services {
		name := fmt.Sprintf("s%d", n)
		object := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name},
		}}
		for i, state := range pods {
			if state == gone {
				continue
			}
			node, isReady, ends := fmt.Sprint(i), state == ready, state == terminating
			object.Endpoints = append(object.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("198.18.%d.%d", n, i)}, NodeName: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: &isReady, Serving: &isReady, Terminating: &ends},
			})
		}
		all = append(all, object)
	}
	return all
}

// readyOf is the inverse of slicesOf, with ready and unready pods.
func readyOf(all []*discoveryv1.EndpointSlice, nodes int) (services []string) {
	for _, object := range all {
		pods := slices.Repeat([]byte{gone}, nodes)
		for i := range object.Endpoints {
			if e := &object.Endpoints[i]; isReady(e) && (e.Conditions.Serving == nil || *e.Conditions.Serving) {
				pods[(*e.NodeName)[0]-'0'] = ready
			}
		}
		services = append(services, string(pods))
	}
	return services
}

func everywhere(string) bool { return true }

type look struct {
	after  time.Duration
	pods   []string
	silent string
	want   []string
	served Served
}

func TestThreshold(t *testing.T) {
	all := []string{"RRR", "RRR", "RRR"}
	none := []string{"UUU", "UUU", "UUU"}
	for name, looks := range map[string][]look{
		"all at the same time": {
			{pods: all, want: all},
			{pods: none, want: all, served: Served{9, 3}},
			{after: time.Hour, pods: none, want: all, served: Served{9, 3}},
			{after: time.Second, pods: []string{"RUU", "RUU", "RUU"}, want: all, served: Served{6, 3}},
			{after: time.Second, pods: []string{"RRU", "RRR", "RRR"}, want: all, served: Served{1, 1}},
			// The last pods have Window to follow, and newly unready ones a moment.
			{after: time.Second, pods: []string{"RRU", "RUR", "RRR"}, want: all, served: Served{2, 2}},
			{after: settleDelay, pods: []string{"RRU", "RUR", "RRR"}, want: []string{"RRR", "R-R", "RRR"}, served: Served{1, 1}},
			{after: Window, pods: []string{"RRU", "RUR", "RRR"}, want: []string{"RR-", "R-R", "RRR"}},
		},
		"all at the same time, twice": {
			{pods: all, want: all},
			{pods: none, want: all, served: Served{9, 3}},
			{after: time.Second, pods: []string{"RRU", "RRU", "RRU"}, want: all, served: Served{3, 3}},
			{after: Window - time.Second, pods: none, want: all, served: Served{9, 3}},
			{after: 2 * Window, pods: none, want: all, served: Served{9, 3}},
		},
		"ready, then unready one after another": {
			{pods: all, want: all},
			{pods: none, want: all, served: Served{9, 3}},
			{after: 2 * time.Second, pods: all, want: all},
			{after: 2 * time.Second, pods: []string{"UUU", "RRR", "RRR"}, want: all, served: Served{3, 1}},
			{after: time.Second, pods: none, want: all, served: Served{9, 3}},
		},
		"ready, then one Service unready": {
			{pods: all, want: all},
			{pods: none, want: all, served: Served{9, 3}},
			{after: time.Second, pods: all, want: all},
			{after: time.Second, pods: []string{"UUU", "RRR", "RRR"}, want: all, served: Served{3, 1}},
			{after: settleDelay, pods: []string{"UUU", "RRR", "RRR"}, want: []string{"---", "RRR", "RRR"}},
		},
		"one after another": {
			{pods: all, want: all},
			{after: time.Second, pods: []string{"UUU", "RRR", "RRR"}, want: []string{"---", "RRR", "RRR"}},
			{after: time.Second, pods: []string{"UUU", "UUR", "RRR"}, want: []string{"RRR", "RRR", "RRR"}, served: Served{5, 2}},
			{after: time.Second, pods: none, want: all, served: Served{9, 3}},
		},
		"too long after the previous": {
			{pods: all, want: all},
			{pods: []string{"UUU", "RRR", "RRR"}, want: []string{"---", "RRR", "RRR"}},
			{after: Window, pods: []string{"UUU", "UUU", "RRR"}, want: []string{"---", "---", "RRR"}},
		},
		"one Service": {
			{pods: all, want: all},
			{pods: []string{"UUU", "RRR", "RRR"}, want: []string{"---", "RRR", "RRR"}},
		},
		"only Service": {
			{pods: []string{"RRR"}, want: []string{"RRR"}},
			{pods: []string{"UUU"}, want: []string{"---"}},
		},
		"a third of each Service": {
			{pods: all, want: all},
			{pods: []string{"URR", "URR", "URR"}, want: []string{"-RR", "-RR", "-RR"}},
		},
		"node failures": {
			{pods: all, want: all},
			{pods: []string{"UUR", "UUR", "UUR"}, silent: "01", want: []string{"--R", "--R", "--R"}},
		},
		"node failure in the meantime": {
			{pods: all, want: all},
			{pods: none, want: all, served: Served{9, 3}},
			{pods: none, silent: "0", want: []string{"-RR", "-RR", "-RR"}, served: Served{6, 3}},
		},
		"pods deleted in the meantime": {
			{pods: all, want: all},
			{pods: none, want: all, served: Served{9, 3}},
			{pods: []string{"TUU", "-UU", "UUU"}, want: []string{"-RR", "-RR", "RRR"}, served: Served{7, 3}},
		},
		"never ready": {
			{pods: []string{"RRU", "RRU", "RRU"}, want: []string{"RR-", "RR-", "RR-"}},
			{pods: none, want: []string{"RR-", "RR-", "RR-"}, served: Served{6, 3}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			threshold, now := New(nil), start
			for i, look := range looks {
				now = now.Add(look.after)
				answers := func(node string) bool { return !slices.Contains([]byte(look.silent), node[0]) }
				got, served, _ := threshold.Advance(slicesOf(look.pods...), answers, now)
				if ready := readyOf(got, 3); !slices.Equal(ready, look.want) || served != look.served {
					t.Errorf("step %d: ready endpoints = %v (%+v), want %v (%+v)", i, ready, served, look.want, look.served)
				}
			}
		})
	}
}

// An agent restarted during the API server's outage uses the checkpoint's ready pods, and so do later
// agents.
func TestThresholdAfterRestart(t *testing.T) {
	kept := slicesOf("RRR", "RRR")
	for range 3 {
		got, served, _ := New(kept).Advance(slicesOf("UUU", "UUU"), everywhere, start)
		if served != (Served{6, 2}) {
			t.Fatalf("served = %+v", served)
		}
		kept = got
	}
	if _, served, _ := New(nil).Advance(slicesOf("UUU", "UUU"), everywhere, start); served != (Served{}) {
		t.Errorf("served = %+v although none was ever ready", served)
	}
}

// Unchanged slices are the same objects.
func TestThresholdKeepsObjects(t *testing.T) {
	threshold := New(nil)
	all, none := slicesOf("RRR", "RRR"), slicesOf("UUU", "UUU")
	if got, _, _ := threshold.Advance(all, everywhere, start); !slices.Equal(got, all) {
		t.Error("ready objects were copied")
	}
	before, _, _ := threshold.Advance(none, everywhere, start)
	if got, _, _ := threshold.Advance(none, everywhere, start.Add(time.Minute)); !slices.Equal(got, before) {
		t.Error("unchanged objects were copied again")
	}
	if !slices.Equal(readyOf(none, 3), []string{"---", "---"}) {
		t.Error("cached objects were modified")
	}
}

// Only pods that were served, exist, do not terminate and are on answering nodes are served unready. A
// single Service's unreadiness takes effect, and if all pods become unready in one step, those on answering
// nodes are served.
func TestAnyHistory(t *testing.T) {
	const nodes = 4
	states := []rune{ready, ready, unready, terminating, gone}
	rapid.Check(t, func(t *rapid.T) {
		threshold, now := New(nil), start
		services := rapid.IntRange(1, 5).Draw(t, "services")
		pods := slices.Repeat([]string{"RRRR"}, services)
		threshold.Advance(slicesOf(pods...), everywhere, now)
		was := slices.Clone(pods)
		turned := map[[2]int]time.Time{}
		for range rapid.IntRange(1, 12).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "after, s")) * time.Second)
			silent := rapid.SliceOfDistinct(rapid.IntRange(0, nodes-1), rapid.ID[int]).Draw(t, "silent")
			outage := rapid.Bool().Draw(t, "all unready")
			for n := range pods {
				next := []rune(pods[n])
				for i := range next {
					if outage {
						next[i] = unready
					} else if rapid.Bool().Draw(t, "changes") {
						next[i] = rapid.SampledFrom(states).Draw(t, "state")
					}
				}
				for i := range next {
					if pods[n][i] == ready && next[i] == unready {
						turned[[2]int{n, i}] = now
					}
				}
				pods[n] = string(next)
			}
			answers := func(node string) bool { return !slices.Contains(silent, int(node[0]-'0')) }
			objects := slicesOf(pods...)
			on := threshold.active
			got, served, _ := threshold.Advance(objects, answers, now)
			shown, count := readyOf(got, nodes), 0
			for n := range pods {
				for i := range nodes {
					is := shown[n][i] == ready
					switch {
					case pods[n][i] == ready && !is:
						t.Fatalf("pod %d of %v is ready, but not served: %v", i, pods[n], shown[n])
					case pods[n][i] != ready && is:
						count++
						// While the threshold is exceeded, no state is removed.
						since := turned[[2]int{n, i}]
						known := !since.IsZero() && (on || now.Sub(since) < Window)
						if pods[n][i] != unready || was[n][i] == gone && !known || slices.Contains(silent, i) {
							t.Fatalf("pod %d of %s is served; previous states %s, served: %s", i, pods[n], was[n], shown[n])
						}
					}
				}
			}
			if count != served.Endpoints || services == 1 && count > 0 {
				t.Fatalf("%d unready endpoints are served, reported %+v", count, served)
			}
			if outage && services > 1 && len(silent) == 0 && slices.Equal(was, slices.Repeat([]string{"RRRR"}, services)) && !slices.Equal(shown, was) {
				t.Fatalf("all pods became unready together: served %v of %v", shown, was)
			}
			was = shown
		}
	})
}
