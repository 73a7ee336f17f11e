// SPDX-License-Identifier: Apache-2.0

package route

import (
	"maps"
	"sort"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Default limits of the configuration of a proxy, in bytes of its messages. A proxy accepts at most 512
// MiB in one transaction, and its memory usage grows with the configuration.
const (
	defaultNamespaceBytes = 64 << 20
	defaultProxyBytes     = 256 << 20
)

const (
	entryBytes = 128
	pathBytes  = 64
	// reserveParts divides a namespace's limit: one part is for rules that answer 500 for objects without room.
	reserveParts = 4
	// readLimitFactor is the multiple of its limit up to which a namespace's routes are read: parsing delays
	// others.
	readLimitFactor = 2
)

// budget limits the usage of each namespace in a proxy's configuration. The author of the Gateway or class is
// not limited.
type budget struct {
	limit int64
	// fixed is the usage without routes, used the usage with them.
	fixed, used map[string]int64
	// reserve is the limit of each namespace for closed paths, closing its usage.
	reserve int64
	closing map[string]int64
	// closed are the namespaces that exceeded the reserve: none of their rules is served.
	closed map[string]bool
}

func newBudget(most int64) *budget {
	return &budget{
		limit: most, fixed: map[string]int64{}, used: map[string]int64{},
		reserve: most / reserveParts, closing: map[string]int64{}, closed: map[string]bool{},
	}
}

// allocateReserve takes room of the reserve. If the reserve is exceeded, the namespace is closed, because its
// other objects could serve requests that the protecting object would reject.
func (b *budget) allocateReserve(namespace string, bytes int64) bool {
	if b.closing[namespace] += bytes; b.closing[namespace] > b.reserve {
		b.closed[namespace] = true
	}
	return !b.closed[namespace]
}

// allocate adds bytes unless the usage would exceed the limit.
func (b *budget) allocate(namespace string, bytes int64) bool {
	if b.used[namespace]+bytes > b.limit {
		return false
	}
	b.used[namespace] += bytes
	return true
}

func (b *budget) setFixed() { b.fixed = maps.Clone(b.used) }

func (b *budget) reset() {
	b.used = maps.Clone(b.fixed)
	clear(b.closing)
	clear(b.closed)
}

// share lowers the limit of a namespace so that the sum of all usages is at most total, and reports
// whether that was necessary. Namespaces below the new limit keep their usage.
func (b *budget) share(total int64) bool {
	sum := func(most int64) (all int64) {
		for namespace, bytes := range b.used {
			all += max(b.fixed[namespace], min(bytes, most))
		}
		return all
	}
	if sum(b.limit) <= total {
		return false
	}
	// The smallest limit that exceeds the total, less one.
	b.limit = max(int64(sort.Search(int(b.limit), func(most int) bool { return sum(int64(most)) > total }))-1, 0)
	return true
}

// noRoom is the refusal of an object whose namespace has no room. The message contains no current usage:
// each change of an older object, up to a hundred a second, would rewrite the statuses of all objects
// without room.
func (c *compilation) noRoom(field, namespace string) *refusal {
	return refuse(ReasonNoRoom, ReasonNoRoom,
		"%s: older objects of namespace %s use its share of the configuration of these proxies: %d bytes, "+
			"or less if all namespaces need more than %d; delete or shorten some of them, or raise "+
			"--namespace-configuration and --proxy-configuration of the gateway",
		field, namespace, c.settings.NamespaceBytes, c.settings.ProxyBytes)
}

func certificateBytes(of *certificate) int64 {
	found := of.resource.GetCertificate()
	return int64(len(found.GetChain()) + len(found.GetKey()))
}

type certificateSet map[*resource.Resource]bool

// bytes counts only certificates that were not counted before.
func (c certificateSet) bytes(certificates []*certificate) (bytes int64) {
	for _, each := range certificates {
		if !c[each.resource] {
			c[each.resource] = true
			bytes += certificateBytes(each)
		}
	}
	return bytes
}
