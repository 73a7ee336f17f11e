// SPDX-License-Identifier: Apache-2.0

// Package review predicts the effect of an object by the operator's parsers and plans, without writes. It
// is pure.
package review

import (
	"fmt"
	"slices"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// State holds the cluster's objects.
type State struct {
	Reading        convert.Reading
	Pools          []millracev1beta1.VIPPool
	VIPs           []millracev1beta1.VIP
	Peers          []millracev1beta1.LBPeer
	Advertisements []millracev1beta1.VIPAdvertisement
	// Occupied are addresses of nodes, pods, routers and Services.
	Occupied []desired.Occupied
	// Namespaces holds the labels of namespaces, for pools with quotas.
	Namespaces map[string]labels.Set
	// Endpoints are the endpoints with an address of the reviewed pool.
	Endpoints []desired.Endpoint
}

// Service returns the addresses that a Service would get now, and warnings about refused ones.
func Service(service *corev1.Service, namespace labels.Set, state *State) (gets, warnings []string) {
	plan, err := plan(service, namespace, state)
	if err != nil {
		return nil, []string{err.Error() + ": the Service gets no address"}
	}
	for _, refusal := range plan.Refusals {
		warnings = append(warnings, askedBy(state.Reading, service)+refusal.Message)
	}
	for _, note := range plan.Notes {
		warnings = append(warnings, note.Message)
	}
	for _, write := range slices.Concat(plan.Create, plan.Bind) {
		if !slices.Contains(plan.Addresses, write.Address) {
			continue
		}
		gets = append(gets, fmt.Sprintf("the Service would get %s of %s", write.Address, origin(write.Pool)))
		if !announced(write.Pool, service.Labels, state.Advertisements) {
			warnings = append(warnings, fmt.Sprintf(
				"no VIPAdvertisement selects %s of %s: it would not be announced", write.Address, origin(write.Pool)))
		}
	}
	return gets, warnings
}

func plan(service *corev1.Service, namespace labels.Set, state *State) (ipam.Plan, error) {
	pools, _ := desired.Pools(state.Pools, desired.NewOccupation(state.Occupied))
	request, err := state.Reading.Request(service, namespace, pools)
	if err != nil {
		return ipam.Plan{}, err
	}
	return ipam.Make(table(state), convert.Pools(pools), request), nil
}

func table(state *State) *ipam.Table {
	table := ipam.NewTable()
	for i := range state.VIPs {
		if address, problems := desired.ParseVIP(&state.VIPs[i]); len(problems) == 0 {
			table.Put(convert.VIP(address, &state.VIPs[i]))
		}
	}
	return table
}

func askedBy(reading convert.Reading, service *corev1.Service) string {
	for _, annotation := range reading.Asking() {
		if service.Annotations[annotation] != "" {
			return fmt.Sprintf("metadata.annotations[%s]: ", annotation)
		}
	}
	if service.Spec.LoadBalancerIP != "" {
		return "spec.loadBalancerIP: "
	}
	return ""
}

func origin(pool string) string {
	if pool == "" {
		return "no VIPPool"
	}
	return fmt.Sprintf("VIPPool %q", pool)
}

func announced(pool string, service labels.Set, advertisements []millracev1beta1.VIPAdvertisement) bool {
	return slices.ContainsFunc(advertisements, func(object millracev1beta1.VIPAdvertisement) bool {
		advertisement, problems := desired.ParseAdvertisement(&object)
		return len(problems) == 0 && advertisement.Selects(pool, []labels.Set{service})
	})
}

// Pool returns warnings about a pool: addresses that it would not assign, and quotas below the current usage.
func Pool(pool *millracev1beta1.VIPPool, state *State) []string {
	others := slices.DeleteFunc(slices.Clone(state.Pools), func(other millracev1beta1.VIPPool) bool {
		return other.Name == pool.Name
	})
	pools, problems := desired.Pools(append(others, *pool), desired.NewOccupation(state.Occupied))
	warnings := messages(problems, desired.Object{Kind: "VIPPool", Name: pool.Name})
	for i := range pools {
		if pools[i].Name == pool.Name {
			warnings = append(warnings, messages(pools[i].Limits, desired.Object{Kind: "VIPPool", Name: pool.Name})...)
			warnings = append(warnings, exceeded(&pools[i], state)...)
			warnings = append(warnings, prefixed("spec.addresses", unannouncedFamilies(&pools[i],
				valid(state.Advertisements, desired.ParseAdvertisement), valid(state.Peers, desired.ParsePeer)))...)
			warnings = append(warnings, prefixed("spec.addresses", overlapping(pools[i].Added(pool), state))...)
		}
	}
	return warnings
}

// overlapping returns the reason why the operator will hold a pool that adds addresses.
func overlapping(added *netipx.IPSet, state *State) []string {
	vips := table(state)
	message := desired.OverlapMessage(slices.DeleteFunc(slices.Clone(state.Endpoints), func(endpoint desired.Endpoint) bool {
		_, isVIP := vips.Get(endpoint.Address)
		return isVIP || !added.Contains(endpoint.Address)
	}))
	if message == "" {
		return nil
	}
	return []string{message}
}

const namespacesInWarnings = 5

func exceeded(pool *desired.Pool, state *State) (warnings []string) {
	table, planned := table(state), convert.Pools([]desired.Pool{*pool})[0]
	more := 0
	for _, namespace := range table.Users(planned) {
		used := table.Used(planned, namespace)
		most, limited := pool.Quota(state.Namespaces[namespace])
		switch {
		case !limited || used <= most:
		case len(warnings) == namespacesInWarnings:
			more++
		default:
			warnings = append(warnings, fmt.Sprintf(
				"spec.perNamespace: namespace %q has %d of the pool's addresses, and a quota of %d: its Services keep them, and get no others",
				namespace, used, most))
		}
	}
	if more > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.perNamespace: so it is with %d other namespaces", more))
	}
	return warnings
}

