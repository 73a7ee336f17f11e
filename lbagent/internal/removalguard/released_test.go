// SPDX-License-Identifier: Apache-2.0

package removalguard

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// shop is a Service with a VIP and EndpointSlices, and another Service.
func shop(edit func(*corev1.Service), sliceNames ...string) *model.Snapshot {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1"}}
	edit(service)
	s := &model.Snapshot{
		Services: []*corev1.Service{service, {ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other", UID: "2"}}},
	}
	for i, name := range []string{"web", "other"} {
		s.VIPs = append(s.VIPs, &millracev1beta1.VIP{Spec: millracev1beta1.VIPSpec{
			Claims: []millracev1beta1.VIPClaim{{Namespace: "shop", Name: name, UID: fmt.Sprint(i + 1)}},
		}})
	}
	for _, name := range sliceNames {
		of, _, _ := strings.Cut(name, "-")
		s.EndpointSlices = append(s.EndpointSlices, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{discoveryv1.LabelServiceName: of},
		}})
	}
	return s
}

func sliceNames(s *model.Snapshot) []string {
	var names []string
	for _, slice := range s.EndpointSlices {
		names = append(names, slice.Name)
	}
	slices.Sort(names)
	return names
}

// Foreground deletion removes EndpointSlices before the VIP is released.
func TestEndpointsOfReleasedService(t *testing.T) {
	present := func(*corev1.Service) {}
	deleted := func(service *corev1.Service) { service.DeletionTimestamp = &metav1.Time{Time: start} }
	confirmed := func(service *corev1.Service) {
		deleted(service)
		service.Annotations = map[string]string{millracev1beta1.AnnotationConfirmRemoval: ""}
	}
	another := func(service *corev1.Service) {
		deleted(service)
		service.UID = "3"
	}
	released := shop(deleted, "other-1")
	released.VIPs = released.VIPs[1:]
	gone := shop(present)
	gone.Services, gone.VIPs = gone.Services[1:], gone.VIPs[1:]
	all := []string{"other-1", "web-1", "web-2"}
	for what, test := range map[string]struct {
		present *model.Snapshot
		want    []string
	}{
		"deleted":                      {shop(deleted, "other-1"), all},
		"deleted with all slices":      {shop(deleted), []string{"web-1", "web-2"}},
		"background deletion":          {shop(deleted, all...), all},
		"one slice remains":            {shop(deleted, "web-2", "other-1"), all},
		"not deleted":                  {shop(present, "other-1"), []string{"other-1"}},
		"confirmed deletion":           {shop(confirmed, "other-1"), []string{"other-1"}},
		"recreated with the same name": {shop(another, "other-1"), []string{"other-1"}},
		"without a VIP":                {released, []string{"other-1"}},
		"deleted without slices":       {gone, nil},
	} {
		for _, limit := range []time.Duration{0, limit} {
			h := New(limit, shop(present, all...))
			for i := range 3 {
				// Held slices remain held.
				result, _, _ := h.Advance(test.present, start.Add(time.Duration(i)*time.Hour))
				if got := sliceNames(result); !slices.Equal(got, test.want) {
					t.Errorf("%s, held for %s, step %d: %v, want %v", what, limit, i, got, test.want)
				}
			}
			result, _, _ := h.Advance(gone, start.Add(4*time.Hour))
			if got := sliceNames(result); got != nil {
				t.Errorf("%s: after the removal of the Service: %v", what, got)
			}
		}
	}
}
