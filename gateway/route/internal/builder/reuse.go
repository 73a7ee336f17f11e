// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// reuse returns the resources sorted by name, with the previous pointers of unchanged ones. Because most
// names were in the previous list, only the new ones need sorting.
func reuse(before []*resource.Resource, resources map[string]*resource.Resource) []*resource.Resource {
	kept := make([]*resource.Resource, 0, len(resources))
	for _, previous := range before {
		if found := resources[previous.GetName()]; found != nil {
			if !sameResource(previous, found) {
				previous = found
			}
			kept = append(kept, previous)
		}
	}
	if len(kept) == len(resources) {
		return kept
	}
	var others []*resource.Resource
	for name, found := range resources {
		if _, known := slices.BinarySearchFunc(before, name, compareName); !known {
			others = append(others, found)
		}
	}
	slices.SortFunc(others, func(a, b *resource.Resource) int { return strings.Compare(a.GetName(), b.GetName()) })
	return model.Merge(kept, others)
}

func compareName(r *resource.Resource, name string) int { return strings.Compare(r.GetName(), name) }

// sameResource reports whether two resources with the same name are equal. The most frequent messages are
// compared field by field, because proto.Equal takes 20 times as long.
func sameResource(a, b *resource.Resource) bool {
	if a == b {
		return true
	}
	switch kind := a.GetKind().(type) {
	case *resource.Resource_Listener:
		return sameListener(kind.Listener, b.GetListener())
	case *resource.Resource_RouteGroup:
		return sameGroup(kind.RouteGroup, b.GetRouteGroup())
	case *resource.Resource_Backend:
		if with := b.GetBackend(); with != nil && kind.Backend.GetTls() == nil && with.GetTls() == nil {
			return kind.Backend.GetProtocol() == with.GetProtocol() && kind.Backend.GetEndpoints() == with.GetEndpoints() &&
				kind.Backend.GetRefuse() == with.GetRefuse() && kind.Backend.GetProxyProtocol() == with.GetProxyProtocol()
		}
	}
	return proto.Equal(a, b)
}

func sameListener(a, b *resource.Listener) bool {
	if a == nil || b == nil || a.GetClientValidation() != nil || b.GetClientValidation() != nil {
		return proto.Equal(a, b)
	}
	return a.GetPort() == b.GetPort() && a.GetTargetPort() == b.GetTargetPort() && a.GetProtocol() == b.GetProtocol() &&
		a.GetTrustedHops() == b.GetTrustedHops() && a.GetTlsPolicy() == b.GetTlsPolicy() &&
		a.GetAnyServerName() == b.GetAnyServerName() && sameHostname(a.GetHostname(), b.GetHostname()) &&
		slices.Equal(a.GetCertificates(), b.GetCertificates())
}

func sameHostname(a, b *resource.Hostname) bool {
	return (a == nil) == (b == nil) && a.GetName() == b.GetName() && a.GetWildcard() == b.GetWildcard()
}

func sameGroup(a, b *resource.RouteGroup) bool {
	return a != nil && b != nil && sameHostname(a.GetHostname(), b.GetHostname()) &&
		slices.Equal(a.GetListeners(), b.GetListeners()) && slices.EqualFunc(a.GetRules(), b.GetRules(), sameRule)
}

// sameRule compares plain rules field by field, and other rules by proto.Equal.
func sameRule(a, b *resource.Rule) bool {
	if a == b {
		return true
	}
	if !isPlain(a) || !isPlain(b) {
		return proto.Equal(a, b)
	}
	return a.GetRoute() == b.GetRoute() && sameMatch(a.GetMatch(), b.GetMatch()) &&
		slices.EqualFunc(a.GetBackends(), b.GetBackends(), func(a, b *resource.WeightedBackend) bool {
			return a.GetBackend() == b.GetBackend() && a.GetWeight() == b.GetWeight()
		})
}

func isPlain(of *resource.Rule) bool {
	return len(of.GetFilters()) == 0 && of.GetTimeouts() == nil && of.GetRetry() == nil && of.GetSessionPersistence() == nil &&
		!slices.ContainsFunc(of.GetBackends(), func(b *resource.WeightedBackend) bool { return len(b.GetFilters()) > 0 })
}

func sameMatch(a, b *resource.Match) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil || len(a.GetHeaders())+len(a.GetQueryParameters())+len(b.GetHeaders())+len(b.GetQueryParameters()) > 0 {
		return proto.Equal(a, b)
	}
	return a.GetMethod() == b.GetMethod() && (a.GetPath() == nil) == (b.GetPath() == nil) &&
		a.GetPath().GetKind() == b.GetPath().GetKind() && a.GetPath().GetValue() == b.GetPath().GetValue()
}
