// SPDX-License-Identifier: Apache-2.0

package desired

import "go4.org/netipx"

func setOf(ranges ...netipx.IPRange) *netipx.IPSet {
	var builder netipx.IPSetBuilder
	for _, r := range ranges {
		builder.AddRange(r)
	}
	return built(&builder)
}

func difference(a, b *netipx.IPSet) *netipx.IPSet {
	var builder netipx.IPSetBuilder
	builder.AddSet(a)
	builder.RemoveSet(b)
	return built(&builder)
}

// Common returns the intersection of two sets.
func Common(a, b *netipx.IPSet) *netipx.IPSet {
	var builder netipx.IPSetBuilder
	builder.AddSet(a)
	builder.Intersect(b)
	return built(&builder)
}

func isEmpty(set *netipx.IPSet) bool { return set.Equal(&netipx.IPSet{}) }

func built(builder *netipx.IPSetBuilder) *netipx.IPSet {
	set, _ := builder.IPSet()
	return set
}