// Advertisement returns warnings about an advertisement, including references to objects that do not exist.
func Advertisement(object *millracev1beta1.VIPAdvertisement, state *State) []string {
	problems := desired.Advertisements([]millracev1beta1.VIPAdvertisement{*object}, state.Pools, state.Peers)
	warnings := messages(problems, desired.Object{Kind: "VIPAdvertisement", Name: object.Name})
	others := slices.DeleteFunc(slices.Clone(state.Advertisements), func(other millracev1beta1.VIPAdvertisement) bool {
		return other.Name == object.Name
	})
	all, peers := valid(append(others, *object), desired.ParseAdvertisement), valid(state.Peers, desired.ParsePeer)
	pools, _ := desired.Pools(state.Pools, desired.NewOccupation(state.Occupied))
	for i := range pools {
		if len(object.Spec.Pools) == 0 || slices.Contains(object.Spec.Pools, pools[i].Name) {
			warnings = append(warnings, prefixed("spec.pools", unannouncedFamilies(&pools[i], all, peers))...)
		}
	}
	return warnings
}

// Peer returns warnings about an LBPeer without a valid password. secret is nil if it does not exist.
func Peer(peer *millracev1beta1.LBPeer, secret *corev1.Secret) []string {
	reference := peer.Spec.PasswordSecretRef
	if reference == nil {
		return nil
	}
	const field = "spec.passwordSecretRef.name"
	name := fmt.Sprintf("%s/%s", millracev1beta1.BGPNamespace, reference.Name)
	if secret == nil {
		return []string{fmt.Sprintf("%s: Secret %s does not exist: the sessions stay down until it has the key %q",
			field, name, desired.PasswordKey)}
	}
	switch password := secret.Data[desired.PasswordKey]; {
	case len(password) == 0:
		return []string{fmt.Sprintf("%s: Secret %s has no key %q: the sessions stay down until it has", field, name, desired.PasswordKey)}
	case len(password) > desired.LongestPassword:
		return []string{fmt.Sprintf("%s: the password in Secret %s is longer than %d octets, the most that the kernel takes: the sessions stay down",
			field, name, desired.LongestPassword)}
	}
	return nil
}

func messages(problems []desired.Problem, object desired.Object) []string {
	var texts []string
	for _, problem := range problems {
		if problem.Object == object {
			texts = append(texts, problem.Message)
		}
	}
	return texts
}
