// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// checkClaims verifies that every port of a VIP's Services is served, for one of its claimants.
func checkClaims(t interface{ Fatalf(string, ...any) }, s *Snapshot, m *Model) {
	for _, vip := range m.VIPs {
		wanted := map[forwarding.FrontendKey][]ServiceName{}
		for name, service := range latest(s.Services) {
			if !slices.ContainsFunc(vip.Services, func(on VIPService) bool { return on.Name == name }) {
				continue
			}
			if class := service.Spec.LoadBalancerClass; class != nil && *class != "" && *class != millracev1beta1.Class {
				t.Fatalf("%s is served on %s although its class is %s", name, vip.Address, *class)
			}
			for i := range service.Spec.Ports {
				if key, ok := frontendKey(vip.Address, &service.Spec.Ports[i]); ok {
					wanted[key] = append(wanted[key], name)
				}
			}
		}
		for key, names := range wanted {
			i := slices.IndexFunc(m.Frontends, func(f *Frontend) bool { return f.Key == key })
			if i < 0 || !slices.Contains(names, m.Frontends[i].Service) {
				t.Fatalf("%s is a port of %v, but is not served for any of them", key, names)
			}
		}
	}
}

// latest returns the Services by name. Of two Services with the same name, which no API server returns, it
// selects the same one as Build.
func latest(services []*corev1.Service) map[ServiceName]*corev1.Service {
	byName := map[ServiceName]*corev1.Service{}
	for _, service := range oldestFirst(services) {
		byName[ServiceName{service.Namespace, service.Name}] = service
	}
	return byName
}

func TestReleaseOf(t *testing.T) {
	const draining, withdrawn = millracev1beta1.ReleaseDraining, millracev1beta1.ReleaseWithdrawn
	for _, test := range []struct {
		claims []millracev1beta1.ReleasePhase
		want   millracev1beta1.ReleasePhase
	}{
		{nil, ""},
		{[]millracev1beta1.ReleasePhase{""}, ""},
		{[]millracev1beta1.ReleasePhase{draining}, draining},
		{[]millracev1beta1.ReleasePhase{withdrawn}, withdrawn},
		{[]millracev1beta1.ReleasePhase{withdrawn, draining}, draining},
		{[]millracev1beta1.ReleasePhase{draining, withdrawn}, draining},
		{[]millracev1beta1.ReleasePhase{withdrawn, ""}, ""},
		{[]millracev1beta1.ReleasePhase{"Later"}, draining},
	} {
		var claimants []claimant
		for _, phase := range test.claims {
			c := claimant{}
			if phase != "" {
				c.release = &millracev1beta1.ClaimRelease{Phase: phase}
			}
			claimants = append(claimants, c)
		}
		if got := releaseOf(claimants); got != test.want {
			t.Errorf("%v: %q, want %q", test.claims, got, test.want)
		}
	}
}
