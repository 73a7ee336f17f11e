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
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/layout"
)

const (
	mapDirectory = "maps"
	// Directories of a change under way. A bpf file system allows no dots in names.
	nextMapDirectory     = "maps-next"
	previousMapDirectory = "maps-previous"
	linkDirectory        = "links"

	// schemaMap says what all others hold (schema).
	schemaMap = "schema"
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
	// Converted means that the agent that made them had another layout of some. All they held is
	// kept but what losable lists.
	Converted AdoptionKind = "converted"
	// Rebuilt means that they could not be used, and new, empty ones replace
	// them when the programs are attached. Flows then choose again, most of them
	// the endpoint that they had. Packets of that moment may be lost.
	Rebuilt AdoptionKind = "rebuilt"
)

// Adoption is what Open found.
type Adoption struct {
	Kind AdoptionKind
	// Reason says why maps were resized, converted or rebuilt.
	Reason string
	// Copied names the maps whose content was copied into new ones.
	Copied []string
	// Emptied names the maps that begin empty, though previous ones were not.
	Emptied []string
}

// copiedMap is a map and the previous one that it was copied from.
type copiedMap struct {
	name     string
	old, new *ebpf.Map
	// converter is nil if both maps have the same layout.
	converter *layout.Converter
}

// mapSet is the maps that Open works with, by name. Until commit nothing that
// was pinned before has changed.
type mapSet struct {
	root string
	// maps has no map with the schema.
	maps map[string]*ebpf.Map
	// copied are the maps that the attached programs may still write to the previous ones of.
	copied   []copiedMap
	adoption Adoption
}

// openMaps finds, copies or creates every map of the spec.
func openMaps(root string, spec *ebpf.CollectionSpec, seed flowhash.Seed) (*mapSet, error) {
	if err := recoverDirectories(root); err != nil {
		return nil, err
	}
	want, err := newSchema(spec, seed)
	if err != nil {
		return nil, err
	}
	specs := mapSpecs(spec)
	current, err := loadPinnedMaps(filepath.Join(root, mapDirectory), specs)
	if err != nil {
		return nil, err
	}
	previous, err := loadPinnedMaps(filepath.Join(root, previousMapDirectory), specs)
	if err != nil {
		closeMaps(current.maps)
		return nil, err
	}
	set := &mapSet{root: root}
	if err := set.open(specs, want, current, previous); err != nil {
		set.close()
		closeMaps(current.maps)
		closeMaps(previous.maps)
		return nil, err
	}
	return set, nil
}

// open takes the pinned maps as far as they can be used. The previous ones are those that an agent
// has replaced, which then ended before its programs were attached.
func (s *mapSet) open(specs map[string]*ebpf.MapSpec, want *schema, current, previous *pinnedMaps) error {
	decided := judge(specs, current, want)
	if before := judge(specs, previous, want); decided.adoption.Kind == Rebuilt && before.usable() {
		// That agent was of a newer version. What is attached works by the previous maps.
		if err := s.goBack(current); err != nil {
			return err
		}
		current, previous, decided = previous, &pinnedMaps{}, before
	}
	err := s.addAll(specs, current, decided)
	if errors.Is(err, layout.ErrTooLarge) {
		// The maps are of a newer version, and hold what ours cannot.
		s.close()
		closeMaps(current.maps)
		clear(current.maps)
		decided = rebuild("%v", err)
		err = s.addAll(specs, &pinnedMaps{}, decided)
	}
	if err != nil {
		return err
	}
	s.adoption = decided.adoption
	s.goOnFrom(previous, judge(specs, previous, want))
	if s.adoption.Kind == Adopted {
		return nil
	}
	return s.pinNext(want)
}

// goBack makes the previous maps the pinned ones again.
func (s *mapSet) goBack(current *pinnedMaps) error {
	closeMaps(current.maps)
	clear(current.maps)
	directory := filepath.Join(s.root, mapDirectory)
	if err := os.RemoveAll(directory); err != nil {
		return fmt.Errorf("remove the maps of a newer version: %w", err)
	}
	if err := os.Rename(filepath.Join(s.root, previousMapDirectory), directory); err != nil {
		return fmt.Errorf("restore the maps of the attached programs: %w", err)
	}
	return nil
}

