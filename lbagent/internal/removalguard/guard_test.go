// SPDX-License-Identifier: Apache-2.0

package removalguard

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const limit = 5 * time.Minute

func peers(names ...string) *model.Snapshot {
	s := &model.Snapshot{}
	for _, name := range names {
		s.Peers = append(s.Peers, &millracev1beta1.LBPeer{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return s
}

func confirmed(s *model.Snapshot) *model.Snapshot {
	for _, peer := range s.Peers {
		peer.Annotations = map[string]string{millracev1beta1.AnnotationConfirmRemoval: ""}
	}
	return s
}

func namesOf(s *model.Snapshot) []string {
	var names []string
	for _, peer := range s.Peers {
		names = append(names, peer.Name)
	}
	slices.Sort(names)
	return names
}

type look struct {
	after   time.Duration
	present *model.Snapshot
	want    []string
	held    int
}

func TestHold(t *testing.T) {
	two, four := []string{"a", "b"}, []string{"a", "b", "c", "d"}
	for what, looks := range map[string][]look{
		"only object": {
			{0, peers("a"), []string{"a"}, 0},
			{time.Second, peers(), []string{"a"}, 1},
			{limit, peers(), []string{"a"}, 1},
			{limit + time.Second, peers(), nil, 0},
			{limit + time.Hour, peers(), nil, 0},
		},
		"only object, confirmed": {
			{0, confirmed(peers("a")), []string{"a"}, 0},
			{time.Second, peers(), nil, 0},
		},
		"confirmed while held": {
			{0, peers("a"), []string{"a"}, 0},
			{1 * time.Second, peers(), []string{"a"}, 1},
			{2 * time.Second, confirmed(peers("a")), []string{"a"}, 0},
			{3 * time.Second, peers(), nil, 0},
		},
		"one of two": {
			{0, peers(two...), two, 0},
			{time.Second, peers("a"), two, 0},
			{2 * time.Second, peers("a"), []string{"a"}, 0},
		},
		"one after another": {
			{0, peers(two...), two, 0},
			{1000 * time.Millisecond, peers("a"), two, 0},
			{1900 * time.Millisecond, peers(), two, 2},
			{limit + 1899*time.Millisecond, peers(), two, 2},
			{limit + 1900*time.Millisecond, peers(), nil, 0},
		},
		"half of many": {
			{0, peers(four...), four, 0},
			{1 * time.Second, peers("a", "b"), four, 0},
			{2 * time.Second, peers("a", "b"), two, 0},
		},
		"more than half of many": {
			{0, peers(four...), four, 0},
			{1 * time.Second, peers("a"), four, 3},
			{2 * time.Second, peers("a", "b"), four, 2},
			{limit + 1*time.Second, peers("a", "b"), two, 0},
		},
		"removed and recreated": {
			{0, peers(four...), four, 0},
			{1 * time.Second, peers(), four, 4},
			{2 * time.Second, peers(four...), four, 0},
			{limit, peers(), four, 4},
			{limit + 2*time.Second, peers(), four, 4},
		},
		"replaced": {
			{0, peers(two...), two, 0},
			{1 * time.Second, peers("c", "d"), four, 0},
			{2 * time.Second, peers("c", "d"), []string{"c", "d"}, 0},
		},
		"slowly, all but one": {
			{0, peers(four...), four, 0},
			{20 * time.Second, peers("a", "b", "c"), four, 0},
			{40 * time.Second, peers("a", "b"), []string{"a", "b", "c"}, 0},
			{60 * time.Second, peers("a"), two, 0},
			{61 * time.Second, peers("a"), []string{"a"}, 0},
		},
		"never existed": {
			{0, peers(), nil, 0},
			{1 * time.Second, peers(), nil, 0},
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := New(limit, nil)
			for _, look := range looks {
				result, held, again := h.Advance(look.present, start.Add(look.after))
				if got := namesOf(result); !slices.Equal(got, look.want) {
					t.Fatalf("after %s: applied objects = %v, want %v", look.after, got, look.want)
				}
				count := 0
				for _, h := range held {
					count += h.Count
				}
				if count != look.held {
					t.Errorf("after %s: held = %+v, want %d", look.after, held, look.held)
				}
				if waits := len(result.Peers) > len(look.present.Peers); waits != (again > 0) {
					t.Errorf("after %s: next check in %s", look.after, again)
				}
			}
		})
	}
}

// The checkpoint's objects count as present before.
func TestHoldAfterRestart(t *testing.T) {
	h := New(limit, peers("a"))
	if result, held, _ := h.Advance(peers(), start); len(result.Peers) != 1 || len(held) != 1 || held[0].Kind != "LBPeer" {
		t.Errorf("applied = %v, held = %v", namesOf(result), held)
	}
	h = New(0, peers("a"))
	if result, held, again := h.Advance(peers(), start); len(result.Peers) != 0 || len(held) != 0 || again != 0 {
		t.Errorf("the guard is disabled, but held %v, %v, next check in %s", namesOf(result), held, again)
	}
}

func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
}

func vip(address, service string) *millracev1beta1.VIP {
	return &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: address},
		Spec: millracev1beta1.VIPSpec{
			Address: address, Claims: []millracev1beta1.VIPClaim{{Namespace: "default", Name: service}},
		},
	}
}

