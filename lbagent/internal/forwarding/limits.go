// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"fmt"
	"strings"
)

// Limits are the capacities of the maps, fixed when they are created.
type Limits struct {
	Frontends      int
	NodeTables     int
	EndpointTables int
	Endpoints      int
	VIPs           int
	// SourceRanges are prefixes, for each address family.
	SourceRanges int
}

// Capacity names one of the Limits. Zero names none.
type Capacity int

// The capacities, in the order of the Limits.
const (
	Frontends Capacity = 1 + iota
	NodeTables
	EndpointTables
	Endpoints
	VIPs
	SourceRanges
)

// String returns what there is room for, in the plural.
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

// Count names a number of what there is room for.
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

// Of returns the limit that the capacity names; zero where it names none.
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