// goOnFrom has catchUp copy what attached programs write to the previous maps.
func (s *mapSet) goOnFrom(previous *pinnedMaps, decided migration) {
	for name, m := range previous.maps {
		converter, copied := decided.copied[name]
		if !decided.usable() || !copied && decided.empties(name) || s.maps[name] == nil || isSame(m, s.maps[name]) {
			_ = m.Close()
			continue
		}
		s.copied = append(s.copied, copiedMap{name: name, old: m, new: s.maps[name], converter: converter})
	}
	clear(previous.maps)
}

// unpinned are the maps that last no longer than a packet (the record of a trace, what a CPU has
// of its packet or reply) or a request (rows, flows), and an index and a filter that are made
// again.
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
// compiler's own sections and without those that are unpinned.
func mapSpecs(spec *ebpf.CollectionSpec) map[string]*ebpf.MapSpec {
	specs := map[string]*ebpf.MapSpec{}
	for name, m := range spec.Maps {
		if name[0] != '.' && !unpinned[name] {
			specs[name] = m
		}
	}
	return specs
}

// recoverDirectories undoes or completes a change that was interrupted.
func recoverDirectories(root string) error {
	current, previous := filepath.Join(root, mapDirectory), filepath.Join(root, previousMapDirectory)
	if err := os.RemoveAll(filepath.Join(root, nextMapDirectory)); err != nil {
		return fmt.Errorf("remove the maps of an interrupted start: %w", err)
	}
	if _, err := os.Stat(current); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(previous, current); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("restore the maps of an interrupted start: %w", err)
		}
		return nil
	} else if err != nil {
		return fmt.Errorf("look for pinned maps: %w", err)
	}
	// It stays where there is something in it.
	_ = os.Remove(previous)
	return nil
}

// isSame reports whether both descriptors are of one map, which two directories have.
func isSame(a, b *ebpf.Map) bool {
	idOf := func(m *ebpf.Map) ebpf.MapID {
		info, err := m.Info()
		if err != nil {
			return 0
		}
		id, _ := info.ID()
		return id
	}
	id := idOf(a)
	return id != 0 && id == idOf(b)
}

// loadPinnedMaps loads those of a directory, which need not be there.
func loadPinnedMaps(directory string, specs map[string]*ebpf.MapSpec) (*pinnedMaps, error) {
	p := &pinnedMaps{maps: map[string]*ebpf.Map{}, err: errors.New("the pinned maps carry no schema")}
	for name := range specs {
		m, err := loadPinnedMap(directory, name)
		if err != nil {
			closeMaps(p.maps)
			return nil, err
		}
		if m != nil {
			p.maps[name] = m
		}
	}
	m, err := loadPinnedMap(directory, schemaMap)
	if err != nil {
		closeMaps(p.maps)
		return nil, err
	}
	if m != nil {
		p.schema, p.err = readSchema(m)
		_ = m.Close()
	}
	return p, nil
}

// loadPinnedMap returns nil where there is none.
func loadPinnedMap(directory, name string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(directory, name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // As said.
	}
	if err != nil {
		return nil, fmt.Errorf("load pinned map %s: %w; is %s on a bpf file system, and has the process CAP_BPF?", name, err, directory)
	}
	return m, nil
}

// addAll takes the pinned maps, or creates others. The pinned ones are then the set's.
func (s *mapSet) addAll(specs map[string]*ebpf.MapSpec, pinned *pinnedMaps, decided migration) error {
	s.maps = map[string]*ebpf.Map{}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		converter, copied := decided.copied[name]
		m := pinned.maps[name]
		if decided.adoption.Kind == Rebuilt || decided.empties(name) {
			m = nil
		}
		if m != nil && !copied {
			s.maps[name] = m
			delete(pinned.maps, name)
			continue
		}
		if err := s.add(specs[name], m, converter); err != nil {
			return fmt.Errorf("map %s: %w", name, err)
		}
		if m != nil {
			// It is closed with the set.
			delete(pinned.maps, name)
		}
	}
	closeMaps(pinned.maps)
	clear(pinned.maps)
	if filter := bpf.DatapathMapExceptionFilter; decided.usable() && !decided.keeps(filter) {
		return openFilter(s.maps[filter])
	}
	return nil
}

