// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/bpf"
)

const (
	mapDirectory = "maps"
	// Directories of a change under way. A bpf file system allows no dots in names.
	nextMapDirectory   = "maps-next"
	formerMapDirectory = "maps-former"
	linkDirectory      = "links"

	// schemaMap has the version of the meaning of all maps, and behind it the seed of the hash by
	// which they were filled. Without a seed it has the number alone, as it had before there were
	// seeds: an agent of that time takes maps with a seed for ones of another version.
	schemaMap = "schema"
	// schemaVersion grows whenever the meaning of a map's content changes, also
	// where its layout stays: maps of another version are not read.
	schemaVersion uint32 = 9
)

// AdoptionKind is what became of the pinned maps.
type AdoptionKind string

const (
	// Created means that there were none.
	Created AdoptionKind = "created"
	// Adopted means that they are used as they are.
	Adopted AdoptionKind = "adopted"
	// Resized means that some were copied into ones of another size; all they
	// held is kept.
	Resized AdoptionKind = "resized"
	// Rebuilt means that they could not be used, and new, empty ones replace
	// them when the programs are attached. Flows then choose again, most of them
	// the endpoint that they had. Packets of that moment may be lost.
	Rebuilt AdoptionKind = "rebuilt"
)

// Adoption is what Open found.
type Adoption struct {
	Kind AdoptionKind
	// Reason says why maps were resized or rebuilt.
	Reason string
	// Resized names the maps that were copied.
	Resized []string
}

// made are the maps that are not copied into ones of another size. In memories and among half-open
// flows the place of a flow depends on the size. The keys of frontends are written again, and their
// drops counted from zero.
var made = map[string]bool{
	bpf.DatapathMapMemories:      true,
	bpf.DatapathMapHalfOpenFlows: true,
	bpf.DatapathMapFrontendKeys:  true,
	bpf.DatapathMapFrontendDrops: true,
}

// added are the maps that the programs of former versions do not have. They begin empty, as on a
// new node; all others are kept.
var added = map[string]bool{
	bpf.DatapathMapTunnelTrust: true,
	bpf.DatapathMapNodeUplinks: true,
	bpf.DatapathMapTunnelKeys:  true,
	bpf.DatapathMapVlans:       true,
	bpf.DatapathMapVipParts:    true,

	bpf.DatapathMapHalfOpenFlows: true,

	bpf.DatapathMapProbeSecrets: true,
	bpf.DatapathMapUplinkLosses: true,

	bpf.DatapathMapUnknownFlows:   true,
	bpf.DatapathMapUnknownRepeats: true,
	bpf.DatapathMapCpuRepeats:     true,
}

// resizedMap is a map and the former one that it was copied from.
type resizedMap struct {
	name     string
	old, new *ebpf.Map
}

// mapSet is the maps that Open works with, by name. Until commit nothing that
// was pinned before has changed.
type mapSet struct {
	root     string
	maps     map[string]*ebpf.Map
	resized  []resizedMap
	adoption Adoption
	// schema is the content of the map with the schema.
	schema []byte
}

// openMaps finds, copies or creates every map of the spec.
func openMaps(root string, spec *ebpf.CollectionSpec, seed flowhash.Seed) (*mapSet, error) {
	if err := recoverDirectories(root); err != nil {
		return nil, err
	}
	specs := mapSpecs(spec, seed)
	pinned, err := loadPinnedMaps(filepath.Join(root, mapDirectory), specs)
	if err != nil {
		return nil, err
	}
	set := &mapSet{root: root, maps: map[string]*ebpf.Map{}, adoption: judge(specs, pinned, seed), schema: encodeSchema(seed)}
	if set.adoption.Kind == Rebuilt {
		closeMaps(pinned)
		pinned = nil
	}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		if err := set.add(specs[name], pinned[name]); err != nil {
			closeMaps(pinned)
			set.close()
			return nil, fmt.Errorf("map %s: %w", name, err)
		}
		delete(pinned, name)
	}
	if set.adoption.Kind == Adopted {
		return set, nil
	}
	if err := set.pinNext(); err != nil {
		set.close()
		return nil, err
	}
	return set, nil
}

