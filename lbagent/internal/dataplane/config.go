// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"math"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// The BPF programs and package program must agree on these; a difference does
// not compile.
var (
	_ = [1]struct{}{}[bpf.DatapathShapeROWS-program.Rows]
	_ = [1]struct{}{}[bpf.DatapathShapeCHAIN_LENGTH-program.ChainLength]
	_ = [1]struct{}{}[bpf.DatapathShapeENDPOINT_ROWS-program.EndpointRows]
	_ = [1]struct{}{}[bpf.DatapathShapeNODES-program.MaxNodeID-1]
)

const (
	minHalfOpen = 4096
	maxHalfOpen = 262144
	// dropsPerFrontend is for how many reasons a frontend's drops are counted on
	// average. Few frontends have drops at all.
	dropsPerFrontend = 4
)

// validate also keeps every index within the 32 bits that the programs use.
func (c *Config) validate() error {
	if c.PinRoot == "" {
		return fmt.Errorf("data plane: no pin folder given")
	}
	for _, limit := range []struct {
		name       string
		value, max int
	}{
		{"Limits.Frontends", c.Limits.Frontends, math.MaxInt32},
		{"Limits.Tables", c.Limits.Tables, math.MaxInt32/program.Rows - 1},
		{"Limits.EndpointSlots", c.Limits.EndpointSlots, math.MaxInt32/program.EndpointRows - 1},
		{"Limits.Endpoints", c.Limits.Endpoints, math.MaxInt32 - 1},
		{"Limits.VIPs", c.Limits.VIPs, math.MaxInt32},
		{"Limits.SourceRanges", c.Limits.SourceRanges, math.MaxInt32},
		{"Connections", c.Connections, math.MaxInt32},
	} {
		if limit.value < 1 || limit.value > limit.max {
			return fmt.Errorf("data plane: %s is %d, must be within 1 and %d", limit.name, limit.value, limit.max)
		}
	}
	if c.HalfOpen < 0 || c.HalfOpen > math.MaxInt32 {
		return fmt.Errorf("data plane: HalfOpen is %d, must be within 0 and %d", c.HalfOpen, math.MaxInt32)
	}
	return nil
}

func (c *Config) halfOpen() int {
	if c.HalfOpen > 0 {
		return c.HalfOpen
	}
	return min(max(c.Connections/8, minHalfOpen), maxHalfOpen)
}

// sizes are the entries of the maps whose size the node decides. Arrays have
// one more than the limit, for place 0 means none.
func (c *Config) sizes() map[string]uint32 {
	frontends := uint32(c.Limits.Frontends)
	connections := uint32(c.Connections)
	halfOpen := uint32(c.halfOpen())
	return map[string]uint32{
		bpf.DatapathMapFrontends4:     frontends,
		bpf.DatapathMapFrontends6:     frontends,
		bpf.DatapathMapFrontendCounts: frontends + 1,
		bpf.DatapathMapFrontendDrops:  frontends * dropsPerFrontend,
		bpf.DatapathMapSourceRanges4:  uint32(c.Limits.SourceRanges),
		bpf.DatapathMapSourceRanges6:  uint32(c.Limits.SourceRanges),
		bpf.DatapathMapVips:           uint32(c.Limits.VIPs),
		bpf.DatapathMapRows:           uint32(c.Limits.Tables+1) * program.Rows,
		bpf.DatapathMapEndpointRows:   uint32(c.Limits.EndpointSlots+1) * program.EndpointRows,
		bpf.DatapathMapEndpoints:      uint32(c.Limits.Endpoints + 1),
		bpf.DatapathMapConnections4:   connections,
		bpf.DatapathMapConnections6:   connections,
		bpf.DatapathMapReverse4:       connections,
		bpf.DatapathMapReverse6:       connections,
		bpf.DatapathMapHalfOpen4:      halfOpen,
		bpf.DatapathMapHalfOpen6:      halfOpen,
		bpf.DatapathMapHalfOpenRev4:   halfOpen,
		bpf.DatapathMapHalfOpenRev6:   halfOpen,
	}
}
