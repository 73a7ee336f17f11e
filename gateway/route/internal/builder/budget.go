// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"maps"
	"sort"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Default limits of the configuration of a proxy, in bytes of its messages. A proxy accepts at most 512
// MiB in one transaction, and its memory usage grows with the configuration.
const (
	defaultNamespaceBytes = 64 << 20
	defaultProxyBytes     = 256 << 20
)

// Estimated sizes of a listener or route group, and of a path, without the texts of the object.
const (
	EntryBytes = 128
	PathBytes  = 64
	// ReserveParts divides a namespace's limit: one part is for rules that answer 500 for objects without room.
	ReserveParts = 4
)

// Budget limits the usage of each namespace in a proxy's configuration. The author of the Gateway or class is
// not limited.
type Budget struct {
	limit int64
	// fixed is the usage without routes, used the usage with them.
	fixed, Used map[string]int64
	// reserve is the limit of each namespace for closed paths, closing its usage.
	reserve int64
	closing map[string]int64
	// Closed are the namespaces that exceeded the reserve: none of their rules is served.
	Closed map[string]bool
}

// NewBudget returns a budget with a limit for each namespace, in bytes.
func NewBudget(most int64) *Budget {
	return &Budget{
		limit: most, fixed: map[string]int64{}, Used: map[string]int64{},
		reserve: most / ReserveParts, closing: map[string]int64{}, Closed: map[string]bool{},
	}
}

// AllocateReserve takes room of the reserve. If the reserve is exceeded, the namespace is closed, because its
// other objects could serve requests that the protecting object would reject.
func (b *Budget) AllocateReserve(namespace string, bytes int64) bool {
	if b.closing[namespace] += bytes; b.closing[namespace] > b.reserve {
		b.Closed[namespace] = true
	}
	return !b.Closed[namespace]
}

// Allocate adds bytes unless the usage would exceed the limit.
func (b *Budget) Allocate(namespace string, bytes int64) bool {
	if b.Used[namespace]+bytes > b.limit {
		return false
	}
	b.Used[namespace] += bytes
	return true
}

// SetFixed makes the current usage the usage without routes.
func (b *Budget) SetFixed() { b.fixed = maps.Clone(b.Used) }

// Reset returns to the usage without routes.
func (b *Budget) Reset() {
	b.Used = maps.Clone(b.fixed)
	clear(b.closing)
	clear(b.Closed)
}

// Share lowers the limit of a namespace so that the sum of all usages is at most total, and reports
// whether that was necessary. Namespaces below the new limit keep their usage.
func (b *Budget) Share(total int64) bool {
	sum := func(most int64) (all int64) {
		for namespace, bytes := range b.Used {
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

// LimitExceeded is the refusal of an object whose namespace has no room. The message contains no current usage:
// each change of an older object, up to a hundred a second, would rewrite the statuses of all objects
// without room.
func (c *Builder) LimitExceeded(field, namespace string) *Refusal {
	return Refuse(model.ReasonLimitExceeded, model.ReasonLimitExceeded,
		"%s: older objects of namespace %s use its share of the configuration of these proxies: %d bytes, "+
			"or less if all namespaces need more than %d; delete or shorten some of them, or raise "+
			"--max-namespace-configuration and --max-proxy-configuration of the gateway",
		field, namespace, c.Settings.NamespaceBytes, c.Settings.ProxyBytes)
}

func certificateBytes(of *certificate.Certificate) int64 {
	found := of.Resource.GetCertificate()
	return int64(len(found.GetChain()) + len(found.GetKey()))
}

// CertificateSet contains the certificates that were counted.
type CertificateSet map[*resource.Resource]bool

// Bytes counts only certificates that were not counted before.
func (c CertificateSet) Bytes(certificates []*certificate.Certificate) (bytes int64) {
	for _, each := range certificates {
		if !c[each.Resource] {
			c[each.Resource] = true
			bytes += certificateBytes(each)
		}
	}
	return bytes
}
