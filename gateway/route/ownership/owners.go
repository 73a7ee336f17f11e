// SPDX-License-Identifier: Apache-2.0

// Package ownership computes the owner of each host name of an Ingress class, and the routes at a listener of
// a Gateway that share a host name. It is pure.
//
// The owner of a host is the namespace of the oldest object with a rule for it, either for its exact name or
// for the wildcard that covers it. Names that annotations add (server-alias, from-to-www-redirect) are
// claimed like the names of rules. An object without a rule for a host does not own it, even if spec.tls
// contains the host or it has a default backend. A rule for all hosts does not own the names of other rules.
package ownership

// Sharing specifies whether namespaces can share a host (OpenShift: namespaceOwnership).
type Sharing int

const (
	// Strict refuses rules of namespaces that do not own the host.
	Strict Sharing = iota
	// InterNamespaceAllowed permits other namespaces to add paths that no older object has.
	InterNamespaceAllowed
)

// An Owner is the namespace that owns a host. Age is the position of its oldest claim by age.
type Owner struct {
	Namespace string
	Age       int
}

// Hosts contains the owners of the host names of an Ingress class. The zero value is strict.
type Hosts struct {
	sharing Sharing
	claims  map[Host]Owner
}

// NewHosts returns Hosts without claims.
func NewHosts(sharing Sharing) *Hosts {
	return &Hosts{sharing: sharing, claims: map[Host]Owner{}}
}

// Claim records the claim of an object for a host, and reports whether its namespace may have rules for the
// host. Claims must be made in order of age, the oldest first.
func (h *Hosts) Claim(host Host, of Owner) bool {
	if !h.Admits(host, of.Namespace) {
		return false
	}
	if _, known := h.claims[host]; !known {
		h.claims[host] = of
	}
	return true
}

// ClaimWhole claims a host that an annotation adds with all of its paths, and reports whether the namespace
// owns the host.
func (h *Hosts) ClaimWhole(host Host, of Owner) bool {
	owner, known := h.Owner(host)
	return (!known || owner.Namespace == of.Namespace) && h.Claim(host, of)
}

// Owner returns the owner of a host: the older of the claims for its name and for its wildcard.
func (h *Hosts) Owner(host Host) (owner Owner, known bool) {
	owner, known = h.claims[host]
	if host == "" || host.IsWildcard() {
		return owner, known
	}
	if wider, has := h.claims[host.Parent()]; has && host.Parent() != "" && (!known || wider.Age < owner.Age) {
		return wider, true
	}
	return owner, known
}

// Owns reports whether a namespace owns a host. The owner controls settings that apply to the whole host.
func (h *Hosts) Owns(host Host, namespace string) bool {
	owner, known := h.Owner(host)
	return known && owner.Namespace == namespace
}

// Admits reports whether a namespace can have rules for a host, because it owns the host or may share it.
func (h *Hosts) Admits(host Host, namespace string) bool {
	owner, known := h.Owner(host)
	return !known || owner.Namespace == namespace || h.sharing == InterNamespaceAllowed
}

// Certifier returns the namespace whose certificates take precedence for a host: the owner, or a namespace
// that is admitted below an older wildcard. For a host without rules, it is the owner of the rules for all
// hosts.
func (h *Hosts) Certifier(host Host) (namespace string, known bool) {
	for _, at := range []Host{host, host.Parent(), ""} {
		if claim, has := h.claims[at]; has {
			return claim.Namespace, true
		}
	}
	return "", false
}
