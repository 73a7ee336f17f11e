// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// poolAged is a pool that was created so many seconds after others of age 0.
func poolAged(name string, age int, addresses ...string) millracev1alpha1.IPPool {
	return millracev1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(age) * time.Second))},
		Spec:       millracev1alpha1.IPPoolSpec{Addresses: addresses},
	}
}

func with(pool millracev1alpha1.IPPool, change func(*millracev1alpha1.IPPoolSpec)) millracev1alpha1.IPPool {
	change(&pool.Spec)
	return pool
}

var badSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}

func TestPools(t *testing.T) {
	tests := []struct {
		name    string
		objects []millracev1alpha1.IPPool
		used    []string
		// problems are "name reason message".
		problems []string
	}{
		{
			name:    "valid",
			objects: []millracev1alpha1.IPPool{poolAged("a", 0, "203.0.113.0/25", "2001:db8::/64"), poolAged("b", 0, "203.0.113.128/25")},
			used:    []string{"a", "b"},
		},
		{
			name:    "inverted range; the others are used",
			objects: []millracev1alpha1.IPPool{poolAged("a", 0, "203.0.113.0/28", "203.0.113.20-203.0.113.10"), poolAged("b", 1, "203.0.113.0/24")},
			used:    []string{"b"},
			problems: []string{"a Invalid spec.addresses[1]: range 203.0.113.20-203.0.113.10 is inverted: " +
				"the first address must not be higher than the last"},
		},
		{
			name:     "the older of two that overlap",
			objects:  []millracev1alpha1.IPPool{poolAged("a", 1, "198.51.100.0/24", "203.0.113.0/28"), poolAged("z", 0, "203.0.113.8-203.0.113.20")},
			used:     []string{"z"},
			problems: []string{`a Overlap spec.addresses[1]: 203.0.113.0/28 overlaps the older pool "z" in 203.0.113.8-203.0.113.15: this pool is not used`},
		},
		{
			name:     "of the same age the first by name",
			objects:  []millracev1alpha1.IPPool{poolAged("z", 0, "203.0.113.0/24"), poolAged("a", 0, "203.0.113.1/32")},
			used:     []string{"a"},
			problems: []string{`z Overlap spec.addresses[0]: 203.0.113.0/24 overlaps the older pool "a" in 203.0.113.1: this pool is not used`},
		},
		{
			name: "a pool that is not used is in nobody's way",
			objects: []millracev1alpha1.IPPool{
				poolAged("a", 0, "203.0.113.0/25"), poolAged("b", 1, "203.0.113.0/24"), poolAged("c", 2, "203.0.113.128/25"),
			},
			used:     []string{"a", "c"},
			problems: []string{`b Overlap spec.addresses[0]: 203.0.113.0/24 overlaps the older pool "a"`},
		},
		{
			name: "addresses that are reserved in one pool are not given by another",
			objects: []millracev1alpha1.IPPool{
				with(poolAged("a", 0, "203.0.113.0/24"), func(s *millracev1alpha1.IPPoolSpec) { s.Reserved = []string{"203.0.113.1"} }),
				poolAged("b", 1, "203.0.113.1/32"),
			},
			used:     []string{"a"},
			problems: []string{`b Overlap spec.addresses[0]: 203.0.113.1/32 overlaps the older pool "a"`},
		},
		{
			name: "each field is named",
			objects: []millracev1alpha1.IPPool{with(poolAged("a", 0, "203.0.113.1-2001:db8::1", "224.0.0.0/28", "fe80::/64"),
				func(s *millracev1alpha1.IPPoolSpec) {
					s.Reserved, s.NamespaceSelector, s.ServiceSelector = []string{"x"}, badSelector, badSelector
				})},
			problems: []string{
				"a Invalid spec.addresses[0]: range 203.0.113.1-2001:db8::1 mixes families",
				"a Invalid spec.addresses[1]: range 224.0.0.0-224.0.0.15 has addresses of 224.0.0.0/4, which cannot be announced",
				"a Invalid spec.addresses[2]: range fe80::-fe80::ffff:ffff:ffff:ffff has addresses of fe80::/10",
				`a Invalid spec.reserved[0]: "x" is not an IP address`,
				"a Invalid spec.namespaceSelector: ",
				"a Invalid spec.serviceSelector: ",
			},
		},
		{name: "no addresses", objects: []millracev1alpha1.IPPool{poolAged("a", 0)}, problems: []string{"a Invalid spec.addresses: must have"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pools, problems := Pools(test.objects)
			var used []string
			for _, pool := range pools {
				used = append(used, pool.Name)
			}
			slices.Sort(used)
			if !slices.Equal(used, test.used) {
				t.Errorf("used are %v, want %v", used, test.used)
			}
			checkProblems(t, problems, test.problems)
		})
	}
}

