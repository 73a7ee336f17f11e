// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Pool is a parsed and valid VIPPool.
type Pool struct {
	Name string
	// Priority orders pools. The highest is tried first. Of pools with equal priority, those with a namespace
	// selector are tried first, then by name.
	Priority int32
	// AutoAssign is false if Services must request the pool.
	AutoAssign bool
	// Addresses are the addresses that can be assigned, without reserved and avoided ones. Function Pools
	// also removes addresses of older pools and used addresses.
	Addresses *netipx.IPSet
	// Reserved are the addresses in spec.reserved, which belong to other hosts. They need not be in the pool.
	Reserved *netipx.IPSet
	// SharedByAll allows Services of different namespaces to share an address.
	SharedByAll bool
	Limits      []Problem

	quotas     []quota
	all        *netipx.IPSet
	namespaces labels.Selector
	services   labels.Selector
}

type quota struct {
	namespaces labels.Selector
	max        int
}

// ParsePool parses a VIPPool without regard to other objects. If it is invalid, only Name may be used.
func ParsePool(object *millracev1beta1.VIPPool) (Pool, []Problem) {
	p := problems{object: poolObject(object)}
	all := p.set("spec.addresses", object.Spec.Addresses, announceable)
	if len(object.Spec.Addresses) == 0 {
		p.invalid("spec.addresses", "must have at least one CIDR or range")
	}
	reserved := p.set("spec.reserved", object.Spec.Reserved, nil)
	return Pool{
		Name:        object.Name,
		Priority:    object.Spec.Priority,
		AutoAssign:  object.Spec.AutoAssign == nil || *object.Spec.AutoAssign,
		Addresses:   difference(difference(all, reserved), p.avoided(object)),
		Reserved:    reserved,
		SharedByAll: object.Spec.SharingScope == millracev1beta1.ShareInCluster,
		quotas:      p.quotas(object.Spec.PerNamespace),
		all:         all,
		namespaces:  p.selector("spec.namespaceSelector", object.Spec.NamespaceSelector),
		services:    p.selector("spec.serviceSelector", object.Spec.ServiceSelector),
	}, p.found
}

// set parses ranges and omits those that are invalid or that check rejects.
func (p *problems) set(field string, texts []string, check func(netipx.IPRange) error) *netipx.IPSet {
	var ranges []netipx.IPRange
	for i, text := range texts {
		r, err := ParseRange(text)
		if err == nil && check != nil {
			err = check(r)
		}
		if err != nil {
			p.invalid(fmt.Sprintf("%s[%d]", field, i), "%v", err)
			continue
		}
		ranges = append(ranges, r)
	}
	return setOf(ranges...)
}

func (p *problems) avoided(object *millracev1beta1.VIPPool) *netipx.IPSet {
	kinds := map[millracev1beta1.AvoidedAddress]bool{}
	for i, kind := range object.Spec.Avoid {
		kinds[kind] = true
		switch kind {
		case millracev1beta1.AvoidNetwork, millracev1beta1.AvoidBroadcast, millracev1beta1.AvoidSubnetRouterAnycast:
		default:
			p.invalid(fmt.Sprintf("spec.avoid[%d]", i), "%q is unknown: must be %s, %s or %s", kind,
				millracev1beta1.AvoidNetwork, millracev1beta1.AvoidBroadcast, millracev1beta1.AvoidSubnetRouterAnycast)
		}
	}
	var builder netipx.IPSetBuilder
	for _, text := range object.Spec.Addresses {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		// All addresses of a CIDR of one or two addresses are host addresses (RFC 3021, RFC 6164).
		if err != nil || prefix.Addr().BitLen()-prefix.Bits() < 2 {
			continue
		}
		r := netipx.RangeOfPrefix(prefix)
		if r.From().Is4() && kinds[millracev1beta1.AvoidNetwork] || r.From().Is6() && kinds[millracev1beta1.AvoidSubnetRouterAnycast] {
			builder.Add(r.From())
		}
		if r.From().Is4() && kinds[millracev1beta1.AvoidBroadcast] {
			builder.Add(r.To())
		}
	}
	return built(&builder)
}

func poolObject(object *millracev1beta1.VIPPool) Object {
	return Object{Kind: "VIPPool", Name: object.Name}
}

// quotas parses the quotas of a pool. The last one applies to all other namespaces.
func (p *problems) quotas(object *millracev1beta1.NamespaceQuota) []quota {
	if object == nil {
		return nil
	}
	var quotas []quota
	for i := range object.Overrides {
		override := &object.Overrides[i]
		selector := p.selector(fmt.Sprintf("spec.perNamespace.overrides[%d].namespaceSelector", i), &override.NamespaceSelector)
		quotas = append(quotas, quota{selector, int(override.Max)})
	}
	return append(quotas, quota{labels.Everything(), int(object.Max)})
}

