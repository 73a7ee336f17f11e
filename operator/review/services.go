// SPDX-License-Identifier: Apache-2.0

package review

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

type planned struct {
	service *corev1.Service
	plan    ipam.Plan
}

// services plans all Services of the operator one after another and reports refused addresses.
func (c *cluster) services() {
	reading := c.state().Parser
	for i := range c.Services {
		service := &c.Services[i]
		c.warn(objectOf(service), ReasonNoEffect, Metadata(c.Class, reading, service, c.Services)...)
	}
	ours := c.ownServices()
	if len(ours) == 0 {
		c.result.VIPs = c.VIPs
		return
	}
	if len(c.Pools) == 0 {
		c.result.VIPs = c.VIPs
		c.warnf("there is no VIPPool: the addresses of %d Services are not verified", len(ours))
		return
	}
	table := table(c.state())
	pools, _ := desired.Pools(c.Pools, desired.NewOccupation(c.occupied))
	all := make([]planned, 0, len(ours))
	for _, service := range ours {
		if plan, ok := c.plan(service, table, pools); ok {
			all = append(all, planned{service, plan})
		}
	}
	c.result.VIPs = objectsOf(table, c.VIPs)
	if len(c.Advertisements) == 0 {
		c.warnf("there is no VIPAdvertisement: the announcement of VIPs is not verified")
	}
	for i := range all {
		c.evaluate(&all[i], table)
	}
}

