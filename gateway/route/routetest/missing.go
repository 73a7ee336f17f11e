// SPDX-License-Identifier: Apache-2.0

package routetest

import (
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Missing returns the names that resources refer to and that do not exist. A proxy rejects such a
// configuration.
func Missing(proxy *model.Proxy) []string {
	known := map[string]bool{"": true}
	for _, found := range proxy.Resources {
		known[found.Name] = true
	}
	for _, service := range proxy.Backends {
		known[model.EndpointsName(service)] = true
	}
	missing := map[string]bool{}
	for _, found := range proxy.Resources {
		for _, name := range references(found) {
			if !known[name] {
				missing[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(missing))
}

func references(of *resource.Resource) []string {
	var found []string
	filters := func(filters []*resource.Filter) {
		for _, filter := range filters {
			found = append(found, filter.GetMirror().GetBackend(), filter.GetBasicAuthentication().GetUsers(),
				filter.GetExternalAuthorization().GetBackend())
		}
	}
	switch kind := of.Kind.(type) {
	case *resource.Resource_Listener:
		found = append(found, kind.Listener.Certificates...)
		found = append(found, kind.Listener.GetClientValidation().GetCertificateAuthorities()...)
	case *resource.Resource_RouteGroup:
		found = append(found, kind.RouteGroup.Listeners...)
		for _, rule := range kind.RouteGroup.Rules {
			filters(rule.Filters)
			for _, backend := range rule.Backends {
				found = append(found, backend.Backend)
				filters(backend.Filters)
			}
		}
	case *resource.Resource_Backend:
		found = append(found, kind.Backend.Endpoints, kind.Backend.GetTls().GetClientCertificate())
		found = append(found, kind.Backend.GetTls().GetCertificateAuthorities()...)
	}
	return found
}