// unpinned are the maps that last no longer than a packet (the record of a trace, what a CPU has
// of its packet or reply) or a request (rows, flows), and an index and a filter that are made again.
var unpinned = map[string]bool{
	bpf.DatapathMapRowUpdates:    true,
	bpf.DatapathMapTraceRecord:   true,
	bpf.DatapathMapPacketSlots:   true,
	bpf.DatapathMapReplySlots:    true,
	bpf.DatapathMapEndpointPorts: true,
	bpf.DatapathMapNotedFlows:    true,

	bpf.DatapathMapEstablishedFilter: true,
}

// mapSpecs are the maps to be pinned: those of the programs without the
// compiler's own sections and without those that are unpinned, and the schema.
func mapSpecs(spec *ebpf.CollectionSpec, seed flowhash.Seed) map[string]*ebpf.MapSpec {
	specs := map[string]*ebpf.MapSpec{
		schemaMap: {Name: schemaMap, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(encodeSchema(seed))), MaxEntries: 1},
	}
	for name, m := range spec.Maps {
		if name[0] != '.' && !unpinned[name] {
			specs[name] = m
		}
	}
	return specs
}

// recoverDirectories undoes or completes a change that was interrupted.
func recoverDirectories(root string) error {
	current, former := filepath.Join(root, mapDirectory), filepath.Join(root, formerMapDirectory)
	if err := os.RemoveAll(filepath.Join(root, nextMapDirectory)); err != nil {
		return fmt.Errorf("remove the maps of an interrupted start: %w", err)
	}
	if _, err := os.Stat(current); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(former, current); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("restore the maps of an interrupted start: %w", err)
		}
		return nil
	} else if err != nil {
		return fmt.Errorf("look for pinned maps: %w", err)
	}
	if err := os.RemoveAll(former); err != nil {
		return fmt.Errorf("remove the maps of an interrupted start: %w", err)
	}
	return nil
}

func loadPinnedMaps(dir string, specs map[string]*ebpf.MapSpec) (map[string]*ebpf.Map, error) {
	pinned := map[string]*ebpf.Map{}
	for name := range specs {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			closeMaps(pinned)
			return nil, fmt.Errorf("load pinned map %s: %w; is %s on a bpf file system, and has the process CAP_BPF?",
				name, err, dir)
		}
		pinned[name] = m
	}
	return pinned, nil
}

// judge decides what to do with the pinned maps.
func judge(specs map[string]*ebpf.MapSpec, pinned map[string]*ebpf.Map, seed flowhash.Seed) Adoption {
	if len(pinned) == 0 {
		return Adoption{Kind: Created}
	}
	rebuilt := func(format string, args ...any) Adoption {
		return Adoption{Kind: Rebuilt, Reason: fmt.Sprintf(format, args...)}
	}
	schema := pinned[schemaMap]
	if schema == nil {
		return rebuilt("the pinned maps carry no schema version")
	}
	version, former, err := readSchema(schema)
	switch {
	case err != nil:
		return rebuilt("the schema version cannot be read: %v", err)
	case version != schemaVersion:
		return rebuilt("the pinned maps have schema version %d, this agent has %d", version, schemaVersion)
	case former != seed:
		return rebuilt("the pinned maps were filled with %v of the flow hash, this agent has %v", former, seed)
	}
	adoption := Adoption{Kind: Adopted}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		spec, m := specs[name], pinned[name]
		if m == nil && added[name] {
			adoption.Kind, adoption.Reason = Resized, "maps were added"
			continue
		}
		if m == nil {
			return rebuilt("map %s is not pinned", name)
		}
		if m.Type() != spec.Type || m.KeySize() != spec.KeySize || m.ValueSize() != spec.ValueSize || m.Flags() != spec.Flags {
			return rebuilt("map %s has another layout", name)
		}
		if m.MaxEntries() != spec.MaxEntries {
			adoption.Kind = Resized
			adoption.Reason = "sizes changed"
			adoption.Resized = append(adoption.Resized, name)
		}
	}
	return adoption
}