// checkProblems compares problems with the beginnings of "name reason message".
func checkProblems(t *testing.T, problems []Problem, want []string) {
	t.Helper()
	if len(problems) != len(want) {
		t.Fatalf("problems are %+v, want %v", problems, want)
	}
	for i, problem := range problems {
		got := problem.Object.Name + " " + problem.Reason + " " + problem.Message
		if !strings.HasPrefix(got, want[i]) || !strings.HasPrefix(problem.Message, problem.Field+": ") {
			t.Errorf("problem is %q of field %q, want %q", got, problem.Field, want[i])
		}
	}
}

func TestPoolDefaults(t *testing.T) {
	no := false
	pools, _ := Pools([]millracev1alpha1.IPPool{
		poolAged("a", 0, "203.0.113.0/30"),
		with(poolAged("b", 0, "203.0.113.4/30"), func(s *millracev1alpha1.IPPoolSpec) {
			s.AutoAssign, s.Priority, s.ReclaimPolicy = &no, 7, millracev1alpha1.ReclaimRetain
			s.SharingScope = millracev1alpha1.ShareInCluster
			s.Reserved = []string{"203.0.113.5-203.0.113.6", "198.51.100.0/24"}
		}),
	})
	a, b := pools[0], pools[1]
	if a.SharedByAll || !a.AutoAssign || a.ReclaimPolicy != millracev1alpha1.ReclaimDelete || a.Addresses.Count() != 4 {
		t.Errorf("a is %+v", a)
	}
	if !b.SharedByAll || b.AutoAssign || b.Priority != 7 || b.ReclaimPolicy != millracev1alpha1.ReclaimRetain || b.Addresses.Count() != 2 ||
		b.Addresses.Contains(netip.MustParseAddr("203.0.113.5")) {
		t.Errorf("b is %+v", b)
	}
}

func TestSelects(t *testing.T) {
	selects := func(namespace, service *metav1.LabelSelector) Pool {
		pools, _ := Pools([]millracev1alpha1.IPPool{with(poolAged("a", 0, "203.0.113.0/30"), func(s *millracev1alpha1.IPPoolSpec) {
			s.NamespaceSelector, s.ServiceSelector = namespace, service
		})})
		return pools[0]
	}
	red, blue := labels.Set{"color": "red"}, labels.Set{"color": "blue"}
	onlyRed := &metav1.LabelSelector{MatchLabels: red}
	tests := []struct {
		name               string
		pool               Pool
		namespace, service labels.Set
		want               bool
	}{
		{"absent selectors", selects(nil, nil), nil, blue, true},
		{"empty selector", selects(&metav1.LabelSelector{}, nil), blue, nil, true},
		{"namespace", selects(onlyRed, nil), red, nil, true},
		{"other namespace", selects(onlyRed, nil), blue, red, false},
		{"service", selects(nil, onlyRed), nil, red, true},
		{"other service", selects(nil, onlyRed), red, blue, false},
		{"both are needed", selects(onlyRed, onlyRed), red, blue, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.pool.Selects(test.namespace, test.service); got != test.want {
				t.Errorf("Selects = %v", got)
			}
		})
	}
}

func TestUsageOf(t *testing.T) {
	pools, _ := Pools([]millracev1alpha1.IPPool{with(poolAged("a", 0, "203.0.113.0/29"), func(s *millracev1alpha1.IPPoolSpec) {
		s.Reserved = []string{"203.0.113.7"}
	})})
	at := func(address, pool string) ipam.VIP {
		return ipam.VIP{Address: netip.MustParseAddr(address), Pool: pool}
	}
	vips := []ipam.VIP{
		at("203.0.113.0", "a"), at("203.0.113.1", ""), at("203.0.113.2", "gone"),
		at("203.0.113.7", "a"), at("198.51.100.1", "a"), at("198.51.100.2", "b"),
	}
	usage := UsageOf("a", &pools[0], vips)
	if usage.Assigned != 5 || usage.Free != 4 {
		t.Errorf("usage is %+v, want 5 assigned and 4 free", usage)
	}
	if want := []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("203.0.113.7")}; !slices.Equal(usage.Stray, want) {
		t.Errorf("stray are %v, want %v", usage.Stray, want)
	}
	if usage := UsageOf("a", nil, vips); usage.Assigned != 3 || usage.Free != 0 || len(usage.Stray) != 0 {
		t.Errorf("usage of a pool that is not used is %+v", usage)
	}
}
