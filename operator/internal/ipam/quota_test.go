// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"testing"

	"pgregory.net/rapid"
)

func TestQuota(t *testing.T) {
	has := vip("203.0.113.1", "a", other)
	elsewhere := Owner{Namespace: "office", Name: "fax", UID: "3"}
	keyed := func(v VIP, key string) VIP {
		for i := range v.Claims {
			v.Claims[i].SharingKey, v.Claims[i].Ports = key, []Port{{53, "UDP"}}
		}
		return v
	}
	byAll := poolA
	byAll.SharedByAll = true
	manual := vip("203.0.113.2", "", Owner{Namespace: "shop", Name: "later"})
	for _, test := range []planCase{
		{
			name: "quota for one more address", vips: []VIP{has},
			request:   Request{Families: single, RequireAll: true, Eligible: []string{"a"}, Quotas: map[string]int{"a": 2}},
			addresses: []string{"203.0.113.2"}, create: []string{"203.0.113.2"},
		},
		{
			name: "quota exhausted", vips: []VIP{has},
			request:  Request{Families: single, RequireAll: true, Eligible: []string{"a"}, Quotas: map[string]int{"a": 1}},
			refusals: []Reason{QuotaExceeded}, unsatisfied: true,
		},
		{
			name: "quota of zero", request: Request{Families: single, RequireAll: true, Eligible: []string{"a"}, Quotas: map[string]int{"a": 0}},
			refusals: []Reason{QuotaExceeded}, unsatisfied: true,
		},
		{
			name: "addresses of other namespaces do not count", vips: []VIP{vip("203.0.113.1", "a", elsewhere), vip("198.51.100.129", "z-high", other)},
			request:   Request{Families: single, RequireAll: true, Eligible: []string{"a"}, Quotas: map[string]int{"a": 1}},
			addresses: []string{"203.0.113.2"}, create: []string{"203.0.113.2"},
		},
		{
			name: "quota exhausted, next pool used", vips: []VIP{has},
			request:   Request{Families: single, RequireAll: true, Eligible: []string{"a", "dual"}, Quotas: map[string]int{"a": 1}},
			addresses: []string{"198.51.100.1"}, create: []string{"198.51.100.1"},
		},
		{
			name: "both families need two", vips: []VIP{vip("198.51.100.3", "dual", other)},
			request:  Request{Families: dual, RequireAll: true, Eligible: []string{"dual"}, Quotas: map[string]int{"dual": 2}},
			refusals: []Reason{QuotaExceeded}, unsatisfied: true,
		},
		{
			name: "quota for one of two families", vips: []VIP{vip("198.51.100.3", "dual", other)},
			request:   Request{Families: dual, Eligible: []string{"dual"}, Quotas: map[string]int{"dual": 2}},
			addresses: []string{"198.51.100.1"}, create: []string{"198.51.100.1"}, refusals: []Reason{QuotaExceeded},
		},
		{
			name: "requested address above the quota", vips: []VIP{has},
			request:  Request{Families: single, RequireAll: true, Eligible: []string{"a"}, Addresses: addresses("203.0.113.2"), Quotas: map[string]int{"a": 1}},
			refusals: []Reason{QuotaExceeded}, unsatisfied: true,
		},
		{
			name: "lowering the quota releases no address", vips: []VIP{has, vip("203.0.113.2", "a", web)},
			request:   Request{Families: single, RequireAll: true, Eligible: []string{"a"}, Quotas: map[string]int{"a": 1}},
			addresses: []string{"203.0.113.2"},
		},
		{
			name: "address in the status does not bypass the quota", vips: []VIP{has},
			request: Request{Families: single, RequireAll: true, Eligible: []string{"a"}, Hints: addresses("203.0.113.2"), Quotas: map[string]int{"a": 1}},

			refusals: []Reason{QuotaExceeded}, unsatisfied: true,
		},
		{
			name: "reserved for the Service: already counted", vips: []VIP{has, vip("203.0.113.2", "a", Owner{Namespace: "shop", Name: "web"})},
			request:   Request{Families: single, RequireAll: true, Eligible: []string{"a"}, Quotas: map[string]int{"a": 2}},
			addresses: []string{"203.0.113.2"}, bind: []string{"203.0.113.2"},
		},
		{
			name: "reserved for another Service: counted", vips: []VIP{manual},
			request:  Request{Families: single, RequireAll: true, Eligible: []string{"a"}, Quotas: map[string]int{"a": 1}},
			refusals: []Reason{QuotaExceeded}, unsatisfied: true,
		},
		{
			name: "shared within the namespace: counted once", vips: []VIP{keyed(has, "k")},
			request: Request{Families: single, RequireAll: true, Eligible: []string{"a"}, SharingKey: "k", Ports: []Port{{53, "TCP"}}, Quotas: map[string]int{"a": 1}},

			addresses: []string{"203.0.113.1"}, bind: []string{"203.0.113.1"},
		},
		{
			name: "shared with another namespace: counted in both", vips: []VIP{keyed(vip("203.0.113.1", "a", elsewhere), "k"), vip("203.0.113.2", "a", other)},
			pools:   []Pool{byAll},
			request: Request{Families: single, RequireAll: true, Eligible: []string{"a"}, SharingKey: "k", Ports: []Port{{53, "TCP"}}, Quotas: map[string]int{"a": 1}},

			refusals: []Reason{QuotaExceeded}, unsatisfied: true,
		},
		{
			name: "shared within the namespace, beyond a lower quota", vips: []VIP{keyed(has, "k"), vip("203.0.113.2", "a", Owner{Namespace: "shop", Name: "third"})},
			request:   Request{Families: single, RequireAll: true, Eligible: []string{"a"}, SharingKey: "k", Ports: []Port{{53, "TCP"}}, Quotas: map[string]int{"a": 1}},
			addresses: []string{"203.0.113.1"}, bind: []string{"203.0.113.1"},
		},
		{
			name: "shared: quota of the pool of the VIP", vips: []VIP{keyed(vip("203.0.113.1", "dual", elsewhere), "k")},
			pools:   []Pool{byAll, poolDual},
			request: Request{Families: single, RequireAll: true, Eligible: []string{"a"}, SharingKey: "k", Ports: []Port{{53, "TCP"}}, Quotas: map[string]int{"dual": 0}},

			refusals: []Reason{QuotaExceeded}, unsatisfied: true,
		},
		{
			name: "full pool and exhausted quota", vips: []VIP{vip("198.51.100.1", "dual", other), vip("203.0.113.1", "a", other)},
			request:  Request{Families: single, RequireAll: true, Eligible: []string{"a", "dual"}, Quotas: map[string]int{"a": 1}},
			refusals: []Reason{QuotaExceeded}, unsatisfied: true,
		},
	} {
		t.Run(test.name, func(t *testing.T) { checkPlan(t, test) })
	}
}

