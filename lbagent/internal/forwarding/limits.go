// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"fmt"
	"strings"
)

// Limits are the capacities of the maps, fixed at creation.
type Limits struct {
	Frontends      int
	NodeTables     int
	EndpointTables int
	Endpoints      int
	VIPs           int
	// SourceRanges is the number of prefixes per address family.
	SourceRanges int
}

// Capacity identifies one of the Limits; zero means no capacity.
type Capacity int

// The capacities in the order of Limits.
const (
	Frontends Capacity = 1 + iota
	NodeTables
	EndpointTables
	Endpoints
	VIPs
	SourceRanges
)

// String returns the plural name of the entries.
func (c Capacity) String() string {
	switch c {
	case Frontends:
		return "frontends"
	case NodeTables:
		return "node tables"
	case EndpointTables:
		return "endpoint tables"
	case Endpoints:
		return "endpoints"
	case VIPs:
		return "VIPs"
	case SourceRanges:
		return "source ranges of a family"
	default:
		return fmt.Sprintf("capacity %d", int(c))
	}
}

// Count returns the number with the name of the entries.
func (c Capacity) Count(number int) string {
	switch {
	case number != 1:
		return fmt.Sprintf("%d %s", number, c)
	case c == SourceRanges:
		return "1 source range of a family"
	default:
		return "1 " + strings.TrimSuffix(c.String(), "s")
	}
}

// Of returns the limit of a capacity, or zero.
func (l *Limits) Of(capacity Capacity) int {
	switch capacity {
	case Frontends:
		return l.Frontends
	case NodeTables:
		return l.NodeTables
	case EndpointTables:
		return l.EndpointTables
	case Endpoints:
		return l.Endpoints
	case VIPs:
		return l.VIPs
	case SourceRanges:
		return l.SourceRanges
	default:
		return 0
	}
}
