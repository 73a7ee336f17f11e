// SPDX-License-Identifier: Apache-2.0

// Package ownership computes who owns each host name of an Ingress class, and which routes at a listener
// of a Gateway have a host in common. It is pure.
//
// The owner of a host is the namespace of the oldest object with a rule for it: for the very name, or for
// the wildcard that covers it. Names that annotations add (server-alias, from-to-www-redirect) are claimed
// as those of rules are. A wish without a rule, such as a host of spec.tls alone or a default backend, owns
// nothing. Neither does a rule for all hosts own the names that other rules have.
package ownership

// Sharing is whether a host of one namespace may have paths of other namespaces (OpenShift: namespaceOwnership).
type Sharing int

const (
	// Strict refuses the rules of all namespaces but the owner's.
	Strict Sharing = iota
	// InterNamespaceAllowed permits other namespaces to add paths that no older object has.
	InterNamespaceAllowed
)

// An Owner is the namespace that owns a host, and the age of its oldest claim: the place of the object
// among all, oldest first.
type Owner struct {
	Namespace string
	Age       int
}

// Hosts are the owners of the host names of one Ingress class. Its zero value is strict and has no claims.
type Hosts struct {
	sharing Sharing
	claims  map[Host]Owner
}

// NewHosts returns the hosts of a class without any claim.
func NewHosts(sharing Sharing) *Hosts {
	return &Hosts{sharing: sharing, claims: map[Host]Owner{}}
}

// Claim claims a host for an object, and reports whether its namespace may have rules for the host. Older
// objects claim first.
func (h *Hosts) Claim(host Host, of Owner) bool {
	if !h.Admits(host, of.Namespace) {
		return false
	}
	if _, known := h.claims[host]; !known {
		h.claims[host] = of
	}
	return true
}

// ClaimWhole claims a host that an annotation adds with everything that holds for it, and reports whether the
// host is the namespace's.
func (h *Hosts) ClaimWhole(host Host, of Owner) bool {
	owner, known := h.Owner(host)
	return (!known || owner.Namespace == of.Namespace) && h.Claim(host, of)
}

// Owner returns the owner of a host: the older one of the claims for the name and for the wildcard that
// covers it.
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

// Owns reports whether a namespace decides everything that holds for the whole host.
func (h *Hosts) Owns(host Host, namespace string) bool {
	owner, known := h.Owner(host)
	return known && owner.Namespace == namespace
}

// Admits reports whether a namespace may have rules for a host: no other namespace owns the host, or the
// class shares hosts.
func (h *Hosts) Admits(host Host, namespace string) bool {
	owner, known := h.Owner(host)
	return !known || owner.Namespace == namespace || h.sharing == InterNamespaceAllowed
}

// Certifier returns the namespace whose certificates are served for a host, before those of its owner. It
// is the owner, or the namespace that was admitted to a name below an older wildcard. A host without rules
// belongs to the owner of the rules for all hosts.
func (h *Hosts) Certifier(host Host) (namespace string, known bool) {
	for _, at := range []Host{host, host.Parent(), ""} {
		if claim, has := h.claims[at]; has {
			return claim.Namespace, true
		}
	}
	return "", false
}