// VIPs are held only if their Service would lose its address.
func TestHoldOfVIPs(t *testing.T) {
	const held, goes = true, false
	for what, test := range map[string]struct {
		change func(s *model.Snapshot)
		want   bool
	}{
		"Service remains":         {func(*model.Snapshot) {}, held},
		"Service removed":         {func(s *model.Snapshot) { s.Services = nil }, goes},
		"Service being deleted":   {func(s *model.Snapshot) { s.Services[0].DeletionTimestamp = &metav1.Time{Time: start} }, goes},
		"not a load balancer":     {func(s *model.Snapshot) { s.Services[0].Spec.Type = corev1.ServiceTypeClusterIP }, goes},
		"other VIP assigned":      {func(s *model.Snapshot) { s.VIPs = []*millracev1beta1.VIP{vip("203.0.113.2", "web")} }, goes},
		"VIP of the other family": {func(s *model.Snapshot) { s.VIPs = []*millracev1beta1.VIP{vip("2001:db8::1", "web")} }, goes},
	} {
		h := New(limit, nil)
		before := &model.Snapshot{Services: []*corev1.Service{service("web")}, VIPs: []*millracev1beta1.VIP{vip("203.0.113.1", "web")}}
		h.Advance(before, start)
		after := &model.Snapshot{Services: []*corev1.Service{service("web")}}
		test.change(after)
		h.Advance(after, start.Add(time.Minute))
		result, _, _ := h.Advance(after, start.Add(time.Minute+2*time.Second))
		got := slices.ContainsFunc(result.VIPs, func(v *millracev1beta1.VIP) bool { return v.Name == "203.0.113.1" })
		if got != test.want {
			t.Errorf("%s: held = %t, want %t", what, got, test.want)
		}
	}
}

// Present objects are used, missing ones no longer than the limit, and more than half of many is never
// removed in one step unless held before.
func TestHoldProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := New(limit, nil)
		now := start
		left := map[string]time.Time{}
		var before []string
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			present := map[string]bool{}
			for i := range 8 {
				present[fmt.Sprint(i)] = rapid.IntRange(0, 2).Draw(t, "present") > 0
			}
			if rapid.IntRange(0, 4).Draw(t, "all go") == 0 {
				clear(present)
			}
			maps.DeleteFunc(present, func(_ string, there bool) bool { return !there })
			objects := peers(slices.Collect(maps.Keys(present))...)
			result, _, again := h.Advance(objects, now)
			names := namesOf(result)
			for name := range present {
				delete(left, name)
				if !slices.Contains(names, name) {
					t.Fatalf("%s exists, but is not applied", name)
				}
			}
			waited := false
			for _, name := range before {
				if !present[name] && left[name].IsZero() {
					left[name] = now
				}
			}
			for _, name := range names {
				if present[name] {
					continue
				}
				waited = true
				if since := left[name]; since.IsZero() || now.Sub(since) > limit+maxBurstDelay+2*time.Minute {
					t.Fatalf("%s was removed at %s, but is still applied at %s", name, since, now)
				}
			}
			if waited != (again > 0) {
				t.Fatalf("next check in %s, want objects held: %t", again, waited)
			}
			for _, name := range before {
				if !slices.Contains(names, name) && len(present) == 0 && now.Sub(left[name]) < limit {
					t.Fatalf("%s was released after %s although none remain", name, now.Sub(left[name]))
				}
			}
			before = names
			now = now.Add(time.Duration(rapid.IntRange(1, 120_000).Draw(t, "milliseconds")) * time.Millisecond)
		}
	})
}
