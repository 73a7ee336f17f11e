// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// Pool is a valid IPPool.
type Pool struct {
	ipam.Pool
	ReclaimPolicy millracev1alpha1.ReclaimPolicy

	// all addresses of the pool, the reserved ones included.
	all        ipam.Set
	namespaces labels.Selector
	services   labels.Selector
}

// Pools returns the pools that can be used and what is wrong with the others.
// Of two that overlap the older is used.
func Pools(objects []millracev1alpha1.IPPool) ([]Pool, []Problem) {
	ordered := slices.Clone(objects)
	slices.SortFunc(ordered, func(a, b millracev1alpha1.IPPool) int { return olderFirst(&a, &b) })

	pools := make([]Pool, 0, len(ordered))
	var found []Problem
	for i := range ordered {
		pool, problems := parsePool(&ordered[i])
		if len(problems) == 0 {
			problems = overlaps(pool, &ordered[i], pools)
		}
		if len(problems) > 0 {
			found = append(found, problems...)
			continue
		}
		pools = append(pools, pool)
	}
	return pools, found
}

func parsePool(object *millracev1alpha1.IPPool) (Pool, []Problem) {
	p := problems{object: poolObject(object)}
	all := parseSet(&p, "spec.addresses", object.Spec.Addresses, usable)
	reserved := parseSet(&p, "spec.reserved", object.Spec.Reserved, nil)
	if len(object.Spec.Addresses) == 0 {
		p.add(millracev1alpha1.ReasonInvalid, "spec.addresses", "must have at least one CIDR or range")
	}
	namespaces, err := selector(object.Spec.NamespaceSelector)
	if err != nil {
		p.add(millracev1alpha1.ReasonInvalid, "spec.namespaceSelector", err.Error())
	}
	services, err := selector(object.Spec.ServiceSelector)
	if err != nil {
		p.add(millracev1alpha1.ReasonInvalid, "spec.serviceSelector", err.Error())
	}
	policy := object.Spec.ReclaimPolicy
	if policy == "" {
		policy = millracev1alpha1.ReclaimDelete
	}
	return Pool{
		Pool: ipam.Pool{
			Name:       object.Name,
			Priority:   object.Spec.Priority,
			AutoAssign: object.Spec.AutoAssign == nil || *object.Spec.AutoAssign,
			Addresses:  all.Minus(reserved),

			SharedByAll: object.Spec.SharingScope == millracev1alpha1.ShareInCluster,
		},
		ReclaimPolicy: policy,
		all:           all,
		namespaces:    namespaces,
		services:      services,
	}, p.found
}

func parseSet(p *problems, field string, texts []string, check func(ipam.Range) error) ipam.Set {
	ranges := make([]ipam.Range, 0, len(texts))
	for i, text := range texts {
		r, err := ParseRange(text)
		if err == nil && check != nil {
			err = check(r)
		}
		if err != nil {
			p.add(millracev1alpha1.ReasonInvalid, fmt.Sprintf("%s[%d]", field, i), err.Error())
			continue
		}
		ranges = append(ranges, r)
	}
	return ipam.NewSet(ranges...)
}

// overlaps tells the entries of a pool that an older one has as well. Reserved
// addresses count: they are reserved because something else has them.
func overlaps(pool Pool, object *millracev1alpha1.IPPool, older []Pool) []Problem {
	p := problems{object: poolObject(object)}
	for _, other := range older {
		if _, overlap := pool.all.Overlap(other.all); !overlap {
			continue
		}
		for i, text := range object.Spec.Addresses {
			r, err := ParseRange(text)
			if err != nil {
				continue
			}
			if common, overlap := ipam.NewSet(r).Overlap(other.all); overlap {
				p.add(millracev1alpha1.ReasonOverlap, fmt.Sprintf("spec.addresses[%d]", i),
					fmt.Sprintf("%s overlaps the older pool %q in %s: this pool is not used", text, other.Name, common))
			}
		}
	}
	return p.found
}

func poolObject(object *millracev1alpha1.IPPool) Object {
	return Object{Kind: "IPPool", Name: object.Name}
}

// Selects says whether a pool may serve a Service with these labels in a
// namespace with those.
func (p Pool) Selects(namespace, service labels.Set) bool {
	return p.namespaces.Matches(namespace) && p.services.Matches(service)
}

// Usage counts the VIPs of a pool.
type Usage struct {
	// Assigned VIPs were taken from the pool or have an address of it.
	Assigned int64
	// Free addresses can still be given out, at most ipam.MaxCount.
	Free int64
	// Stray VIPs were taken from the pool, which has lost their address since.
	Stray []netip.Addr
}

// UsageOf counts VIPs for the pool of a name, which is nil when it cannot be
// used: nothing is free then.
func UsageOf(name string, pool *Pool, vips []ipam.VIP) Usage {
	var usage Usage
	var inside int64
	for _, vip := range vips {
		contained := pool != nil && pool.Addresses.Contains(vip.Address)
		if contained {
			inside++
		}
		if contained || vip.Pool == name {
			usage.Assigned++
		}
		if vip.Pool == name && pool != nil && !contained {
			usage.Stray = append(usage.Stray, vip.Address)
		}
	}
	if pool != nil {
		usage.Free = pool.Addresses.Count() - inside
	}
	slices.SortFunc(usage.Stray, netip.Addr.Compare)
	return usage
}

// PoolHas says whether an address is one that a pool gives out, as far as its
// entries can be read.
func PoolHas(object *millracev1alpha1.IPPool, address netip.Addr) bool {
	pool, _ := parsePool(object)
	return pool.Addresses.Contains(address)
}
