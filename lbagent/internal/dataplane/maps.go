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
	// Directories of a change in progress. A bpf file system allows no dots in names.
	nextMapDirectory     = "maps-next"
	previousMapDirectory = "maps-previous"
	linkDirectory        = "links"

	schemaMap = "schema"
)

// AdoptionKind is the result of Open for the pinned maps.
type AdoptionKind string

const (
	// Created means that no maps were pinned.
	Created AdoptionKind = "created"
	// Adopted means that the pinned maps are used unchanged.
	Adopted AdoptionKind = "adopted"
	// Resized means that some were copied into maps of another size without loss.
	Resized AdoptionKind = "resized"
	// Converted means that some had another layout. Only maps in discardable may have lost entries.
	Converted AdoptionKind = "converted"
	// Rebuilt means that the pinned maps are unusable, and empty maps replace them at Attach. Flows are then
	// assigned again, most to the same endpoint. Packets may be lost at that moment.
	Rebuilt AdoptionKind = "rebuilt"
)

// Adoption describes the result of Open for the pinned maps.
type Adoption struct {
	Kind AdoptionKind
	// Reason explains why maps were resized, converted or rebuilt.
	Reason string
	// Copied lists the maps whose entries were copied into new ones.
	Copied []string
	// Emptied lists the maps that lost their entries.
	Emptied []string
}

type copiedMap struct {
	name     string
	old, new *ebpf.Map
	// converter is nil if both maps have the same layout.
	converter *layout.Converter
}

// mapSet is the set of maps used by Open. Pins remain unchanged until commit.
type mapSet struct {
	root string
	maps map[string]*ebpf.Map
	// copied are the maps whose previous versions attached programs may still write.
	copied   []copiedMap
	adoption Adoption
}

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

// open uses the pinned maps if possible. previous are those that attached programs may still use.
func (s *mapSet) open(specs map[string]*ebpf.MapSpec, want *schema, current, previous *pinnedMaps) error {
	decided := evaluate(specs, current, want)
	if before := evaluate(specs, previous, want); decided.adoption.Kind == Rebuilt && before.usable() {
		// The current maps are of a newer agent. The attached programs use the previous ones.
		if err := s.rollBack(current); err != nil {
			return err
		}
		current, previous, decided = previous, &pinnedMaps{}, before
	}
	err := s.addAll(specs, current, decided)
	if errors.Is(err, layout.ErrTooLarge) {
		// The maps are of a newer version and hold values that ours cannot represent.
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
	s.resumeFrom(previous, evaluate(specs, previous, want))
	if s.adoption.Kind == Adopted {
		return nil
	}
	return s.pinNext(want)
}

func (s *mapSet) rollBack(current *pinnedMaps) error {
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

func (s *mapSet) resumeFrom(previous *pinnedMaps, decided migration) {
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

// unpinned maps have state of one packet (trace record, packet and reply slots) or request (rows, flows), or
// are an index or filter that is rebuilt at start.
var unpinned = map[string]bool{
	bpf.DatapathMapRowUpdates:    true,
	bpf.DatapathMapTraceRecord:   true,
	bpf.DatapathMapPacketSlots:   true,
	bpf.DatapathMapReplySlots:    true,
	bpf.DatapathMapEndpointPorts: true,
	bpf.DatapathMapFilterUpdates: true,

	bpf.DatapathMapEstablishedFilter: true,
}

func mapSpecs(spec *ebpf.CollectionSpec) map[string]*ebpf.MapSpec {
	specs := map[string]*ebpf.MapSpec{}
	for name, m := range spec.Maps {
		if name[0] != '.' && !unpinned[name] {
			specs[name] = m
		}
	}
	return specs
}

// recoverDirectories reverts or completes an interrupted change.
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
	// Remove fails if it is not empty.
	_ = os.Remove(previous)
	return nil
}

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

// loadPinnedMaps loads the pinned maps of a directory, which may be missing.
func loadPinnedMaps(directory string, specs map[string]*ebpf.MapSpec) (*pinnedMaps, error) {
	p := &pinnedMaps{maps: map[string]*ebpf.Map{}, err: errors.New("the pinned maps have no schema")}
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

// loadPinnedMap returns nil if the map is not pinned.
func loadPinnedMap(directory, name string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(directory, name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // As said.
	}
	if err != nil {
		return nil, fmt.Errorf("load pinned map %s: %w; is %s on a bpf file system, and does the process have CAP_BPF?", name, err, directory)
	}
	return m, nil
}

// addAll adopts the pinned maps or creates new ones. The set then owns the pinned ones.
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
			delete(pinned.maps, name)
		}
	}
	closeMaps(pinned.maps)
	clear(pinned.maps)
	if !decided.usable() {
		return nil
	}
	if quotas := bpf.DatapathMapVipQuotas; !decided.keeps(quotas) {
		if err := s.restoreQuotas(); err != nil {
			return fmt.Errorf("map %s: %w", quotas, err)
		}
	}
	if filter := bpf.DatapathMapOverrideFilter; !decided.keeps(filter) {
		return openFilter(s.maps[filter])
	}
	return nil
}

