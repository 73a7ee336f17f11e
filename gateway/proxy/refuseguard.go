// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// guarding are the filters of a rule that say which clients may come in, in words.
func guarding(rule *resource.Rule) string {
	words := ""
	for _, filter := range rule.GetFilters() {
		switch filter.GetKind().(type) {
		case *resource.Filter_ClientAddresses, *resource.Filter_BasicAuthentication, *resource.Filter_ExternalAuthorization:
			// All of this program's, so the same each time.
			text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(filter)
			words += string(text) + "\x00"
		}
	}
	return words
}

// guardedBefore reports whether an object's previous rules keep out whom the wanted ones do: all
// rules of both say the same about clients, or the wanted ones let everyone in.
func guardedBefore(object string, wanted, previous *resource.RouteGroup) bool {
	of := func(group *resource.RouteGroup) []string {
		words := map[string]bool{}
		for _, rule := range group.GetRules() {
			if routeObject(rule) == object {
				words[guarding(rule)] = true
			}
		}
		return slices.Sorted(maps.Keys(words))
	}
	now := of(wanted)
	return len(now) == 1 && (now[0] == "" || slices.Equal(now, of(previous)))
}
