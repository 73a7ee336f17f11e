// SPDX-License-Identifier: Apache-2.0

package kubevip

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

const (
	// global is the suffix of keys for all namespaces without their own keys.
	global = "global"
	// dhcp is the pool of Services that get their addresses by DHCP.
	dhcp = "0.0.0.0/32"

	prefixCIDR       = "cidr-"
	prefixRange      = "range-"
	prefixShare      = "allow-share-"
	prefixInterface  = "interface-"
	keySearchOrder   = "search-order"
	keySkipEnds      = "skip-end-ips-in-cidr"
	kindConfigMap    = "ConfigMap"
	sharingKeyAdvice = "Services that share an address need the same annotation " + millracev1beta1.AnnotationSharingKey +
		" before the migration to Millrace"
)

type noteFunc func(format string, args ...any)

// configured prefers keys of a namespace to global ones, and CIDRs to ranges.
func (c *converter) configured(from *configMap) {
	note := c.noteFunc(kindConfigMap, from.Metadata.Name)
	own := from.namespaces(note)
	for _, namespace := range own {
		if addresses, key := from.addresses(namespace, note); key != "" {
			c.pool(from, namespace, addresses, note)
		}
	}
	c.overlaps(note)
	if order, ok := from.Data[keySearchOrder]; ok && order == "desc" {
		note("search-order has no equivalent")
	}
	for _, key := range slices.Sorted(maps.Keys(from.Data)) {
		c.interfaceOf(from, key, note)
		if !known(key) {
			note("the key %s is unknown: it is left out", key)
		}
	}
}

func known(key string) bool {
	for _, prefix := range []string{prefixCIDR, prefixRange, prefixShare, prefixInterface} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return key == keySearchOrder || key == keySkipEnds
}

func (m *configMap) namespaces(note noteFunc) (all []string) {
	for key := range m.Data {
		for _, prefix := range []string{prefixCIDR, prefixRange} {
			if namespace, ok := strings.CutPrefix(key, prefix); ok && namespace != global {
				all = append(all, namespace)
			}
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if _, everywhere := m.Data[prefixCIDR+global]; everywhere {
		all = slices.DeleteFunc(all, func(namespace string) bool {
			_, has := m.Data[prefixCIDR+namespace]
			if !has {
				note("cidr-global overrides range-%s: the range is left out", namespace)
			}
			return !has
		})
	}
	return append(all, global)
}

// addresses returns the addresses of a namespace with their key, or an empty key without addresses.
func (m *configMap) addresses(namespace string, note noteFunc) (addresses []string, key string) {
	for _, prefix := range []string{prefixCIDR, prefixRange} {
		value, ok := m.Data[prefix+namespace]
		if !ok {
			continue
		}
		if key != "" {
			note("%s overrides %s: the latter is left out", key, prefix+namespace)
			continue
		}
		key = prefix + namespace
		if value == dhcp {
			note("%s means DHCP, which has no equivalent: Services of this namespace need an address of a pool", key)
			continue
		}
		for part := range strings.SplitSeq(value, ",") {
			addresses = append(addresses, migration.Masked(part))
		}
	}
	return addresses, key
}

func (c *converter) pool(from *configMap, namespace string, addresses []string, note noteFunc) {
	if len(addresses) == 0 {
		// The namespace gets no addresses of the global pool either.
		c.withOwn = append(c.withOwn, namespace)
		return
	}
	to := migration.NewPool(migration.Name(namespace))
	to.Spec.Addresses = addresses
	switch {
	case namespace != global:
		c.withOwn = append(c.withOwn, namespace)
		to.Spec.NamespaceSelector = migration.Namespaces(metav1.LabelSelectorOpIn, namespace)
	case len(c.withOwn) > 0:
		to.Spec.NamespaceSelector = migration.Namespaces(metav1.LabelSelectorOpNotIn, c.withOwn...)
	}
	if from.Data[keySkipEnds] == "true" {
		migration.AvoidEndsIPv4(&to)
	}
	if from.shared(namespace) {
		if namespace == global {
			to.Spec.SharingScope = millracev1beta1.ShareInCluster
		}
		note("%s", sharingKeyAdvice)
	}
	c.result.Pools = append(c.result.Pools, to)
}

func (m *configMap) shared(namespace string) bool {
	value, ok := m.Data[prefixShare+namespace]
	if !ok {
		value = m.Data[prefixShare+global]
	}
	shared, err := strconv.ParseBool(value)
	return err == nil && shared
}

// overlaps adds notes for pools with common addresses, which the cloud provider allows.
func (c *converter) overlaps(note noteFunc) {
	for i := range c.result.Pools {
		for j := range i {
			if set(&c.result.Pools[i]).Overlaps(set(&c.result.Pools[j])) {
				note("the pools %s and %s have common addresses, which belong to only one of them: see their conditions",
					c.result.Pools[j].Name, c.result.Pools[i].Name)
			}
		}
	}
}

// set skips invalid entries, which the API server rejects.
func set(pool *millracev1beta1.VIPPool) *netipx.IPSet {
	var builder netipx.IPSetBuilder
	for _, addresses := range pool.Spec.Addresses {
		if network, err := netip.ParsePrefix(addresses); err == nil {
			builder.AddPrefix(network)
		} else if r, err := netipx.ParseIPRange(addresses); err == nil {
			builder.AddRange(r)
		}
	}
	all, err := builder.IPSet()
	if err != nil {
		return &netipx.IPSet{}
	}
	return all
}

func (c *converter) interfaceOf(from *configMap, key string, note noteFunc) {
	namespace, ok := strings.CutPrefix(key, prefixInterface)
	if !ok {
		return
	}
	pool := migration.Name(namespace)
	if !slices.ContainsFunc(c.result.Pools, func(p millracev1beta1.VIPPool) bool { return p.Name == pool }) {
		note("%s: the interface has no effect, because the namespace has no pool", key)
		return
	}
	c.interfaces[pool] = from.Data[key]
}