// add creates a map, and copies the entries of the pinned one into it, unless that is nil.
func (s *mapSet) add(spec *ebpf.MapSpec, pinned *ebpf.Map, converter *layout.Converter) error {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return fmt.Errorf("create with %d entries: %w", spec.MaxEntries, err)
	}
	s.maps[spec.Name] = m
	if pinned == nil {
		return nil
	}
	copied := copiedMap{name: spec.Name, old: pinned, new: m, converter: converter}
	s.copied = append(s.copied, copied)
	return copied.copy(ebpf.UpdateAny)
}

// copy copies what the previous map holds.
func (c *copiedMap) copy(flags ebpf.MapUpdateFlags) error {
	switch c.name {
	case bpf.DatapathMapExceptionFilter:
		// addAll opens it.
		return nil
	case bpf.DatapathMapExceptions:
		return copyExceptions(c.old, c.new)
	default:
		return copyMap(c.old, c.new, c.converter, flags)
	}
}

// isLearned reports whether attached programs write to the map what they learn.
func (c *copiedMap) isLearned() bool {
	return c.name == bpf.DatapathMapExceptions || c.old.Type() == ebpf.LRUHash
}

// pinNext pins all maps in the directory of a change under way.
func (s *mapSet) pinNext(want *schema) error {
	next := filepath.Join(s.root, nextMapDirectory)
	if err := os.Mkdir(next, 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	schema, err := want.create()
	if err != nil {
		return err
	}
	defer schema.Close()
	pinned := maps.Clone(s.maps)
	pinned[schemaMap] = schema
	for name, m := range pinned {
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

// commit makes the maps the pinned ones. A bpf file system cannot exchange two directories at once;
// recoverDirectories completes what is interrupted in between. The previous maps stay pinned until
// finish: an agent that follows this one needs them if its programs are never attached.
func (s *mapSet) commit() error {
	if s.adoption.Kind == Adopted {
		return nil
	}
	current, previous := filepath.Join(s.root, mapDirectory), filepath.Join(s.root, previousMapDirectory)
	if _, err := os.Stat(previous); err == nil {
		// The attached programs work by the oldest ones.
		if err := os.RemoveAll(current); err != nil {
			return fmt.Errorf("replace the pinned maps: %w", err)
		}
	} else if err := os.Rename(current, previous); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace the pinned maps: %w", err)
	}
	if err := os.Rename(filepath.Join(s.root, nextMapDirectory), current); err != nil {
		return fmt.Errorf("replace the pinned maps: %w", err)
	}
	return nil
}

// programMaps are the maps that the programs refer to.
func (s *mapSet) programMaps() map[string]*ebpf.Map { return maps.Clone(s.maps) }

// close closes all maps. What is pinned stays.
func (s *mapSet) close() {
	closeMaps(s.maps)
	s.closePrevious()
}

// catchUp copies once more from the previous maps what the new ones do not hold
// yet: attached programs have gone on to write them.
func (s *mapSet) catchUp() error {
	for i := range s.copied {
		c := &s.copied[i]
		if !c.isLearned() {
			continue
		}
		if err := c.copy(ebpf.UpdateNoExist); err != nil {
			return fmt.Errorf("map %s: %w", c.name, err)
		}
	}
	return nil
}

// finish gives up the previous maps: no program writes them any more.
func (s *mapSet) finish() error {
	s.closePrevious()
	if err := os.RemoveAll(filepath.Join(s.root, previousMapDirectory)); err != nil {
		return fmt.Errorf("remove the previous maps: %w", err)
	}
	return nil
}

func (s *mapSet) closePrevious() {
	for _, c := range s.copied {
		_ = c.old.Close()
	}
	s.copied = nil
}

// closeMaps gives up descriptors of maps that are pinned or not wanted; there is
// nothing to do about a failure.
func closeMaps(all map[string]*ebpf.Map) {
	for _, m := range all {
		_ = m.Close()
	}
}
