// SPDX-License-Identifier: Apache-2.0

package write

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func vipRoute(backends ...string) *millracev1beta1.VIPRoute {
	port := millracev1beta1.VIPRoutePort{Port: 80}
	for _, text := range backends {
		name, weight, _ := strings.Cut(text, "*")
		backend := millracev1beta1.VIPRouteBackend{Namespace: "shop", Name: name, Port: 80}
		if name == "!" {
			backend = millracev1beta1.VIPRouteBackend{Invalid: true}
		}
		_, _ = fmt.Sscan(weight, &backend.Weight)
		port.Backends = append(port.Backends, backend)
	}
	return &millracev1beta1.VIPRoute{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kept": "yes"}},
		Spec:       millracev1beta1.VIPRouteSpec{Ports: []millracev1beta1.VIPRoutePort{port}},
	}
}

func backendsOf(of *millracev1beta1.VIPRoute) string {
	var found []string
	for _, backend := range of.Spec.Ports[0].Backends {
		name := backend.Name
		if backend.Invalid {
			name = "!"
		}
		found = append(found, fmt.Sprintf("%s*%d", name, backend.Weight))
	}
	return strings.Join(found, " ")
}

func TestDrain(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 5, time.UTC)
	const period = time.Hour
	gone := map[string]bool{}
	var live *millracev1beta1.VIPRoute
	for _, step := range []struct {
		name  string
		after time.Duration
		route []string
		gone  string
		want  string
		// next is the end of the next drain period after the start; 0 means none.
		next time.Duration
	}{
		{"a new route", 0, []string{"a*90", "b*10"}, "", "a*90 b*10", 0},
		{"weight zero continues to drain", 0, []string{"a*90", "b*0"}, "", "a*90 b*0", 0},
		{"b removed", time.Minute, []string{"a*90"}, "", "a*90 b*0", time.Minute + period},
		{"no change", 2 * time.Minute, []string{"a*90"}, "", "a*90 b*0", time.Minute + period},
		{"a replaced by c", 10 * time.Minute, []string{"c*1", "!*1"}, "", "c*1 !*1 a*0 b*0", time.Minute + period},
		{"b is used again", 11 * time.Minute, []string{"b*2"}, "", "b*2 a*0 c*0", 10*time.Minute + period},
		{"a has no endpoints", 12 * time.Minute, []string{"b*2"}, "a", "b*2 c*0", 11*time.Minute + period},
		{"no routes", 13 * time.Minute, nil, "", "b*0 c*0", 11*time.Minute + period},
		{"c has drained", 72 * time.Minute, nil, "", "b*0", 13*time.Minute + period},
		{"b has drained", 73 * time.Minute, nil, "", "", 0},
	} {
		if step.gone != "" {
			gone[step.gone] = true
		}
		wanted := vipRoute(step.route...)
		serves := func(at model.ServicePort) bool { return !gone[at.Name] }
		since, next := drain(wanted, live, serves, period, start.Add(step.after))
		if err := since.write(wanted); err != nil {
			t.Fatal(err)
		}
		if got := backendsOf(wanted); got != step.want {
			t.Fatalf("%s: backends = %q, want %q", step.name, got, step.want)
		}
		// Times are stored in whole seconds.
		want := start.Add(step.next).Truncate(time.Second)
		if step.next == 0 {
			want = time.Time{}
		}
		if !next.Equal(want) {
			t.Errorf("%s: next drain ends at %s, want %s", step.name, next, want)
		}
		if _, annotated := wanted.Annotations[annotationDraining]; annotated != (len(since) > 0) || wanted.Annotations["kept"] != "yes" {
			t.Errorf("%s: annotations = %v", step.name, wanted.Annotations)
		}
		live = wanted
	}
}

func TestDrainIsBounded(t *testing.T) {
	var names []string
	for i := range maxBackends {
		names = append(names, fmt.Sprintf("s%02d*1", i))
	}
	now := time.Now()
	always := func(model.ServicePort) bool { return true }
	wanted := vipRoute("new*1", "newer*1")
	since, _ := drain(wanted, vipRoute(names...), always, time.Hour, now)
	if got := len(wanted.Spec.Ports[0].Backends); got != maxBackends || len(since) != maxBackends-2 {
		t.Errorf("%d backends, %d draining, want %d", got, len(since), maxBackends)
	}
}

func TestDrainingThatCannotBeRead(t *testing.T) {
	live := vipRoute("a*0")
	live.Annotations[annotationDraining] = "{"
	now := time.Now()
	_, next := drain(vipRoute(), live, func(model.ServicePort) bool { return true }, time.Hour, now)
	if left := next.Sub(now); left <= 59*time.Minute || left > time.Hour {
		t.Errorf("a backend drains for %s, want about one hour", left)
	}
}
