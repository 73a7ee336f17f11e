// SPDX-License-Identifier: Apache-2.0

package review

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func pool(name string, addresses ...string) millracev1beta1.VIPPool {
	return millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: addresses},
	}
}

func vip(address, service string) millracev1beta1.VIP {
	return millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(netip.MustParseAddr(address))},
		Spec: millracev1beta1.VIPSpec{Address: address, Pool: "public", Claims: []millracev1beta1.VIPClaim{
			{Namespace: "default", Name: service, UID: "uid of " + service},
		}},
	}
}

func state() *State {
	limited := pool("limited", "198.51.100.0/28")
	limited.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
	avoiding := pool("avoiding", "10.0.0.0/30")
	avoiding.Spec.AutoAssign, avoiding.Spec.Avoid = new(bool), []millracev1beta1.AvoidedAddress{millracev1beta1.AvoidBroadcast}
	quota := pool("quota", "10.1.0.0/30")
	quota.Spec.AutoAssign, quota.Spec.PerNamespace = new(bool), &millracev1beta1.NamespaceQuota{
		Max: 1, Overrides: []millracev1beta1.NamespaceQuotaOverride{
			{NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": "two"}}, Max: 2},
		},
	}
	used := vip("10.1.0.0", "former")
	used.Spec.Pool = "quota"
	router := netip.MustParseAddr("203.0.113.0")
	return &State{
		Pools: []millracev1beta1.VIPPool{pool("public", "203.0.113.0/30"), limited, avoiding, quota},
		VIPs:  []millracev1beta1.VIP{vip("203.0.113.1", "other"), used},
		Peers: []millracev1beta1.LBPeer{{ObjectMeta: metav1.ObjectMeta{Name: "tor1"}}},
		Advertisements: []millracev1beta1.VIPAdvertisement{{
			ObjectMeta: metav1.ObjectMeta{Name: "all"},
			Spec:       millracev1beta1.VIPAdvertisementSpec{Pools: []string{"public"}},
		}},
		Occupied: []desired.Occupied{{Range: netipx.IPRangeFrom(router, router), By: `LBPeer "tor1"`, Host: true}},
	}
}

func TestService(t *testing.T) {
	const usable = `; the Service can use VIPPool "avoiding" (10.0.0.0-10.0.0.2), VIPPool "public" (203.0.113.1-203.0.113.3), VIPPool "quota" (10.1.0.0/30)`
	annotated := func(key, value string) func(*corev1.Service) {
		return func(service *corev1.Service) { service.Annotations = map[string]string{key: value} }
	}
	for name, test := range map[string]struct {
		change             func(*corev1.Service)
		namespace          labels.Set
		assigned, warnings []string
	}{
		"next address": {
			change:   func(*corev1.Service) {},
			assigned: []string{`the Service would get 203.0.113.2 from VIPPool "public"`},
		},
		"requested address": {
			change:   annotated(millracev1beta1.AnnotationAddresses, "203.0.113.3"),
			assigned: []string{`the Service would get 203.0.113.3 from VIPPool "public"`},
		},
		"address already assigned": {
			change: func(service *corev1.Service) { service.Name, service.UID = "other", "uid of other" },
		},
		"address of another Service": {
			change:   annotated(millracev1beta1.AnnotationAddresses, "203.0.113.1"),
			warnings: []string{"metadata.annotations[millrace.io/addresses]: address 203.0.113.1 of pool \"public\" is in use by Service default/other"},
		},
		"address excluded from the pool": {
			change:   annotated(millracev1beta1.AnnotationAddresses, "10.0.0.3"),
			warnings: []string{"metadata.annotations[millrace.io/addresses]: address 10.0.0.3 is not in any pool that selects this Service" + usable},
		},
		"no address": {
			change:   annotated(millracev1beta1.AnnotationAddresses, "203.0.113"),
			warnings: []string{`metadata.annotations[millrace.io/addresses]: "203.0.113" is not an IP address: the Service gets no address`},
		},
		"no such pool": {
			change: annotated(millracev1beta1.AnnotationPool, "publik"),
			warnings: []string{
				`metadata.annotations[millrace.io/pool]: requested pool "publik" does not exist or is not ready: no IPv4 address` + usable,
			},
		},
		"near the quota": {
			change:    annotated(millracev1beta1.AnnotationPool, "quota"),
			namespace: labels.Set{"team": "two"},
			assigned:  []string{`the Service would get 10.1.0.1 from VIPPool "quota"`},
			warnings: []string{
				`with this Service, namespace "default" uses 2 of its quota of 2 addresses of pool "quota"`,
				"no VIPAdvertisement selects 10.1.0.1, so no node announces it",
			},
		},
		"above the quota": {
			change: annotated(millracev1beta1.AnnotationPool, "quota"),
			warnings: []string{
				`metadata.annotations[millrace.io/pool]: namespace "default" uses 1 of its quota of 1 addresses of pool "quota", ` +
					"and the Service requires 1 more: delete Services, share an address (millrace.io/sharing-key), " +
					"or raise spec.perNamespace of the pool",
			},
		},
		"unavailable family": {
			change:   func(service *corev1.Service) { service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} },
			warnings: []string{"no pool with IPv6 addresses selects this Service"},
		},
		"no advertisement": {
			change:    annotated(millracev1beta1.AnnotationPool, "limited"),
			namespace: labels.Set{"team": "web"},
			assigned:  []string{`the Service would get 198.51.100.0 from VIPPool "limited"`},
			warnings:  []string{"no VIPAdvertisement selects 198.51.100.0, so no node announces it"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			service := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid of web"},
				Spec: corev1.ServiceSpec{
					IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Port: 80}},
				},
			}
			test.change(service)
			assigned, warnings := Service(service, test.namespace, state())
			if !slices.Equal(assigned, test.assigned) {
				t.Errorf("assigned = %q, want %q", assigned, test.assigned)
			}
			if !slices.Equal(warnings, test.warnings) {
				t.Errorf("warnings %q, want %q", warnings, test.warnings)
			}
		})
	}
}

