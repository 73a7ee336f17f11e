// SPDX-License-Identifier: Apache-2.0

// Package review predicts the effect of an object by the operator's parsers and plans, without writes. It
// is pure.
package review

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

// State holds the cluster's objects.
type State struct {
	Parser         convert.Parser
	Pools          []millracev1beta1.VIPPool
	VIPs           []millracev1beta1.VIP
	Peers          []millracev1beta1.LBPeer
	Advertisements []millracev1beta1.VIPAdvertisement
	// Occupied are addresses of nodes, pods, routers and Services.
	Occupied []desired.Occupied
	Nodes    []corev1.Node
	// Interfaces are the names of the nodes' uplinks.
	Interfaces []string
	// Namespaces holds the labels of namespaces, for pools with selectors or quotas.
	Namespaces map[string]labels.Set
	// Endpoints are the endpoints with an address of the reviewed pool.
	Endpoints []desired.Endpoint
}

// Service returns the addresses that a Service of the operator would get now, and warnings about the
// parts that would not be served. Sessions and links are assumed to be up.
func Service(service *corev1.Service, namespace labels.Set, state *State) (assigned, warnings []string) {
	pools, _ := desired.Pools(state.Pools, desired.NewOccupation(state.Occupied))
	request, err := state.Parser.Request(service, namespace, pools)
	if err != nil {
		return nil, []string{err.Error() + ": the Service gets no address"}
	}
	plan := ipam.Make(table(state), convert.Pools(pools), request)
	for _, refusal := range plan.Refusals {
		warnings = append(warnings, refused(state.Parser, service, refusal, selecting(pools, request)))
	}
	for _, note := range plan.Notes {
		warnings = append(warnings, note.Message)
	}
	subject := validation.Subject{Service: service, Conflicts: plan.Conflicts}
	for _, write := range slices.Concat(plan.Create, plan.Bind) {
		if slices.Contains(plan.Addresses, write.Address) {
			assigned = append(assigned, fmt.Sprintf("the Service would get %s from %s", write.Address, origin(write.Pool)))
			subject.Addresses = append(subject.Addresses, validation.Address{
				Addr: write.Address, Pool: write.Pool, Services: []labels.Set{service.Labels},
			})
		}
	}
	verdict := validation.Validate(subject, linked(valid(state.Advertisements, desired.ParseAdvertisement), 0))
	for _, problem := range verdict.Problems {
		warnings = append(warnings, problem.Message)
	}
	return assigned, append(warnings, verdict.Notes...)
}

// linked returns inputs in which all nodes have their sessions and links.
func linked(advertisements []desired.Advertisement, zones int) validation.Inputs {
	inputs := validation.Inputs{Advertisements: advertisements, Zones: zones}
	everywhere := []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
	for range advertisements {
		inputs.Announced = append(inputs.Announced, validation.BothFamilies)
		inputs.Networks = append(inputs.Networks, everywhere)
	}
	return inputs
}

// Metadata returns warnings about a Service of any type and class: its class, and annotations without an
// effect.
func Metadata(class desired.Class, reading convert.Parser, service *corev1.Service, services []corev1.Service) []string {
	warnings := append(Keys("Service", service), Class(class, service, services)...)
	if service.Spec.Type == corev1.ServiceTypeLoadBalancer && !class.Serves(service) {
		return warnings
	}
	return append(warnings, requests(reading, service)...)
}

func plan(service *corev1.Service, namespace labels.Set, state *State) (ipam.Plan, error) {
	pools, _ := desired.Pools(state.Pools, desired.NewOccupation(state.Occupied))
	request, err := state.Parser.Request(service, namespace, pools)
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

// refused returns the message of a refusal with the field and, for a request that no pool can fulfill,
// the usable pools.
func refused(reading convert.Parser, service *corev1.Service, refusal ipam.Refusal, usable string) string {
	field := requestSource(reading, service)
	if field != "" && usable != "" && (refusal.Reason == ipam.NoMatchingPool || refusal.Reason == ipam.AddressNotInPool) {
		return fmt.Sprintf("%s%s; the Service can use %s", field, refusal.Message, usable)
	}
	return field + refusal.Message
}

// selecting lists the pools that a Service can use, with their first addresses.
func selecting(pools []desired.Pool, request ipam.Request) string {
	var names []string
	for i := range pools {
		if slices.Contains(request.Eligible, pools[i].Name) && len(names) < poolsInWarnings {
			names = append(names, fmt.Sprintf("VIPPool %q (%s)", pools[i].Name, firstNames(pools[i].UsableRanges())))
		}
	}
	return strings.Join(names, ", ")
}

const poolsInWarnings = 3

func requestSource(parser convert.Parser, service *corev1.Service) string {
	for _, annotation := range parser.AddressAnnotations() {
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

// Pool returns warnings about a pool: addresses that it would not assign, and quotas below the current usage.
func Pool(pool *millracev1beta1.VIPPool, state *State) []string {
	others := slices.DeleteFunc(slices.Clone(state.Pools), func(other millracev1beta1.VIPPool) bool {
		return other.Name == pool.Name
	})
	pools, problems := desired.Pools(append(others, *pool), desired.NewOccupation(state.Occupied))
	warnings := messages(append(problems, settings(pool, state)...), desired.Object{Kind: "VIPPool", Name: pool.Name})
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
				"spec.perNamespace: namespace %q uses %d addresses of the pool, but has a quota of %d: its Services keep them, and get no others",
				namespace, used, most))
		}
	}
	if more > 0 {
		warnings = append(warnings, fmt.Sprintf("spec.perNamespace: %d more namespaces exceed their quotas", more))
	}
	return warnings
}

// Password returns warnings about an LBPeer without a valid password. secret is nil if it does not exist.
func Password(peer *millracev1beta1.LBPeer, secret *corev1.Secret) []string {
	reference := peer.Spec.PasswordSecretRef
	if reference == nil {
		return nil
	}
	const field = "spec.passwordSecretRef.name"
	name := fmt.Sprintf("%s/%s", millracev1beta1.BGPNamespace, reference.Name)
	if secret == nil {
		return []string{fmt.Sprintf("%s: Secret %s does not exist: no session is established until it exists with the key %q",
			field, name, desired.PasswordKey)}
	}
	switch password := secret.Data[desired.PasswordKey]; {
	case len(password) == 0:
		return []string{fmt.Sprintf("%s: Secret %s has no key %q: no session is established until the key is added", field, name, desired.PasswordKey)}
	case len(password) > desired.LongestPassword:
		return []string{fmt.Sprintf("%s: the password in Secret %s exceeds %d bytes, the limit of the kernel: no session is established",
			field, name, desired.LongestPassword)}
	}
	return nil
}

// Messages returns the messages of problems.
func Messages(problems []desired.Problem) (texts []string) {
	for _, problem := range problems {
		texts = append(texts, problem.Message)
	}
	return texts
}

func messages(problems []desired.Problem, object desired.Object) []string {
	return Messages(slices.DeleteFunc(slices.Clone(problems), func(problem desired.Problem) bool { return problem.Object != object }))
}
