// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/layout"
)

// discardable are the maps that are emptied if their content cannot be converted, with the reason why that is
// harmless. Other maps that cannot be converted require a rebuild of all.
var discardable = map[string]string{
	bpf.DatapathMapHopLease:          "the agent writes it every second",
	bpf.DatapathMapAgentHeartbeat:    "the agent writes it every second",
	bpf.DatapathMapUplinks:           "Attach writes it",
	bpf.DatapathMapVlans:             "Attach writes it",
	bpf.DatapathMapNodeUplinks:       "the agent determines them again; until then packets are accepted on any",
	bpf.DatapathMapProbeSecrets:      "the agent writes them before it sends probes",
	bpf.DatapathMapVipFilter:         "it is rebuilt from the VIPs at start",
	bpf.DatapathMapVipParts:          "it is rebuilt from the VIPs at start",
	bpf.DatapathMapFrontendKeys:      "they are written again at start",
	bpf.DatapathMapHalfOpenFlows:     "a handshake in progress follows its row",
	bpf.DatapathMapFlowDigests:       "only evicted flows need them",
	bpf.DatapathMapAffinities:        "a client without a record is hashed",
	bpf.DatapathMapOverrides:         "a flow without an override follows its row and chain",
	bpf.DatapathMapOverrideFilter:    "it accepts everything until the next sweep rebuilds it",
	bpf.DatapathMapReplyRates:        "they last a second",
	bpf.DatapathMapMissRates:         "they last a second",
	bpf.DatapathMapCpuMissRates:      "they last a second",
	bpf.DatapathMapFlowMisses:        "they last seconds",
	bpf.DatapathMapFragments:         "a datagram with fragments in flight is lost and retransmitted",
	bpf.DatapathMapOverflowFragments: "as fragments",
	bpf.DatapathMapVipQuotas:         "quotas are per second; restoreQuotas restores the use of the overflow tables",
	bpf.DatapathMapDropSampling:      "it is counted again within a second",
	bpf.DatapathMapDropSamples:       "the agent reads them at once",
	bpf.DatapathMapFrontendCounts:    "a counter may restart",
	bpf.DatapathMapFrontendDrops:     "a counter may restart",
	bpf.DatapathMapEventCounts:       "a counter may restart",
	bpf.DatapathMapUplinkTxDrops:     "a counter may restart",
}

// sizeDependent are the maps that are not copied into another size. The slot of an evicted flow, half-open flow,
// affinity record or quota depends on the size. The keys of frontends are rewritten, and their drops restart at
// zero.
var sizeDependent = map[string]bool{
	bpf.DatapathMapFlowDigests:   true,
	bpf.DatapathMapAffinities:    true,
	bpf.DatapathMapHalfOpenFlows: true,
	bpf.DatapathMapVipQuotas:     true,
	bpf.DatapathMapFrontendKeys:  true,
	bpf.DatapathMapFrontendDrops: true,
}

type pinnedMaps struct {
	maps map[string]*ebpf.Map
	// schema is nil if it cannot be read; err is the reason.
	schema *schema
	err    error
}

func (p *pinnedMaps) empty() bool { return len(p.maps) == 0 }

// A migration is the decision about the pinned maps.
type migration struct {
	adoption Adoption
	// copied are the copied maps, by name, with their converter, or nil for an unchanged layout.
	copied map[string]*layout.Converter
	new    []string
}

func (m *migration) usable() bool {
	return m.adoption.Kind != Created && m.adoption.Kind != Rebuilt
}

func (m *migration) empties(name string) bool { return slices.Contains(m.adoption.Emptied, name) }

func (m *migration) keeps(name string) bool {
	return m.usable() && !slices.Contains(m.adoption.Copied, name) && !m.empties(name) && !slices.Contains(m.new, name)
}

func rebuild(format string, args ...any) migration {
	return migration{adoption: Adoption{Kind: Rebuilt, Reason: fmt.Sprintf(format, args...)}}
}

func evaluate(specs map[string]*ebpf.MapSpec, pinned *pinnedMaps, want *schema) migration {
	switch {
	case pinned.empty():
		return migration{adoption: Adoption{Kind: Created}}
	case pinned.err != nil:
		return rebuild("%v", pinned.err)
	case pinned.schema.seed != want.seed:
		return rebuild("the pinned maps were filled with %v of the flow hash, this agent has %v", pinned.schema.seed, want.seed)
	}
	out := migration{adoption: Adoption{Kind: Adopted}, copied: map[string]*layout.Converter{}}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		previous, described := pinned.schema.layouts[name]
		if !described {
			out.record(Converted, "map %s is new", name)
			out.new = append(out.new, name)
			continue
		}
		m := pinned.maps[name]
		if m == nil {
			return rebuild("map %s is not pinned", name)
		}
		if err := out.evaluateMap(specs[name], m, previous, want.layouts[name]); err != nil {
			return rebuild("map %s cannot be converted: %v", name, err)
		}
	}
	for name := range pinned.schema.layouts {
		if specs[name] == nil {
			out.record(Converted, "map %s no longer exists", name)
		}
	}
	return out
}

// record records the first reason; a conversion takes precedence over a resize.
func (m *migration) record(kind AdoptionKind, format string, args ...any) {
	if m.adoption.Kind == Converted || m.adoption.Kind == kind {
		return
	}
	m.adoption.Kind, m.adoption.Reason = kind, fmt.Sprintf(format, args...)
}

func (m *migration) evaluateMap(spec *ebpf.MapSpec, pinned *ebpf.Map, previous, want layout.Map) error {
	name, resized := spec.Name, pinned.MaxEntries() != spec.MaxEntries
	alike := layout.Equal(previous, want) && pinned.Flags() == spec.Flags && pinned.Type() == spec.Type
	switch {
	case alike && !resized:
		return nil
	case alike:
		m.record(Resized, "sizes changed")
	default:
		m.record(Converted, "map %s has another layout", name)
	}
	var converter *layout.Converter
	err := formOf(pinned, spec, previous)
	if err == nil && !layout.Equal(previous, want) {
		converter, err = layout.NewConverter(previous, want)
	}
	switch {
	case err != nil && discardable[name] == "":
		return err
	case err != nil, resized && sizeDependent[name], name == bpf.DatapathMapOverrides && converter != nil:
		m.adoption.Emptied = append(m.adoption.Emptied, name)
	default:
		m.copied[name] = converter
		m.adoption.Copied = append(m.adoption.Copied, name)
	}
	return nil
}

// formOf rejects a map that differs from its schema or has another type.
func formOf(pinned *ebpf.Map, spec *ebpf.MapSpec, previous layout.Map) error {
	switch {
	case pinned.KeySize() != previous.Key.Size || pinned.ValueSize() != previous.Value.Size:
		return fmt.Errorf("it has keys of %d bytes and values of %d bytes, but its schema has %d and %d",
			pinned.KeySize(), pinned.ValueSize(), previous.Key.Size, previous.Value.Size)
	case pinned.Type() != spec.Type:
		return fmt.Errorf("its type is %s, not %s", pinned.Type(), spec.Type)
	default:
		return nil
	}
}
