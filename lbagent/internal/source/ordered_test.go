// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// TestOrdered compares the list with a map, and previously returned lists with their copies.
func TestOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o ordered[*corev1.Service]
		want := map[string]*corev1.Service{}
		var given, copied []*corev1.Service
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			name := fmt.Sprintf("service%d", rapid.IntRange(0, 7).Draw(t, "service"))
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 0:
				delete(want, name)
				o.remove(service)
			case 1:
				delete(want, name)
				o.remove(cache.DeletedFinalStateUnknown{Key: "default/" + name, Obj: service})
			default:
				want[name] = service
				o.put(service)
			}
			if !slices.Equal(given, copied) {
				t.Fatal("a list that was returned earlier has been modified")
			}
			if rapid.Bool().Draw(t, "a pass") {
				next := o.list()
				given, copied = next, slices.Clone(next)
			}
		}
		got := map[string]*corev1.Service{}
		for _, service := range o.list() {
			got[service.Name] = service
		}
		if !maps.Equal(got, want) || len(o.list()) != len(want) {
			t.Fatalf("%d objects, want %d", len(o.list()), len(want))
		}
	})
}

// TestOrderedKeepsPlaces verifies that an update changes one position, and that the list is otherwise the same.
func TestOrderedKeepsPlaces(t *testing.T) {
	var o ordered[*corev1.Service]
	named := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	for _, name := range []string{"a", "b", "c"} {
		o.put(named(name))
	}
	before := o.list()
	if !delta.IsSame(before, o.list()) {
		t.Error("the list was replaced without a change")
	}
	o.put(named("b"))
	after := o.list()
	if before[0] != after[0] || before[1] == after[1] || before[2] != after[2] || len(after) != 3 {
		t.Errorf("list changed from %v to %v", before, after)
	}
}
