// SPDX-License-Identifier: Apache-2.0

package cilium

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

const (
	kindPool     = "CiliumLoadBalancerIPPool"
	kindL2       = "CiliumL2AnnouncementPolicy"
	kindCluster  = "CiliumBGPClusterConfig"
	kindConfig   = "CiliumBGPPeerConfig"
	kindOverride = "CiliumBGPNodeConfigOverride"
	kindAdvert   = "CiliumBGPAdvertisement"
	kindPolicy   = "CiliumBGPPeeringPolicy"

	// Labels of each Service in Cilium's selectors.
	labelNamespace = "io.kubernetes.service.namespace"
	labelName      = "io.kubernetes.service.name"
)

// Convert returns equivalent objects of Millrace.
func Convert(objects *Objects) migration.Result {
	c := &converter{objects: objects, taken: map[string]bool{}, announced: map[string]*announced{}}
	c.result.Notes = objects.unknown
	for i := range objects.pools {
		c.pool(&objects.pools[i])
	}
	for i := range objects.clusters {
		c.cluster(&objects.clusters[i])
	}
	for i := range objects.advertisements {
		c.advertisements(&objects.advertisements[i])
	}
	for i := range objects.policies {
		c.policy(&objects.policies[i])
	}
	for i := range objects.layer2 {
		c.layer2(&objects.layer2[i])
	}
	c.unused()
	return c.result
}

type converter struct {
	objects *Objects
	result  migration.Result
	// taken are the used names of objects, as KIND/NAME.
	taken map[string]bool
	// announced maps the name of a CiliumBGPAdvertisement to the sessions that select it.
	announced map[string]*announced
}

type noteFunc func(format string, args ...any)

func (c *converter) noteFunc(kind, name string) noteFunc {
	return func(format string, args ...any) { c.result.Notes.Add(kind, name, format, args...) }
}

func (c *converter) name(kind string, parts ...string) string {
	name := migration.Name(parts...)
	unique := name
	for i := 2; c.taken[kind+"/"+unique]; i++ {
		unique = fmt.Sprintf("%s-%d", name, i)
	}
	c.taken[kind+"/"+unique] = true
	return unique
}

func (c *converter) pool(from *ipPool) {
	note := c.noteFunc(kindPool, from.Metadata.Name)
	to := migration.NewPool(c.name("VIPPool", from.Metadata.Name))
	for _, block := range slices.Concat(from.Spec.Blocks, from.Spec.CIDRs) {
		if addresses, ok := block.addresses(note); ok {
			to.Spec.Addresses = append(to.Spec.Addresses, addresses)
		}
	}
	if len(to.Spec.Addresses) == 0 {
		note("it has no addresses, so it is left out")
		return
	}
	if from.Spec.AllowFirstLastIPs == "No" {
		migration.AvoidEnds(&to)
	}
	if from.Spec.Disabled {
		auto := false
		to.Spec.AutoAssign = &auto
		note("it is disabled: with autoAssign false only Services that request its addresses get them")
	}
	to.Spec.NamespaceSelector, to.Spec.ServiceSelector = split(from.Spec.ServiceSelector)
	labelled(to.Spec.ServiceSelector, note)
	c.result.Pools = append(c.result.Pools, to)
}

func (b *block) addresses(note noteFunc) (string, bool) {
	if b.CIDR != "" {
		return migration.Masked(b.CIDR), true
	}
	start, err := netip.ParseAddr(b.Start)
	if err != nil {
		note("a block has neither a CIDR nor a valid start address, but %q: it is left out", b.Start)
		return "", false
	}
	if b.Stop == "" || b.Stop == b.Start {
		return netip.PrefixFrom(start, start.BitLen()).String(), true
	}
	return b.Start + "-" + b.Stop, true
}

// split separates a selector of Services into namespaces and Services, because Cilium's combines both.
func split(selector *metav1.LabelSelector) (namespaces, services *metav1.LabelSelector) {
	if selector == nil {
		return nil, nil
	}
	namespaces, services = &metav1.LabelSelector{}, selector.DeepCopy()
	if namespace, ok := services.MatchLabels[labelNamespace]; ok {
		delete(services.MatchLabels, labelNamespace)
		namespaces = migration.Namespaces(metav1.LabelSelectorOpIn, namespace)
	}
	services.MatchExpressions = slices.DeleteFunc(services.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		if r.Key != labelNamespace {
			return false
		}
		r.Key = corev1.LabelMetadataName
		namespaces.MatchExpressions = append(namespaces.MatchExpressions, r)
		return true
	})
	return unlessEmpty(namespaces), unlessEmpty(services)
}

func unlessEmpty(selector *metav1.LabelSelector) *metav1.LabelSelector {
	if selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		return nil
	}
	return selector
}

// labelled notes labels that Services have only in Cilium's selectors.
func labelled(selector *metav1.LabelSelector, note noteFunc) {
	for _, label := range []string{labelName, labelNamespace} {
		if selects(selector, label) {
			note("Services have the label %s only in Cilium's selectors: add it to the Services that are to be selected", label)
		}
	}
}

func selects(selector *metav1.LabelSelector, label string) bool {
	if selector == nil {
		return false
	}
	_, matches := selector.MatchLabels[label]
	return matches || slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
		return r.Key == label
	})
}

func (c *converter) layer2(from *l2Policy) {
	note := c.noteFunc(kindL2, from.Metadata.Name)
	if from.Spec.ExternalIPs {
		note("externalIPs of Services are not supported")
	}
	if !from.Spec.LoadBalancerIPs {
		note("it does not announce the addresses of load balancers, so it is left out")
		return
	}
	to := migration.NewAdvertisement(c.name("VIPAdvertisement", from.Metadata.Name))
	to.Spec = millracev1beta1.VIPAdvertisementSpec{
		NodeSelector: unlessEmpty(from.Spec.NodeSelector), ServiceSelector: unlessEmpty(from.Spec.ServiceSelector),
		L2: &millracev1beta1.L2Advertisement{},
	}
	labelled(to.Spec.ServiceSelector, note)
	for _, expression := range from.Spec.Interfaces {
		if name, ok := interfaceName(expression); ok {
			to.Spec.L2.Interfaces = append(to.Spec.L2.Interfaces, name)
		} else {
			note("interfaces are listed by name: add those that %q matches", expression)
		}
	}
	if len(to.Spec.L2.Interfaces) == 0 {
		note("without interfaces, nodes answer on the uplinks whose network contains the VIP")
	}
	c.result.Advertisements = append(c.result.Advertisements, to)
}

// aName matches a regular expression that matches a single interface name.
var aName = regexp.MustCompile(`^\^?([A-Za-z0-9_-]|\\?\.){1,15}\$?$`)

func interfaceName(expression string) (string, bool) {
	if !aName.MatchString(expression) {
		return "", false
	}
	name := strings.TrimSuffix(strings.TrimPrefix(expression, "^"), "$")
	return strings.ReplaceAll(name, `\.`, "."), true
}

func (c *converter) unused() {
	for i := range c.objects.configs {
		name := c.objects.configs[i].Metadata.Name
		if !c.taken[kindConfig+"/"+name] {
			c.noteFunc(kindConfig, name)("no peer refers to it, so it is left out")
		}
	}
	for i := range c.objects.overrides {
		for _, instance := range c.objects.overrides[i].Spec.BGPInstances {
			if !c.taken[kindOverride+"/"+c.objects.overrides[i].Metadata.Name+"/"+instance.Name] {
				c.noteFunc(kindOverride, c.objects.overrides[i].Metadata.Name)("no BGP instance has the name %q: it is left out", instance.Name)
			}
		}
	}
}