// Quota returns the maximum number of addresses of a namespace with these labels, and whether there is one.
func (p Pool) Quota(namespace labels.Set) (most int, limited bool) {
	for _, quota := range p.quotas {
		if quota.namespaces.Matches(namespace) {
			return quota.max, true
		}
	}
	return 0, false
}

// Selects reports whether a Service with these labels in a namespace with these labels can use the pool.
func (p Pool) Selects(namespace, service labels.Set) bool {
	return p.namespaces.Matches(namespace) && p.services.Matches(service)
}

// Selective reports whether the pool has a namespace selector.
func (p Pool) Selective() bool { return !p.namespaces.Empty() }

// IsSameFor reports whether a namespace can use the pool and has the same quota with either set of labels.
func (p Pool) IsSameFor(a, b labels.Set) bool {
	mostOfA, isLimitedForA := p.Quota(a)
	mostOfB, isLimitedForB := p.Quota(b)
	return p.namespaces.Matches(a) == p.namespaces.Matches(b) && mostOfA == mostOfB && isLimitedForA == isLimitedForB
}

// Equal reports whether two pools assign the same addresses to the same Services with the same quotas and
// limits.
func (p Pool) Equal(other Pool) bool {
	sameSelector := func(a, b labels.Selector) bool { return a.String() == b.String() }
	sameQuota := func(a, b quota) bool { return a.max == b.max && sameSelector(a.namespaces, b.namespaces) }
	return p.Name == other.Name && p.Priority == other.Priority && p.AutoAssign == other.AutoAssign && p.SharedByAll == other.SharedByAll &&
		p.Addresses.Equal(other.Addresses) && p.Reserved.Equal(other.Reserved) && p.all.Equal(other.all) &&
		slices.Equal(p.Limits, other.Limits) && slices.EqualFunc(p.quotas, other.quotas, sameQuota) &&
		sameSelector(p.namespaces, other.namespaces) && sameSelector(p.services, other.services)
}

// Pools returns the usable pools and the problems of the others. An address of several pools belongs to the
// oldest one. A pool that loses addresses has Limits. A pool without any usable address is omitted.
func Pools(objects []millracev1beta1.VIPPool, occupation Occupation) ([]Pool, []Problem) {
	ordered := slices.Clone(objects)
	slices.SortFunc(ordered, func(a, b millracev1beta1.VIPPool) int { return CompareAge(&a, &b) })

	var found []Problem
	var valid []*Pool
	var sources []*millracev1beta1.VIPPool
	for i := range ordered {
		pool, invalid := ParsePool(&ordered[i])
		if len(invalid) > 0 {
			found = append(found, invalid...)
			continue
		}
		valid, sources = append(valid, &pool), append(sources, &ordered[i])
	}
	older := overlaps(valid)
	pools := make([]Pool, 0, len(valid))
	for i, pool := range valid {
		pool.dropOverlap(sources[i], older[i])
		pool.dropOccupied(sources[i], occupation)
		pool.dropHeld(sources[i])
		if len(pool.Limits) > 0 && isEmpty(pool.Addresses) {
			p := problems{object: poolObject(sources[i]), found: pool.Limits}
			p.add(pool.Limits[0].Reason, "spec.addresses", "no address is left to assign")
			found = append(found, p.found...)
			continue
		}
		pools = append(pools, *pool)
	}
	return pools, found
}

// maxUsable is twice the maximum length of spec.addresses, because the same number of reserved ranges can
// split them.
const maxUsable = 512

// UsableRanges returns the ranges for VIPPool.status.usable, sorted. If there are too many, the smallest are
// omitted.
func (p *Pool) UsableRanges() []string {
	ranges := p.Addresses.Ranges()
	if len(ranges) > maxUsable {
		slices.SortStableFunc(ranges, func(a, b netipx.IPRange) int { return sizeOf(b).Cmp(sizeOf(a)) })
		ranges = ranges[:maxUsable]
		slices.SortFunc(ranges, func(a, b netipx.IPRange) int { return a.From().Compare(b.From()) })
	}
	texts := make([]string, 0, len(ranges))
	for _, r := range ranges {
		texts = append(texts, rangeText(r))
	}
	return texts
}

func sizeOf(r netipx.IPRange) *big.Int {
	first, last := r.From().As16(), r.To().As16()
	return new(big.Int).Sub(new(big.Int).SetBytes(last[:]), new(big.Int).SetBytes(first[:]))
}

// ParseUsable returns the addresses in VIPPool.status.usable that are still in the pool.
func ParseUsable(object *millracev1beta1.VIPPool, pool Pool) *netipx.IPSet {
	var ranges []netipx.IPRange
	for _, text := range object.Status.Usable {
		if r, err := ParseRange(text); err == nil {
			ranges = append(ranges, r)
		}
	}
	return Common(pool.Addresses, setOf(ranges...))
}

// PoolHas reports whether a pool contains an address that can be assigned. Invalid entries of the pool are
// ignored.
func PoolHas(object *millracev1beta1.VIPPool, address netip.Addr) bool {
	pool, _ := ParsePool(object)
	return pool.Addresses.Contains(address)
}
