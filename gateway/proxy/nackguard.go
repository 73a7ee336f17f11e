// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func accessKey(rule *resource.Rule) string {
	words := ""
	for _, filter := range rule.GetFilters() {
		switch filter.GetKind().(type) {
		case *resource.Filter_ClientAddresses, *resource.Filter_BasicAuthentication, *resource.Filter_ExternalAuthorization:
			// Deterministic within one program.
			text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(filter)
			words += string(text) + "\x00"
		}
	}
	return words
}

// isAsRestrictive reports whether both versions have the same access filters in all rules, or the wanted one
// has no filters.
func isAsRestrictive(object string, wanted, previous *resource.RouteGroup) bool {
	of := func(group *resource.RouteGroup) []string {
		words := map[string]bool{}
		for _, rule := range group.GetRules() {
			if routeObject(rule) == object {
				words[accessKey(rule)] = true
			}
		}
		return slices.Sorted(maps.Keys(words))
	}
	now := of(wanted)
	return len(now) == 1 && (now[0] == "" || slices.Equal(now, of(previous)))
}
