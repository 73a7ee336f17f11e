// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// parseSlices parses "slice=namespace/service:8080: pod pod pod!". A pod is an address, which is also its
// node's name; "!" means terminating.
func parseSlices(t *testing.T, texts ...string) (list []*discoveryv1.EndpointSlice) {
	t.Helper()
	for _, text := range texts {
		head, pods, ok := strings.Cut(text, ": ")
		name, service, _ := strings.Cut(head, "=")
		service, ports, _ := strings.Cut(service, ":")
		namespace, service, okService := strings.Cut(service, "/")
		if !ok || !okService {
			t.Fatalf("invalid EndpointSlice %q", text)
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		}
		for number := range strings.SplitSeq(ports, ",") {
			port, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			number := int32(port)
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Port: &number})
		}
		for pod := range strings.FieldsSeq(pods) {
			address, ends := strings.CutSuffix(pod, "!")
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{address}, NodeName: &address, Conditions: discoveryv1.EndpointConditions{Terminating: &ends},
			})
		}
		list = append(list, slice)
	}
	return list
}

// format formats retained EndpointSlices as "namespace/service:port,port: pod pod".
func format(list []*discoveryv1.EndpointSlice) string {
	var texts []string
	for _, slice := range list {
		var ports, pods []string
		for _, port := range slice.Ports {
			ports = append(ports, fmt.Sprint(*port.Port))
		}
		for i := range slice.Endpoints {
			pods = append(pods, addressOf(&slice.Endpoints[i]))
		}
		texts = append(texts, fmt.Sprintf("%s:%s: %s", serviceOf(slice), strings.Join(ports, ","), strings.Join(pods, " ")))
	}
	return strings.Join(texts, "; ")
}

type step struct {
	after  time.Duration
	slices []string
	want   string
}

func TestRetention(t *testing.T) {
	const s, minute = time.Second, time.Minute
	for name, steps := range map[string][]step{
		"a selector changed": {
			{0, []string{"s-1=a/s:80: p1 p2"}, ""},
			{s, []string{"s-1=a/s:80: p3"}, "a/s:80: p1 p2"},
			{s, []string{"s-1=a/s:80: p3"}, "a/s:80: p1 p2"},
			{minute, []string{"s-1=a/s:80: p3"}, ""},
		},
		"an EndpointSlice was recreated": {
			{0, []string{"s-1=a/s:80: p1 p2"}, ""},
			{s, nil, "a/s:80: p1 p2"},
			{s, []string{"s-2=a/s:80: p1"}, "a/s:80: p2"},
		},
		"an endpoint terminates": {
			{0, []string{"s-1=a/s:80: p1 p2"}, ""},
			{s, []string{"s-1=a/s:80: p1! p2"}, ""},
			{s, []string{"s-1=a/s:80: p2"}, ""},
		},
		"an endpoint moves to another EndpointSlice": {
			{0, []string{"s-1=a/s:80: p1 p2"}, ""},
			{s, []string{"s-1=a/s:80: p1", "s-2=a/s:80: p2"}, ""},
			{s, []string{"s-1=a/s:80: p1 p2", "s-2=a/s:80: p2"}, ""},
			{s, []string{"s-1=a/s:80: p1 p2"}, ""},
		},
		"a port changed": {
			{0, []string{"s-1=a/s:80,443: p1"}, ""},
			{s, []string{"s-1=a/s:81,443: p1"}, "a/s:80: p1"},
			{s, []string{"s-1=a/s:443: p1"}, "a/s:80: p1; a/s:81: p1"},
			{s, []string{"s-1=a/s:80,443: p1"}, "a/s:81: p1"},
		},
		"the Service has no VIP": {
			{0, []string{"s-1=a/internal:80: p1"}, ""},
			{s, nil, ""},
		},
		"another Service adds the address": {
			{0, []string{"s-1=a/s:80: p1"}, ""},
			{s, nil, "a/s:80: p1"},
			{s, []string{"o-1=b/o:80: p1"}, ""},
		},
		"another Service adds another port of the address": {
			{0, []string{"s-1=a/s:80,81: p1"}, ""},
			{s, nil, "a/s:80,81: p1"},
			{s, []string{"o-1=b/o:82: p1"}, "a/s:80,81: p1"},
			{s, []string{"o-1=b/o:82: p1", "o-2=b/o:81: p1"}, ""},
		},
		"another Service has the address permanently": {
			{0, []string{"s-1=a/s:80: p1", "o-1=b/internal:80: p1"}, ""},
			{s, []string{"o-1=b/internal:80: p1"}, "a/s:80: p1"},
			{s, []string{"o-2=b/internal:80: p1 p2"}, "a/s:80: p1"},
			{s, []string{"o-2=b/internal:80: p1"}, "a/s:80: p1"},
			{s, []string{"o-2=b/internal:80: p2"}, "a/s:80: p1"},
			{s, []string{"o-2=b/internal:80: p1"}, ""},
		},
		"the node lost the address": {
			{0, []string{"s-1=a/s:80: here p1"}, ""},
			{s, nil, "a/s:80: here p1"},
			{minCheckInterval - 1, nil, "a/s:80: here p1"},
			{1, nil, "a/s:80: here p1"},
			{minCheckInterval, nil, "a/s:80: p1"},
		},
		"the largest namespace loses its oldest endpoints": {
			{0, []string{"s-1=a/s:80: p1 p2 p3", "t-1=b/t:80: p4"}, ""},
			{s, []string{"s-1=a/s:80: p2 p3", "t-1=b/t:80: p4"}, "a/s:80: p1"},
			{s, []string{"s-1=a/s:80: p3"}, "a/s:80: p1; a/s:80: p2; b/t:80: p4"},
			{s, nil, "a/s:80: p2; b/t:80: p4; a/s:80: p3"},
		},
		"an endpoint counts once per port": {
			{0, []string{"s-1=a/s:80: p1", "t-1=b/t:80,81,82: p2"}, ""},
			{s, []string{"t-1=b/t:80,81,82: p2"}, "a/s:80: p1"},
			{s, []string{"t-1=b/t:80: p2"}, "a/s:80: p1; b/t:81,82: p2"},
			{s, []string{"t-1=b/t:83: p2"}, "a/s:80: p1; b/t:80: p2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := Cluster{
				IsServed: func(service types.NamespacedName) bool { return service.Name != "internal" },
				Node:     "here", IsGone: func(address string) bool { return address == "here" },
			}
			limits := Limits{Timeout: minute, Endpoints: 3}
			for _, restarts := range []bool{false, true} {
				r, now := New(nil, limits), start
				for i, step := range steps {
					now = now.Add(step.after)
					present := parseSlices(t, step.slices...)
					result, again := r.Advance(present, cluster, now)
					if got := format(result[len(present):]); got != step.want || !slices.Equal(Listed(result), present) {
						t.Errorf("restarts %v, step %d: retained = %q, want %q", restarts, i, got, step.want)
					}
					if (again > 0) != (step.want != "") {
						t.Errorf("step %d: next call after %s", i, again)
					}
					if same, _ := r.Advance(present, cluster, now); !slices.Equal(same, result) {
						t.Errorf("step %d: a repeated call returns a different result", i)
					}
					// The next agent checks the address twice again.
					if restarts && name != "the node lost the address" {
						r = New(result, limits)
					}
				}
			}
		})
	}
}

