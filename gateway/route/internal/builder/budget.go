// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"maps"
	"sort"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Default limits of a proxy's configuration in bytes of its messages. A proxy accepts at most 512 MiB in one
// transaction, and its memory usage grows with the configuration.
const (
	defaultNamespaceBytes = 64 << 20
	defaultProxyBytes     = 256 << 20
)

// Estimated sizes in bytes of a listener or route group, and of a path, without the texts of the object.
const (
	EntryBytes = 128
	PathBytes  = 64
	// ReserveParts is the divisor of a namespace's limit for the reserve: the room for rules that answer 500
	// for objects that exceed the limit.
	ReserveParts = 4
)

// Budget limits the part of a proxy's configuration that each namespace uses. The author of the Gateway or
// class is not limited.
type Budget struct {
	limit int64
	// fixed is the usage without routes, and Used the usage with routes, in bytes by namespace.
	fixed, Used map[string]int64
	// reserve is the limit for closed paths of each namespace, and closing the usage of the reserve.
	reserve int64
	closing map[string]int64
	// Closed contains the namespaces that exceeded the reserve. Their rules are not served.
	Closed map[string]bool
}

// NewBudget returns a budget with a limit in bytes for each namespace.
func NewBudget(most int64) *Budget {
	return &Budget{
		limit: most, fixed: map[string]int64{}, Used: map[string]int64{},
		reserve: most / ReserveParts, closing: map[string]int64{}, Closed: map[string]bool{},
	}
}

// AllocateReserve allocates bytes of the reserve and reports whether there was room. If the reserve is
// exceeded, the namespace is closed, because its other objects could serve requests that the protecting
// object would reject.
func (b *Budget) AllocateReserve(namespace string, bytes int64) bool {
	if b.closing[namespace] += bytes; b.closing[namespace] > b.reserve {
		b.Closed[namespace] = true
	}
	return !b.Closed[namespace]
}

// Allocate adds bytes to the usage of a namespace, unless it would exceed the limit, and reports whether it
// did.
func (b *Budget) Allocate(namespace string, bytes int64) bool {
	if b.Used[namespace]+bytes > b.limit {
		return false
	}
	b.Used[namespace] += bytes
	return true
}

// SetFixed records the current usage as the usage without routes.
func (b *Budget) SetFixed() { b.fixed = maps.Clone(b.Used) }

// Reset restores the usage without routes.
func (b *Budget) Reset() {
	b.Used = maps.Clone(b.fixed)
	clear(b.closing)
	clear(b.Closed)
}

// Share lowers the limit of all namespaces so that their usage is at most total, and reports whether that was
// necessary. Namespaces below the new limit are not affected.
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
	// Use the largest limit that does not exceed the total.
	b.limit = max(int64(sort.Search(int(b.limit), func(most int) bool { return sum(int64(most)) > total }))-1, 0)
	return true
}

// LimitExceeded returns the refusal of an object that exceeds its namespace's limit. The message does not
// contain the current usage, because up to a hundred changes per second of older objects would rewrite the
// statuses of all refused objects.
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

// CertificateSet contains the certificates that were counted already.
type CertificateSet map[*resource.Resource]bool

// Bytes returns the size of the certificates that were not counted before, and counts them.
func (c CertificateSet) Bytes(certificates []*certificate.Certificate) (bytes int64) {
	for _, each := range certificates {
		if !c[each.Resource] {
			c[each.Resource] = true
			bytes += certificateBytes(each)
		}
	}
	return bytes
}
