// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/layout"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// ErrNoMaps is returned if no complete set of maps is pinned.
var ErrNoMaps = errors.New("no maps are pinned")

// Read reads the pinned maps, with or without an agent. It may observe a change in part.
func Read(pinRoot string) (*forwarding.State, error) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		return nil, fmt.Errorf("read the compiled BPF programs: %w", err)
	}
	directory := filepath.Join(pinRoot, mapDirectory)
	specs := mapSpecs(spec)
	pinned, err := loadPinnedMaps(directory, specs)
	if err != nil {
		return nil, err
	}
	defer func() { closeMaps(pinned.maps) }()
	if len(pinned.maps) != len(specs) {
		return nil, fmt.Errorf("%d of %d maps below %s: %w; did the agent run on this node?", len(pinned.maps), len(specs), directory, ErrNoMaps)
	}
	want, err := newSchema(spec, flowhash.Seed{})
	if err != nil {
		return nil, err
	}
	for name, m := range pinned.maps {
		if pinned.err != nil || !layout.Equal(pinned.schema.layouts[name], want.layouts[name]) {
			return nil, fmt.Errorf("map %s below %s has another version: use the lbagent that wrote it", name, directory)
		}
		specs[name].MaxEntries = m.MaxEntries()
	}
	// The programs copy rows to a new map row_updates, since the agent's is not pinned.
	var loaded struct {
		bpf.DatapathMaps
		ReadRows         *ebpf.Program `ebpf:"read_rows"`
		ReadEndpointRows *ebpf.Program `ebpf:"read_endpoint_rows"`
	}
	if err := spec.LoadAndAssign(&loaded, &ebpf.CollectionOptions{MapReplacements: pinned.maps}); err != nil {
		return nil, fmt.Errorf("open the maps below %s: %w", directory, err)
	}
	d := &Dataplane{maps: loaded.DatapathMaps}
	d.programs.ReadRows, d.programs.ReadEndpointRows = loaded.ReadRows, loaded.ReadEndpointRows
	defer func() { _ = errors.Join(d.maps.Close(), loaded.ReadRows.Close(), loaded.ReadEndpointRows.Close()) }()
	if err := d.maps.Settings.Lookup(uint32(0), &d.self); err != nil {
		return nil, fmt.Errorf("read map settings: %w", err)
	}
	if d.nodes, d.hops, err = d.readNodes(); err != nil {
		return nil, err
	}
	return d.Dump()
}