// Messages contain the usage, the quota and the shortage; a nearly used quota is reported once.
func TestQuotaIsReported(t *testing.T) {
	pool := Pool{Name: "p", AutoAssign: true, Addresses: setOf(rangeOf("203.0.113.0", "203.0.113.9"), rangeOf("2001:db8::1", "2001:db8::9"))}
	table := NewTable()
	make := func(name string, families []Family) Plan {
		plan := Make(table, []Pool{pool}, Request{
			Owner: Owner{Namespace: "shop", Name: name, UID: name}, Families: families, RequireAll: true, Eligible: []string{"p"},
			Quotas: map[string]int{"p": 5},
		})
		for _, write := range plan.Create {
			table.Put(VIP{Address: write.Address, Pool: write.Pool, Claims: []Claim{write.Claim}})
		}
		return plan
	}
	for i, want := range []string{
		"", "", "", `with this Service, namespace "shop" uses 4 of its quota of 5 addresses of pool "p"`,
	} {
		plan := make(string(rune('a'+i)), single)
		got := ""
		if len(plan.Notes) == 1 && plan.Notes[0].Kind == QuotaNearlyExceeded {
			got = plan.Notes[0].Message
		}
		if got != want || (want == "") != (len(plan.Notes) == 0) {
			t.Errorf("with %d addresses: notes %+v, want %q", i+1, plan.Notes, want)
		}
	}
	if again := make("d", single); len(again.Notes) > 0 {
		t.Errorf("without a new address: notes %+v", again.Notes)
	}
	refused := make("e", dual)
	const want = `namespace "shop" uses 4 of its quota of 5 addresses of pool "p", and the Service requires 2 more: ` +
		"delete Services, share an address (millrace.io/sharing-key), or raise spec.perNamespace of the pool"
	if len(refused.Refusals) != 1 || refused.Refusals[0].Message != want || len(refused.Notes) > 0 {
		t.Errorf("refusals = %+v, notes = %+v, want %q", refused.Refusals, refused.Notes, want)
	}
}

func (w *world) spent(namespace string) map[string]int {
	spent := map[string]int{}
	for _, vip := range w.vips {
		for _, claim := range vip.Claims {
			if claim.Namespace != namespace {
				continue
			}
			for _, pool := range w.pools {
				if vip.Pool == pool.Name || vip.Pool == "" && pool.Addresses.Contains(vip.Address) {
					spent[pool.Name]++
				}
			}
			break
		}
	}
	return spent
}

func (w *world) checkQuota(t *rapid.T, owner Owner, before map[string]int, plan Plan) {
	after := w.spent(owner.Namespace)
	for pool, most := range w.services[owner].Quotas {
		if after[pool] > max(most, before[pool]) {
			t.Fatalf("the namespace of %s uses %d addresses of %s, previously %d, with a quota of %d: %+v", owner, after[pool], pool, before[pool], most, plan)
		}
	}
}
