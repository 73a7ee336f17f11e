// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func poolAged(name string, age int, addresses ...string) millracev1beta1.VIPPool {
	return millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(time.Duration(age) * time.Second))},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: addresses},
	}
}

func with(pool millracev1beta1.VIPPool, change func(*millracev1beta1.VIPPoolSpec)) millracev1beta1.VIPPool {
	change(&pool.Spec)
	return pool
}

var badSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}

func TestPools(t *testing.T) {
	tests := []struct {
		name    string
		objects []millracev1beta1.VIPPool
		used    []string
		// problems are texts "name reason message".
		problems []string
	}{
		{
			name:    "valid",
			objects: []millracev1beta1.VIPPool{poolAged("a", 0, "203.0.113.0/25", "2001:db8::/64"), poolAged("b", 0, "203.0.113.128/25")},
			used:    []string{"a", "b"},
		},
		{
			name:    "inverted range; the others are used",
			objects: []millracev1beta1.VIPPool{poolAged("a", 0, "203.0.113.0/28", "203.0.113.20-203.0.113.10"), poolAged("b", 1, "203.0.113.0/24")},
			used:    []string{"b"},
			problems: []string{"a Invalid spec.addresses[1]: range 203.0.113.20-203.0.113.10 is inverted: " +
				"the first address must not be higher than the last"},
		},
		{
			name: "each field is named",
			objects: []millracev1beta1.VIPPool{with(poolAged("a", 0, "203.0.113.1-2001:db8::1", "224.0.0.0/28", "fe80::/64"),
				func(s *millracev1beta1.VIPPoolSpec) {
					s.Reserved, s.NamespaceSelector, s.ServiceSelector = []string{"x"}, badSelector, badSelector
				})},
			problems: []string{
				"a Invalid spec.addresses[0]: range 203.0.113.1-2001:db8::1 mixes families",
				"a Invalid spec.addresses[1]: 224.0.0.0/28 has multicast addresses (224.0.0.0/4), which cannot be announced",
				"a Invalid spec.addresses[2]: fe80::/64 has link-local addresses (fe80::/10)",
				`a Invalid spec.reserved[0]: "x" is not an IP address`,
				"a Invalid spec.namespaceSelector: ",
				"a Invalid spec.serviceSelector: ",
			},
		},
		{name: "no addresses", objects: []millracev1beta1.VIPPool{poolAged("a", 0)}, problems: []string{"a Invalid spec.addresses: must have"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pools, problems := Pools(test.objects, Occupation{})
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

// checkProblems compares problems with prefixes of texts "name reason message".
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
	pools, _ := Pools([]millracev1beta1.VIPPool{
		poolAged("a", 0, "203.0.113.0/30"),
		with(poolAged("b", 0, "203.0.113.4/30"), func(s *millracev1beta1.VIPPoolSpec) {
			s.AutoAssign, s.Priority = &no, 7
			s.SharingScope = millracev1beta1.ShareInCluster
			s.Reserved = []string{"203.0.113.5-203.0.113.6", "198.51.100.0/24"}
		}),
	}, Occupation{})
	a, b := pools[0], pools[1]
	if a.SharedByAll || !a.AutoAssign || countOf(a.Addresses) != 4 {
		t.Errorf("a is %+v", a)
	}
	if !b.SharedByAll || b.AutoAssign || b.Priority != 7 || countOf(b.Addresses) != 2 ||
		b.Addresses.Contains(netip.MustParseAddr("203.0.113.5")) {
		t.Errorf("b is %+v", b)
	}
}

func TestAvoid(t *testing.T) {
	all := []millracev1beta1.AvoidedAddress{
		millracev1beta1.AvoidNetwork, millracev1beta1.AvoidBroadcast, millracev1beta1.AvoidSubnetRouterAnycast,
	}
	tests := []struct {
		name      string
		avoid     []millracev1beta1.AvoidedAddress
		addresses []string
		usable    []string
	}{
		{"absent", nil, []string{"203.0.113.0/30", "2001:db8::/126"}, []string{"203.0.113.0/30", "2001:db8::/126"}},
		{"network", all[:1], []string{"203.0.113.0/30", "2001:db8::/126"}, []string{"203.0.113.1-203.0.113.3", "2001:db8::/126"}},
		{"broadcast", all[1:2], []string{"203.0.113.0/30", "2001:db8::/126"}, []string{"203.0.113.0-203.0.113.2", "2001:db8::/126"}},
		{"anycast", all[2:], []string{"203.0.113.0/30", "2001:db8::/126"}, []string{"203.0.113.0/30", "2001:db8::1-2001:db8::3"}},
		{"of each CIDR", all, []string{"203.0.113.0/30", " 203.0.113.4/30 "}, []string{"203.0.113.1-203.0.113.2", "203.0.113.5-203.0.113.6"}},
		{"two addresses and one", all, []string{"203.0.113.0/31", "203.0.113.2/32", "2001:db8::/127", "2001:db8::2/128"},
			[]string{"203.0.113.0-203.0.113.2", "2001:db8::-2001:db8::2"}},
		{"ranges", all, []string{"203.0.113.0-203.0.113.3", "2001:db8::-2001:db8::3"}, []string{"203.0.113.0/30", "2001:db8::/126"}},
		{"a CIDR and a range that has its ends", all, []string{"203.0.113.4/30", "203.0.113.0-203.0.113.9"},
			[]string{"203.0.113.0/30", "203.0.113.5-203.0.113.6", "203.0.113.8/31"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pools, problems := Pools([]millracev1beta1.VIPPool{with(poolAged("a", 0, test.addresses...),
				func(s *millracev1beta1.VIPPoolSpec) { s.Avoid = test.avoid })}, Occupation{})
			checkProblems(t, problems, nil)
			if usable := pools[0].UsableRanges(); !slices.Equal(usable, test.usable) {
				t.Errorf("usable are %v, want %v", usable, test.usable)
			}
		})
	}
	_, problems := Pools([]millracev1beta1.VIPPool{with(poolAged("a", 0, "203.0.113.0/30"),
		func(s *millracev1beta1.VIPPoolSpec) { s.Avoid = append(all[:1:1], "Gateway") })}, Occupation{})
	checkProblems(t, problems, []string{`a Invalid spec.avoid[1]: "Gateway" is unknown: must be Network, Broadcast or SubnetRouterAnycast`})
}

func TestPoolQuota(t *testing.T) {
	override := func(most int32, selector map[string]string) millracev1beta1.NamespaceQuotaOverride {
		return millracev1beta1.NamespaceQuotaOverride{NamespaceSelector: metav1.LabelSelector{MatchLabels: selector}, Max: most}
	}
	gold, shop := labels.Set{"tier": "gold"}, labels.Set{"tier": "gold", "kubernetes.io/metadata.name": "shop"}
	pool := with(poolAged("a", 0, "203.0.113.0/30"), func(s *millracev1beta1.VIPPoolSpec) {
		s.PerNamespace = &millracev1beta1.NamespaceQuota{Max: 2, Overrides: []millracev1beta1.NamespaceQuotaOverride{
			override(5, labels.Set{"kubernetes.io/metadata.name": "shop"}), override(9, gold),
		}}
	})
	pools, _ := Pools([]millracev1beta1.VIPPool{pool}, Occupation{})
	for _, test := range []struct {
		namespace labels.Set
		most      int
	}{{nil, 2}, {gold, 9}, {shop, 5}} {
		if most, limited := pools[0].Quota(test.namespace); !limited || most != test.most {
			t.Errorf("a namespace with %v can have %d (limited: %v), want %d", test.namespace, most, limited, test.most)
		}
	}
	pools, _ = Pools([]millracev1beta1.VIPPool{poolAged("b", 0, "203.0.113.0/30")}, Occupation{})
	if most, limited := pools[0].Quota(gold); limited {
		t.Errorf("a pool without quotas gives %d", most)
	}
	pool.Spec.PerNamespace.Overrides[1].NamespaceSelector = *badSelector
	_, problems := Pools([]millracev1beta1.VIPPool{pool}, Occupation{})
	checkProblems(t, problems, []string{"a Invalid spec.perNamespace.overrides[1].namespaceSelector: "})
}

func TestSelects(t *testing.T) {
	selects := func(namespace, service *metav1.LabelSelector) Pool {
		pools, _ := Pools([]millracev1beta1.VIPPool{with(poolAged("a", 0, "203.0.113.0/30"), func(s *millracev1beta1.VIPPoolSpec) {
			s.NamespaceSelector, s.ServiceSelector = namespace, service
		})}, Occupation{})
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

func countOf(set *netipx.IPSet) int {
	count := 0
	for _, r := range set.Ranges() {
		for address := r.From(); r.Contains(address); address = address.Next() {
			count++
		}
	}
	return count
}