// add takes the pinned map, or creates one and copies the pinned one into it.
func (s *mapSet) add(spec *ebpf.MapSpec, pinned *ebpf.Map) error {
	if pinned != nil && pinned.MaxEntries() == spec.MaxEntries {
		s.maps[spec.Name] = pinned
		return nil
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return fmt.Errorf("create with %d entries: %w", spec.MaxEntries, err)
	}
	s.maps[spec.Name] = m
	if spec.Name == schemaMap {
		if err := m.Put(uint32(0), s.schema); err != nil {
			return fmt.Errorf("write the schema version: %w", err)
		}
	}
	if pinned == nil {
		return nil
	}
	if made[spec.Name] {
		_ = pinned.Close()
		return nil
	}
	s.resized = append(s.resized, resizedMap{name: spec.Name, old: pinned, new: m})
	if spec.Name == bpf.DatapathMapExceptions {
		return copyExceptions(pinned, m)
	}
	if spec.Name == bpf.DatapathMapExceptionFilter {
		return openFilter(m)
	}
	return copyMap(pinned, m, ebpf.UpdateAny)
}

// pinNext pins all maps in the directory of a change under way.
func (s *mapSet) pinNext() error {
	next := filepath.Join(s.root, nextMapDirectory)
	if err := os.Mkdir(next, 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	for name, m := range s.maps {
		// A clone, because pinning the map itself would move its pin.
		clone, err := m.Clone()
		if err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
		err = clone.Pin(filepath.Join(next, name))
		if err := errors.Join(err, clone.Close()); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// commit makes the maps the pinned ones. A bpf file system cannot exchange two
// directories at once; recoverDirectories completes what is interrupted in between.
func (s *mapSet) commit() error {
	if s.adoption.Kind == Adopted {
		return nil
	}
	current, former := filepath.Join(s.root, mapDirectory), filepath.Join(s.root, formerMapDirectory)
	if err := os.Rename(current, former); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace the pinned maps: %w", err)
	}
	if err := os.Rename(filepath.Join(s.root, nextMapDirectory), current); err != nil {
		return fmt.Errorf("replace the pinned maps: %w", err)
	}
	if err := os.RemoveAll(former); err != nil {
		return fmt.Errorf("remove the former maps: %w", err)
	}
	return nil
}

// programMaps are the maps that the programs refer to.
func (s *mapSet) programMaps() map[string]*ebpf.Map {
	programs := maps.Clone(s.maps)
	delete(programs, schemaMap)
	return programs
}

// close closes all maps. What is pinned stays.
func (s *mapSet) close() {
	closeMaps(s.maps)
	s.forgetFormer()
}

// catchUp copies once more from the former maps what the new ones do not hold
// yet: attached programs have gone on to write them.
func (s *mapSet) catchUp() error {
	for _, resized := range s.resized {
		var err error
		switch {
		case resized.name == bpf.DatapathMapExceptions:
			err = copyExceptions(resized.old, resized.new)
		case resized.old.Type() == ebpf.LRUHash:
			err = copyMap(resized.old, resized.new, ebpf.UpdateNoExist)
		}
		if err != nil {
			return fmt.Errorf("map %s: %w", resized.name, err)
		}
	}
	return nil
}

// forgetFormer gives up the former maps.
func (s *mapSet) forgetFormer() {
	for _, resized := range s.resized {
		_ = resized.old.Close()
	}
	s.resized = nil
}

// closeMaps gives up descriptors of maps that are pinned or not wanted; there is
// nothing to do about a failure.
func closeMaps(all map[string]*ebpf.Map) {
	for _, m := range all {
		_ = m.Close()
	}
}
