// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Constants shared by the BPF programs and package forwarding: a difference does not compile.
var (
	_ = [1]struct{}{}[bpf.DatapathShapeROWS-forwarding.Rows]
	_ = [1]struct{}{}[bpf.DatapathShapeMIN_ROWS-forwarding.MinRows]
	_ = [1]struct{}{}[bpf.DatapathShapeCHAIN_LENGTH-forwarding.ChainLength]
	_ = [1]struct{}{}[bpf.DatapathShapeZONES-forwarding.Zones]
	_ = [1]struct{}{}[bpf.DatapathShapeENDPOINT_ROWS-forwarding.EndpointRows]
	_ = [1]struct{}{}[bpf.DatapathReservedIdENDPOINT_REFUSED-bpf.DatapathReservedId(forwarding.RefusedEndpoint)]
	_ = [1]struct{}{}[bpf.DatapathShapeNODE_UPLINKS-forwarding.NodeIngressInterfaces]
	_ = [1]struct{}{}[bpf.DatapathShapeNODES-forwarding.MaxNodeID-1]
	_ = [1]struct{}{}[bpf.DatapathShapeVIP_FILTER_WORDS-forwarding.BloomWords]
)

const rowGroup = uint32(bpf.DatapathShapeROW_GROUP)

const (
	minHalfOpen = 4096
	maxHalfOpen = 262144
	minOthers   = 4096
	maxFlows    = math.MaxInt32 / 2
	// freePerCPU is the number of free entries per CPU (LOCAL_FREE_TARGET of the kernel's bpf_lru_list.c).
	freePerCPU = 128
	// A VIP's quota of new entries per second is the table's size divided by these, so that one VIP takes
	// longer to fill a table than its entries last: 60 s and 180 s. Connections last longer, but an idle
	// connection that is evicted keeps a record (flow_digest.h).
	halfOpenParts, connectionParts, datagramParts = 64, 128, 256
	// halfOpenTables: one per family, and one per family for VIPs over their quota.
	halfOpenTables = 4
	affinityTables = 2
	// dropsPerFrontend is the average number of drop reasons per frontend. Few frontends have drops.
	dropsPerFrontend = 4
)

// validate also keeps every index within the programs' 32 bits.
func (c *Config) validate() error {
	if c.PinRoot == "" {
		return fmt.Errorf("data plane: no pin directory given")
	}
	for _, limit := range []struct {
		name       string
		value, max int
	}{
		{"Limits.Frontends", c.Limits.Frontends, math.MaxInt32},
		{"Limits.NodeTables", c.Limits.NodeTables, maxNodeTables},
		{"Limits.EndpointTables", c.Limits.EndpointTables, math.MaxInt32/forwarding.EndpointRows - 1},
		{"Limits.Endpoints", c.Limits.Endpoints, math.MaxInt32 - 1},
		{"Limits.VIPs", c.Limits.VIPs, math.MaxInt32},
		{"Limits.SourceRanges", c.Limits.SourceRanges, math.MaxInt32},
		{"Connections", c.Connections, maxFlows},
	} {
		if limit.value < 1 || limit.value > limit.max {
			return fmt.Errorf("data plane: %s is %d, must be within 1 and %d", limit.name, limit.value, limit.max)
		}
	}
	for _, size := range []struct {
		name  string
		value int
	}{{"HalfOpen", c.HalfOpen}, {"Datagrams", c.Datagrams}, {"Affinities", c.Affinities}, {"Overrides", c.Overrides}} {
		if size.value < 0 || size.value > maxFlows {
			return fmt.Errorf("data plane: %s is %d, must be within 0 and %d", size.name, size.value, maxFlows)
		}
	}
	return nil
}

func (c *Config) halfOpen() int {
	if c.HalfOpen > 0 {
		return c.HalfOpen
	}
	return min(max(c.Connections/8, minHalfOpen), maxHalfOpen)
}

// halfOpenBuckets is a power of two, with room for nearly twice the flows, which spread unevenly.
func (c *Config) halfOpenBuckets() uint32 {
	return uint32(max(1<<bits.Len32(uint32(c.halfOpen()-1))/4, 1))
}

func (c *Config) datagrams() int {
	if c.Datagrams > 0 {
		return c.Datagrams
	}
	return max(c.Connections/4, minOthers)
}

// The quotas are the numbers of entries that a VIP may add to a table per second (bpf/src/quota.h).
func (c *Config) halfOpenQuota() uint32 { return uint32(max(c.halfOpen()/halfOpenParts, 1)) }