// ownServices returns Services with defaults, first those that request addresses, which others must not get.
func (c *cluster) ownServices() []*corev1.Service {
	state, unknown := c.state(), map[string]bool{}
	var found []*corev1.Service
	for i := range c.Services {
		service := c.Services[i].DeepCopy()
		namespace, known := c.namespaces[service.Namespace]
		if namespace[millracev1beta1.LabelServiceDefaults] == millracev1beta1.ServiceDefaultsEnabled &&
			service.Spec.Type == corev1.ServiceTypeLoadBalancer {
			changes, _ := Defaults(c.Class, Write{Service: service}, namespace, state)
			fill(service, changes)
		}
		if !c.Class.Serves(service) {
			continue
		}
		if !known && len(c.Namespaces) > 0 && !unknown[service.Namespace] {
			unknown[service.Namespace] = true
			c.warnf("Namespace %s is missing: it is treated as a namespace without labels", service.Namespace)
		}
		c.complete(service)
		found = append(found, service)
	}
	requests := func(service *corev1.Service) int {
		if requestSource(state.Parser, service) != "" {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(found, func(a, b *corev1.Service) int {
		return cmp.Or(cmp.Compare(requests(a), requests(b)), desired.CompareAge(a, b))
	})
	return found
}

func fill(service *corev1.Service, changes []Change) {
	for _, change := range changes {
		switch value := change.Value.(type) {
		case string:
			service.Spec.LoadBalancerClass = &value
		case bool:
			service.Spec.AllocateLoadBalancerNodePorts = &value
		case corev1.IPFamilyPolicy:
			service.Spec.IPFamilyPolicy = &value
		}
	}
}

// complete sets the fields that the API server fills in: the families and a UID.
func (c *cluster) complete(service *corev1.Service) {
	spec := &service.Spec
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{c.family()}
	}
	if policy := spec.IPFamilyPolicy; policy != nil && *policy != corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 {
		other := corev1.IPv6Protocol
		if spec.IPFamilies[0] == corev1.IPv6Protocol {
			other = corev1.IPv4Protocol
		}
		spec.IPFamilies = append(spec.IPFamilies, other)
	}
	if spec.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		if len(spec.IPFamilies) > 1 {
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
	service.UID = UIDOf(service)
}

// UIDOf returns the UID of a Service, or a placeholder for claims of VIPs.
func UIDOf(service *corev1.Service) types.UID {
	return cmp.Or(service.UID, types.UID(service.Namespace+"/"+service.Name))
}

// family returns the family of the first Service network, else IPv4 unless no pool has IPv4.
func (c *cluster) family() corev1.IPFamily {
	texts := []string{}
	for i := range c.ServiceCIDRs {
		texts = append(texts, c.ServiceCIDRs[i].Spec.CIDRs...)
	}
	if len(texts) > 0 {
		texts = texts[:1]
	} else {
		for i := range c.Pools {
			texts = append(texts, c.Pools[i].Spec.Addresses...)
		}
	}
	isIPv4 := func(text string) bool {
		r, err := desired.ParseRange(text)
		return err != nil || r.From().Is4()
	}
	if len(texts) == 0 || slices.ContainsFunc(texts, isIPv4) {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// plan applies the operator's plan for a Service to the table.
func (c *cluster) plan(service *corev1.Service, table *ipam.Table, pools []desired.Pool) (ipam.Plan, bool) {
	name := objectOf(service)
	namespace, known := c.namespaces[service.Namespace]
	if !known {
		namespace = withName(service.Namespace, nil)
	}
	reading := c.state().Parser
	request, err := reading.Request(service, namespace, pools)
	if err != nil {
		c.warn(name, millracev1beta1.ReasonInvalid, err.Error()+": the Service gets no address")
		return ipam.Plan{}, false
	}
	plan := ipam.Make(table, convert.Pools(pools), request)
	for _, refusal := range plan.Refusals {
		c.warn(name, convert.Reason(refusal.Reason), refused(reading, service, refusal, selecting(pools, request)))
	}
	for _, note := range plan.Notes {
		c.warnf("Service %s/%s: %s", service.Namespace, service.Name, note.Message)
	}
	applyPlan(table, plan, request.Owner)
	return plan, true
}

// applyPlan adds the claims of a plan to the table.
func applyPlan(table *ipam.Table, plan ipam.Plan, owner ipam.Owner) {
	for _, write := range slices.Concat(plan.Create, plan.Bind) {
		vip, exists := table.Get(write.Address)
		if !exists {
			vip = ipam.VIP{Address: write.Address, Pool: write.Pool}
		}
		others := slices.DeleteFunc(slices.Clone(vip.Claims), func(claim ipam.Claim) bool {
			return claim.Namespace == owner.Namespace && claim.Name == owner.Name
		})
		vip.Claims = append(others, write.Claim)
		table.Put(vip)
	}
}

// objectsOf returns the VIPs of a table: existing ones with their new claims, and new ones.
func objectsOf(table *ipam.Table, before []millracev1beta1.VIP) []millracev1beta1.VIP {
	var found []millracev1beta1.VIP
	known := map[string]*millracev1beta1.VIP{}
	for i := range before {
		known[before[i].Name] = &before[i]
	}
	for _, address := range table.Addresses() {
		vip, _ := table.Get(address)
		object := millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(address)}}
		if was := known[object.Name]; was != nil {
			object = *was.DeepCopy()
		}
		object.Spec.Address, object.Spec.Pool, object.Spec.Claims = address.String(), vip.Pool, nil
		for _, claim := range vip.Claims {
			object.Spec.Claims = append(object.Spec.Claims, claimOf(claim))
		}
		found = append(found, object)
	}
	return found
}

func claimOf(claim ipam.Claim) millracev1beta1.VIPClaim {
	object := millracev1beta1.VIPClaim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, SharingKey: claim.SharingKey}
	for _, port := range claim.Ports {
		object.Ports = append(object.Ports, millracev1beta1.ClaimedPort{Port: int32(port.Number), Protocol: corev1.Protocol(port.Protocol)})
	}
	return object
}

// evaluate reports the parts of a Service with addresses that are not served. Sessions and links are assumed
// to be up.
func (c *cluster) evaluate(one *planned, table *ipam.Table) {
	subject := validation.Subject{Service: one.service, Conflicts: one.plan.Conflicts}
	for _, address := range one.plan.Addresses {
		vip, _ := table.Get(address)
		subject.Addresses = append(subject.Addresses, validation.Address{
			Addr: address, Pool: vip.Pool, Services: c.labelsOn(vip), Host: c.host(address),
		})
	}
	if len(subject.Addresses) == 0 {
		return
	}
	verdict := validation.Validate(subject, linked(c.advertised, c.zones()))
	for _, problem := range verdict.Problems {
		if problem.Reason != millracev1beta1.ReasonNotSelected || len(c.Advertisements) > 0 {
			c.warn(objectOf(one.service), problem.Reason, problem.Message)
		}
	}
	for _, note := range verdict.Notes {
		c.warnf("Service %s/%s: %s", one.service.Namespace, one.service.Name, note)
	}
}

func objectOf(service *corev1.Service) desired.Object {
	return desired.Object{Kind: "Service", Namespace: service.Namespace, Name: service.Name}
}

// labelsOn returns the labels of all Services that share a VIP.
func (c *cluster) labelsOn(vip ipam.VIP) []labels.Set {
	var sets []labels.Set
	for _, claim := range vip.Claims {
		set, known := c.labels[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}]
		if known && claim.UID != "" {
			sets = append(sets, set)
		}
	}
	return sets
}

// host returns the name of a node or router with an address.
func (c *cluster) host(address netip.Addr) string {
	for _, occupied := range c.occupied {
		if occupied.Host && occupied.Range.From() == address {
			return occupied.By
		}
	}
	return ""
}

func (c *cluster) zones() int {
	zones := map[string]bool{}
	for i := range c.Nodes {
		if zone := desired.NodeZone(&c.Nodes[i]); zone != "" {
			zones[zone] = true
		}
	}
	return len(zones)
}

// advertisedVIPs returns the VIPs that would have a Service.
func (c *cluster) advertisedVIPs() []desired.AdvertisedVIP {
	var found []desired.AdvertisedVIP
	for i := range c.result.VIPs {
		object := &c.result.VIPs[i]
		address, problems := desired.ParseVIP(object)
		if len(problems) > 0 {
			continue
		}
		vip := desired.AdvertisedVIP{Address: address, Pool: object.Spec.Pool, Services: c.labelsOn(convert.VIP(address, object))}
		if len(vip.Services) > 0 {
			found = append(found, vip)
		}
	}
	return found
}
