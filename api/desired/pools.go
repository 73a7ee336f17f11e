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

// Pool is a valid VIPPool.
type Pool struct {
	Name string
	// Priority orders pools: the highest is tried first, then by name.
	Priority int32
	// AutoAssign is false for a pool that has to be asked for.
	AutoAssign bool
	// Addresses may be given out: those of the pool less the reserved and the avoided
	// ones and, of Pools, less those that older pools or others in the cluster have.
	Addresses *netipx.IPSet
	// Reserved are addresses that something else has, in this pool or outside.
	Reserved *netipx.IPSet
	// SharedByAll lets Services of different namespaces share an address.
	SharedByAll bool
	// Limits say which addresses are not given out, and what has them.
	Limits []Problem

	// quotas of namespaces, the first that selects one counts.
	quotas []quota
	// all addresses of the pool, the reserved ones included.
	all        *netipx.IPSet
	namespaces labels.Selector
	services   labels.Selector
}

// quota is how many addresses namespaces can have.
type quota struct {
	namespaces labels.Selector
	max        int
}

// ParsePool reads a VIPPool by itself. Of an invalid one only Name can be used.
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
		Addresses:   minus(minus(all, reserved), p.avoided(object)),
		Reserved:    reserved,
		SharedByAll: object.Spec.SharingScope == millracev1beta1.ShareInCluster,
		quotas:      p.quotas(object.Spec.PerNamespace),
		all:         all,
		namespaces:  p.selector("spec.namespaceSelector", object.Spec.NamespaceSelector),
		services:    p.selector("spec.serviceSelector", object.Spec.ServiceSelector),
	}, p.found
}

// set reads ranges. One that cannot be read, or that check refuses, is left out.
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

// avoided returns the special addresses of a pool's CIDRs that it does not give out.
func (p *problems) avoided(object *millracev1beta1.VIPPool) *netipx.IPSet {
	kinds := map[millracev1beta1.AvoidedAddress]bool{}
	for i, kind := range object.Spec.Avoid {
		kinds[kind] = true
		switch kind {
		case millracev1beta1.AvoidNetwork, millracev1beta1.AvoidBroadcast, millracev1beta1.AvoidSubnetRouterAnycast:
		default:
			p.invalid(fmt.Sprintf("spec.avoid[%d]", i), "%q is no address that can be avoided: write %s, %s or %s", kind,
				millracev1beta1.AvoidNetwork, millracev1beta1.AvoidBroadcast, millracev1beta1.AvoidSubnetRouterAnycast)
		}
	}
	var builder netipx.IPSetBuilder
	for _, text := range object.Spec.Addresses {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		// Of one or two addresses each is a host's (RFC 3021, RFC 6164).
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

// quotas returns those of a pool, with that of all other namespaces as the last one.
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

// Quota returns how many addresses of the pool a namespace with these labels can have, if that is
// limited.
func (p Pool) Quota(namespace labels.Set) (most int, limited bool) {
	for _, quota := range p.quotas {
		if quota.namespaces.Matches(namespace) {
			return quota.max, true
		}
	}
	return 0, false
}

// Selects reports whether a pool may serve a Service with these labels in a
// namespace with those.
func (p Pool) Selects(namespace, service labels.Set) bool {
	return p.namespaces.Matches(namespace) && p.services.Matches(service)
}

// IsSameFor reports whether a pool makes no difference between two sets of labels of a namespace.
func (p Pool) IsSameFor(a, b labels.Set) bool {
	mostOfA, isLimitedForA := p.Quota(a)
	mostOfB, isLimitedForB := p.Quota(b)
	return p.namespaces.Matches(a) == p.namespaces.Matches(b) && mostOfA == mostOfB && isLimitedForA == isLimitedForB
}

// Equal reports whether two pools give the same to the same Services, and say the same of it.
func (p Pool) Equal(other Pool) bool {
	sameSelector := func(a, b labels.Selector) bool { return a.String() == b.String() }
	sameQuota := func(a, b quota) bool { return a.max == b.max && sameSelector(a.namespaces, b.namespaces) }
	return p.Name == other.Name && p.Priority == other.Priority && p.AutoAssign == other.AutoAssign && p.SharedByAll == other.SharedByAll &&
		p.Addresses.Equal(other.Addresses) && p.Reserved.Equal(other.Reserved) && p.all.Equal(other.all) &&
		slices.Equal(p.Limits, other.Limits) && slices.EqualFunc(p.quotas, other.quotas, sameQuota) &&
		sameSelector(p.namespaces, other.namespaces) && sameSelector(p.services, other.services)
}

// Pools returns the pools that can be used and what is wrong with the others. Of
// addresses that several pools have the oldest pool keeps them; what is occupied no
// pool has. A pool that loses addresses by that says so in its Limits, and one that
// has lost all it could give is not used.
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
			p.add(pool.Limits[0].Reason, "spec.addresses", "no address is left to give out")
			found = append(found, p.found...)
			continue
		}
		pools = append(pools, *pool)
	}
	return pools, found
}

// maxUsable is how many ranges VIPPool.status.usable holds: twice as many as
// spec.addresses, for each of as many reserved ranges can split one.
const maxUsable = 512

// UsableRanges returns the addresses of a pool for VIPPool.status.usable, sorted;
// of too many ranges the largest.
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

// ParseUsable returns the addresses of a pool that the operator has found usable
// (VIPPool.status.usable), as far as the pool still has them.
func ParseUsable(object *millracev1beta1.VIPPool, pool Pool) *netipx.IPSet {
	var ranges []netipx.IPRange
	for _, text := range object.Status.Usable {
		// What cannot be read is as good as not there: nothing is done to it.
		if r, err := ParseRange(text); err == nil {
			ranges = append(ranges, r)
		}
	}
	return Common(pool.Addresses, setOf(ranges...))
}

// PoolHas reports whether an address is one that a pool gives out, as far as its
// entries can be read.
func PoolHas(object *millracev1beta1.VIPPool, address netip.Addr) bool {
	pool, _ := ParsePool(object)
	return pool.Addresses.Contains(address)
}
