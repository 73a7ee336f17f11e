// SPDX-License-Identifier: Apache-2.0

// Package route compiles Ingresses and Gateway API objects into proxy configurations, layer 4 frontends
// and object statuses. It is pure: equal objects, in any order, compile to equal results.
//
//	Objects ──► Compile ──► Result: Proxies      resources of gateway/resource, by owner
//	                                Frontends    VIP, port, protocol → weighted Services
//	                                Statuses     of Gateway API objects
//	                                Ingresses    ports and VIP of each Ingress
//	                                Problems     of Ingresses, which have no conditions
//
// Package model defines these types. Packages ingress and gatewayapi compile their objects separately;
// package builder resolves the references of both and collects the resources of each proxy.
// Endpoints are compiled by package endpoints because they change often and nothing else depends on them.
//
// Behavior that Kubernetes and Gateway API leave to the implementation:
//
//   - A request is matched against the rules of the most specific host name of its port. The rules of a
//     wider host name are not tried afterwards.
//   - A request that no path of a host matches is forwarded to the default backend of the host's own
//     Ingresses, else of the class. The default backend of another Ingress serves unknown hosts only.
//   - An Ingress that requests a redirect to HTTPS still redirects if its certificate is invalid: it must
//     not fall back to plain text.
//   - If two rules, certificates or policies conflict, the older object takes effect, and the conflict is
//     reported on the younger one.
//   - A regular expression is tried after exact paths and before prefixes.
//   - A rule with an unknown or invalid filter answers 500. Its requests must not match a less specific,
//     and perhaps less strict, rule. A rule with an invalid match is left out.
//   - The Services of an invalid BackendTLSPolicy are refused. Policies apply to Ingresses, too.
package route