// Evictions level the namespaces, also if many have the most.
func TestFairShare(t *testing.T) {
	for _, test := range []struct {
		counts      []int
		limit, want int
	}{
		{[]int{9}, 4, 4}, {[]int{3, 1}, 3, 2}, {[]int{5, 5}, 9, 4}, {[]int{1, 1, 1}, 2, 0}, {[]int{1, 2, 8, 8}, 10, 3},
	} {
		if got := fairShare(test.counts, test.limit); got != test.want {
			t.Errorf("fairShare(%v, %d) = %d, want %d", test.counts, test.limit, got, test.want)
		}
	}
	const namespaces, limit = 100, 250
	var slices []string
	for i := range namespaces {
		slices = append(slices, fmt.Sprintf("s-1=n%d/s:80: p%d q%d r%d", i, i, i, i))
	}
	r := New(parseSlices(t, slices...), Limits{Timeout: time.Minute, Endpoints: limit})
	result, _ := r.Advance(nil, Cluster{IsServed: func(types.NamespacedName) bool { return true }}, start)
	if counts := r.Counts(); counts != (Counts{limit, 3*namespaces - limit}) {
		t.Errorf("%+v", counts)
	}
	for _, slice := range result {
		if n := len(slice.Endpoints); n < 2 {
			t.Errorf("namespace %s: %d endpoints", slice.Namespace, n)
		}
	}
}

func TestRetentionDisabled(t *testing.T) {
	r := New(parseSlices(t, "s-1=a/s:80: p1"), Limits{Endpoints: 1})
	if result, again := r.Advance(nil, Cluster{}, start); len(result) > 0 || again != 0 || r.Counts() != (Counts{}) {
		t.Errorf("retained = %q, next call after %s", format(result), again)
	}
}

// Only the endpoint's node checks its address, at growing intervals.
func TestDueTimes(t *testing.T) {
	for node, most := range map[string]int{"here": 140, "elsewhere": 3} {
		r := New(parseSlices(t, "s-1=a/s:80: "+node), Limits{Timeout: time.Hour, Endpoints: 1})
		cluster := Cluster{
			IsServed: func(types.NamespacedName) bool { return true },
			Node:     "here", IsGone: func(string) bool { return false },
		}
		calls, now := 0, start
		for again := time.Duration(1); again > 0 && calls <= most; calls++ {
			_, again = r.Advance(nil, cluster, now)
			now = now.Add(again)
		}
		if left := now.Sub(start); left != time.Hour || calls > most {
			t.Errorf("node %s: %d calls within %s, want at most %d", node, calls, left, most)
		}
	}
}

// Retained endpoints do not serve, so that UDP flows move to others.
func TestRetainedConditions(t *testing.T) {
	r := New(parseSlices(t, "s-1=a/s:80: p1"), Limits{Timeout: time.Minute, Endpoints: 1})
	result, _ := r.Advance(nil, Cluster{IsServed: func(types.NamespacedName) bool { return true }}, start)
	conditions := result[0].Endpoints[0].Conditions
	if *conditions.Ready || *conditions.Serving || conditions.Terminating != nil {
		t.Errorf("conditions = %+v", conditions)
	}
}