func TestPool(t *testing.T) {
	changed := pool("public", "203.0.113.0/29")
	young := pool("young", "203.0.113.2/31", "192.0.2.0/24")
	young.CreationTimestamp = metav1.Unix(1, 0)
	quotas := func(max int32, overrides ...millracev1beta1.NamespaceQuotaOverride) millracev1beta1.VIPPool {
		limited := pool("quota", "10.1.0.0/29")
		limited.Spec.PerNamespace = &millracev1beta1.NamespaceQuota{Max: max, Overrides: overrides}
		return limited
	}
	gold := millracev1beta1.NamespaceQuotaOverride{NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}, Max: 2}
	for name, test := range map[string]struct {
		pool     millracev1beta1.VIPPool
		warnings []string
	}{
		"quota in use": {quotas(2), nil},
		"quota below the usage": {quotas(1), []string{
			`spec.perNamespace: namespace "shop" uses 2 addresses of the pool, but has a quota of 1: its Services keep them, and get no others`,
		}},
		"quota raised by an override": {quotas(1, gold), nil},
		"quota of zero for all": {quotas(0), []string{
			`spec.perNamespace: namespace "default" uses 1 addresses of the pool, but has a quota of 0: its Services keep them, and get no others`,
			`spec.perNamespace: namespace "shop" uses 2 addresses of the pool, but has a quota of 0: its Services keep them, and get no others`,
		}},
		"fine":     {pool("more", "192.0.2.0/24"), nil},
		"occupied": {changed, []string{`spec.addresses: never assigned: 203.0.113.0 (LBPeer "tor1")`}},
		"overlap": {young, []string{
			`spec.addresses[0]: 203.0.113.2/31 overlaps the older pool "public", which keeps 203.0.113.2/31`,
		}},
		"empty pool": {pool("router", "203.0.113.0/32"), []string{
			`spec.addresses: never assigned: 203.0.113.0 (LBPeer "tor1")`,
			"spec.addresses: no address is left to assign",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			known := state()
			// A VIP without a pool counts for the pool that contains its address.
			for _, address := range []string{"10.1.0.1", "10.1.0.2"} {
				used := vip(address, "web")
				used.Spec.Claims[0].Namespace, used.Spec.Pool = "shop", ""
				known.VIPs = append(known.VIPs, used)
			}
			known.VIPs[len(known.VIPs)-1].Spec.Pool = "quota"
			known.Namespaces = map[string]labels.Set{"shop": {"tier": "gold"}, "default": {}}
			if name == "empty pool" {
				known.Pools = known.Pools[1:]
			}
			if warnings := Pool(&test.pool, known); !slices.Equal(warnings, test.warnings) {
				t.Errorf("warnings %q, want %q", warnings, test.warnings)
			}
		})
	}
}

func TestAdvertisement(t *testing.T) {
	object := &millracev1beta1.VIPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: "new"},
		Spec:       millracev1beta1.VIPAdvertisementSpec{Pools: []string{"public", "publik"}, Peers: []string{"tor2"}},
	}
	want := []string{`spec.pools[1]: VIPPool "publik" does not exist: did you mean "public"?`, `spec.peers[0]: LBPeer "tor2" does not exist: did you mean "tor1"?`}
	if warnings := Messages(Advertisement(object, state())); !slices.Equal(warnings, want) {
		t.Errorf("warnings %q, want %q", warnings, want)
	}
}

func TestPassword(t *testing.T) {
	of := func(data map[string]string) *corev1.Secret {
		secret := &corev1.Secret{Data: map[string][]byte{}}
		for key, value := range data {
			secret.Data[key] = []byte(value)
		}
		return secret
	}
	for name, test := range map[string]struct {
		reference *millracev1beta1.SecretReference
		secret    *corev1.Secret
		want      []string
	}{
		"no password":    {},
		"a password":     {&millracev1beta1.SecretReference{Name: "tor"}, of(map[string]string{"password": "secret"}), nil},
		"no such Secret": {&millracev1beta1.SecretReference{Name: "tor"}, nil, []string{`spec.passwordSecretRef.name: Secret millrace-bgp/tor does not exist: no session is established until it exists with the key "password"`}},
		"another key":    {&millracev1beta1.SecretReference{Name: "tor"}, of(map[string]string{"key": "secret"}), []string{`spec.passwordSecretRef.name: Secret millrace-bgp/tor has no key "password": no session is established until the key is added`}},
		"too long": {
			&millracev1beta1.SecretReference{Name: "tor"}, of(map[string]string{"password": strings.Repeat("s", 81)}),
			[]string{`spec.passwordSecretRef.name: the password in Secret millrace-bgp/tor exceeds 80 bytes, the limit of the kernel: no session is established`},
		},
	} {
		peer := &millracev1beta1.LBPeer{Spec: millracev1beta1.LBPeerSpec{PasswordSecretRef: test.reference}}
		if got := Password(peer, test.secret); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
