// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseSources(t *testing.T) {
	tests := []struct {
		name       string
		ranges     []string
		annotation string
		restricted bool
		want       []string
		problems   []string
	}{
		{name: "open"},
		{name: "blank annotation", annotation: " "},
		{name: "ranges", ranges: []string{"203.0.113.7/24", " 2001:db8::/32 ", "203.0.113.128/25", "::ffff:198.51.100.0/120"}, restricted: true,
			want: []string{"198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"}},
		{name: "annotation", annotation: "198.51.100.0/25, 198.51.100.128/25", restricted: true, want: []string{"198.51.100.0/24"}},
		{name: "the field is stronger", ranges: []string{"203.0.113.0/24"}, annotation: "x", restricted: true, want: []string{"203.0.113.0/24"}},
		{name: "halves of everything", ranges: []string{"0.0.0.0/1", "128.0.0.0/1"}, restricted: true, want: []string{"0.0.0.0/0"}},
		{name: "unreadable", ranges: []string{"203.0.113.1", "198.51.100.0/24", "::ffff:0:0/64"}, restricted: true, want: []string{"198.51.100.0/24"},
			problems: []string{
				`web Invalid spec.loadBalancerSourceRanges[0]: "203.0.113.1" is not a prefix such as`,
				`web Invalid spec.loadBalancerSourceRanges[2]: "::ffff:0:0/64" contains IPv4-mapped and other addresses`,
			}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
			service.Spec.LoadBalancerSourceRanges = test.ranges
			service.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: test.annotation}
			sources, problems := ParseSources(service)
			var got []string
			for _, prefix := range sources.Admitted.Prefixes() {
				got = append(got, prefix.String())
			}
			if sources.Restricted != test.restricted || !slices.Equal(got, test.want) {
				t.Errorf("ParseSources = %v %v, want %v %v", sources.Restricted, got, test.restricted, test.want)
			}
			checkProblems(t, problems, test.problems)
		})
	}
}
