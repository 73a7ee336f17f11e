// SPDX-License-Identifier: Apache-2.0

package route

import (
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Merge gives the resources of a Proxy with the Endpoints that they refer to, sorted by
// name. The Endpoints come in any order.
func Merge(resources, endpoints []*resource.Resource) []*resource.Resource {
	endpoints = slices.SortedFunc(slices.Values(endpoints), func(a, b *resource.Resource) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	all := make([]*resource.Resource, 0, len(resources)+len(endpoints))
	for _, r := range resources {
		for len(endpoints) > 0 && endpoints[0].GetName() < r.GetName() {
			all, endpoints = append(all, endpoints[0]), endpoints[1:]
		}
		all = append(all, r)
	}
	return append(all, endpoints...)
}