func (c *Config) connectionQuota() uint32 { return uint32(max(c.Connections/connectionParts, 1)) }

func (c *Config) datagramQuota() uint32 { return uint32(max(c.datagrams()/datagramParts, 1)) }

func (c *Config) affinities() int {
	if c.Affinities > 0 {
		return c.Affinities
	}
	return max(c.Connections/8, minOthers)
}

func (c *Config) overrides() int {
	if c.Overrides > 0 {
		return c.Overrides
	}
	return max(c.Connections, minOthers)
}

// affinityBuckets, of one half of the table, is a power of two with room for two to four times the clients,
// which spread unevenly.
func (c *Config) affinityBuckets() uint32 {
	return uint32(max(1<<bits.Len32(uint32(c.affinities()-1))/4, 1))
}

// evictedBuckets is a power of two. A flow takes two of the eight slots of a bucket.
func (c *Config) evictedBuckets() uint32 {
	return 1 << bits.Len32(uint32(c.Connections-1))
}

// lruSize returns the size of an LRU table for n used entries. The kernel evicts once it cannot refill a
// CPU's batch of free entries, so the free entries of other CPUs are not usable.
func lruSize(n int) uint32 {
	return uint32(n + freePerCPU*ebpf.MustPossibleCPU())
}

// sizes returns the configurable map sizes. Arrays have an additional entry for the reserved index 0.
func (c *Config) sizes() map[string]uint32 {
	frontends := uint32(c.Limits.Frontends)
	connections, datagrams := lruSize(c.Connections), lruSize(c.datagrams())
	overflowConnections := lruSize(max(c.Connections/2, minOthers))
	rows := uint32(c.Limits.NodeTables+1) * forwarding.Rows
	return map[string]uint32{
		bpf.DatapathMapFrontends4:     frontends,
		bpf.DatapathMapFrontends6:     frontends,
		bpf.DatapathMapFrontendCounts: frontends + 1,
		bpf.DatapathMapFrontendDrops:  frontends * dropsPerFrontend,
		bpf.DatapathMapSourceRanges4:  uint32(c.Limits.SourceRanges),
		bpf.DatapathMapSourceRanges6:  uint32(c.Limits.SourceRanges),
		bpf.DatapathMapVips:           uint32(c.Limits.VIPs),
		bpf.DatapathMapRows:           rows,
		bpf.DatapathMapRowGroups:      rows / rowGroup,
		bpf.DatapathMapOverrides:      c.overrideBuckets(),
		bpf.DatapathMapOverrideFilter: c.overrideWords(),
		bpf.DatapathMapEndpointRows:   uint32(c.Limits.EndpointTables+1) * forwarding.EndpointRows,
		bpf.DatapathMapEndpoints:      uint32(c.Limits.Endpoints + 1),
		bpf.DatapathMapEndpointPorts:  uint32(c.Limits.Endpoints + 1),
		bpf.DatapathMapConnections4:   connections,
		bpf.DatapathMapConnections6:   connections,
		bpf.DatapathMapReverse4:       connections,
		bpf.DatapathMapReverse6:       connections,
		bpf.DatapathMapFrontendKeys:   frontends + 1,
		bpf.DatapathMapZoneTables:     frontends + 1,
		bpf.DatapathMapFlowDigests:    c.evictedBuckets(),
		bpf.DatapathMapAffinities:     affinityTables * c.affinityBuckets(),
		bpf.DatapathMapDatagrams4:     datagrams,
		bpf.DatapathMapDatagrams6:     datagrams,
		bpf.DatapathMapDatagramsRev4:  datagrams,
		bpf.DatapathMapDatagramsRev6:  datagrams,
		bpf.DatapathMapHalfOpenFlows:  halfOpenTables * c.halfOpenBuckets(),

		bpf.DatapathMapProxyConnections:  c.ServiceProxy.proxied(),
		bpf.DatapathMapProxyHandshakes:   c.ServiceProxy.offers(),
		bpf.DatapathMapMigratedFrontends: frontends + 1,

		bpf.DatapathMapEstablishedFilter: 2*c.establishedWords() + 1,
		bpf.DatapathMapOverflowConn:      overflowConnections,
		bpf.DatapathMapOverflowConnRev:   overflowConnections,
		bpf.DatapathMapOverflowData:      datagrams,
		bpf.DatapathMapOverflowDataRev:   datagrams,
	}
}
