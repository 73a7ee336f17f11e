// SPDX-License-Identifier: Apache-2.0

// Package route compiles Ingresses and the objects of Gateway API into the configuration of
// proxies, frontends of layer 4, and the status that each object deserves. It is pure: the
// same objects always give the same result, in the same order.
//
//	Objects ──► Compile ──► Result: Proxies      resources of gateway/resource, by owner
//	                                Frontends    VIP, port, protocol → weighted Services
//	                                Statuses     for the objects of Gateway API
//	                                Ingresses    where each Ingress is served
//	                                Problems     for Ingresses, which have no conditions
//
// Endpoints are apart: they change often, and nothing else depends on them.
//
// Where Kubernetes and Gateway API leave a choice:
//
//   - A request belongs to the most specific host name of its port. The rules of a wider name
//     are not tried after those.
//   - What no path of a host matches goes to the default backend of the host's own Ingresses,
//     else to that of the class. It never goes to another Ingress's default backend, which is
//     for unknown hosts only.
//   - An Ingress that asks for a redirect to HTTPS, and whose certificate is broken, still
//     redirects: it must not fall back to plain text.
//   - Of two equal rules, certificates or policies the older object's counts. The younger one
//     is told.
//   - A regular expression goes after exact paths and before prefixes.
//   - A rule that has an unknown or invalid filter answers 500. Its requests must not go to a
//     rule that is less specific, and perhaps less strict. A rule whose match cannot be read
//     is left out.
//   - An invalid BackendTLSPolicy refuses its Services. Policies count for Ingresses, too.
package route