// restoreQuotas sets the time of the last use of the overflow tables for all VIPs. Otherwise the programs would
// not read these tables, and their flows would be lost.
func (s *mapSet) restoreQuotas() error {
	var every bpf.DatapathQuotas
	for kind, name := range map[bpf.DatapathQuotaKind]string{
		bpf.DatapathQuotaKindQUOTA_CONNECTIONS: bpf.DatapathMapOverflowConn,
		bpf.DatapathQuotaKindQUOTA_DATAGRAMS:   bpf.DatapathMapOverflowData,
	} {
		used := &every.Kind[kind].Used
		err := readMap(s.maps[name], func(_ bpf.DatapathConnectionKey6, connection bpf.DatapathConnection) {
			// The clock wraps.
			if *used == 0 || int32(connection.Seen-*used) > 0 {
				*used = max(connection.Seen, 1)
			}
		})
		if err != nil {
			return fmt.Errorf("read map %s: %w", name, err)
		}
	}
	quotas := s.maps[bpf.DatapathMapVipQuotas]
	keys, values := make([]uint32, quotas.MaxEntries()), make([]bpf.DatapathQuotas, quotas.MaxEntries())
	for i := range keys {
		keys[i], values[i] = uint32(i), every
	}
	if _, err := quotas.BatchUpdate(keys, values, nil); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

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

func (c *copiedMap) copy(flags ebpf.MapUpdateFlags) error {
	switch c.name {
	case bpf.DatapathMapOverrideFilter:
		return nil
	case bpf.DatapathMapOverrides:
		return copyOverrides(c.old, c.new)
	default:
		return copyMap(c.old, c.new, c.converter, flags)
	}
}

// isLearned reports whether attached programs add entries to the map.
func (c *copiedMap) isLearned() bool {
	return c.name == bpf.DatapathMapOverrides || c.old.Type() == ebpf.LRUHash
}

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
		// Pinning the map itself would move its existing pin.
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

// commit replaces the pins. A bpf file system cannot exchange two directories; recoverDirectories completes
// an interrupted commit. The previous maps stay pinned until finish, because the next agent needs them if
// this agent's programs are never attached.
func (s *mapSet) commit() error {
	if s.adoption.Kind == Adopted {
		return nil
	}
	current, previous := filepath.Join(s.root, mapDirectory), filepath.Join(s.root, previousMapDirectory)
	if _, err := os.Stat(previous); err == nil {
		// The attached programs use the oldest maps.
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

func (s *mapSet) programMaps() map[string]*ebpf.Map { return maps.Clone(s.maps) }

func (s *mapSet) close() {
	closeMaps(s.maps)
	s.closePrevious()
}

// catchUp copies entries that attached programs have added to the previous maps since.
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

// finish closes and unpins the previous maps, which no program writes any longer.
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

func closeMaps(all map[string]*ebpf.Map) {
	for _, m := range all {
		_ = m.Close()
	}
}
