// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

// otherPrograms are the programs of another compiled object, such as a previous version.
type otherPrograms struct {
	Ingress *ebpf.Program `ebpf:"ingress"`
	Egress  *ebpf.Program `ebpf:"egress"`
}

// ofPacket are the maps of per-packet state, which each object has separately.
var ofPacket = map[string]bool{bpf.DatapathMapPacketSlots: true, bpf.DatapathMapReplySlots: true}

func (w *world) loadOther(path string) (*otherPrograms, error) {
	spec, err := ebpf.LoadCollectionSpec(path)
	if err != nil {
		return nil, fmt.Errorf("read the other object: %w", err)
	}
	all := map[mapName]*ebpf.Map{}
	defer func() {
		for _, m := range all {
			_ = m.Close()
		}
	}()
	for _, p := range []*ebpf.Program{w.Ingress, w.Egress} {
		if err := mapsOf(p, all); err != nil {
			return nil, err
		}
	}
	replace := map[string]*ebpf.Map{}
	for name, m := range spec.Maps {
		same := all[mapName{name[:min(len(name), unix.BPF_OBJ_NAME_LEN-1)], m.KeySize}]
		switch {
		case same == nil, ofPacket[name]:
		case name == constants:
			if err := setConstants(spec, same); err != nil {
				return nil, err
			}
		default:
			m.MaxEntries = same.MaxEntries()
			replace[name] = same
		}
	}
	other := &otherPrograms{}
	if err := spec.LoadAndAssign(other, &ebpf.CollectionOptions{MapReplacements: replace}); err != nil {
		return nil, fmt.Errorf("load %s over the maps of the data plane, whose layout it must have: %w", path, err)
	}
	return other, nil
}

// constants is the map of constants, which each object has separately because its layout may differ.
const constants = ".rodata"

func setConstants(other *ebpf.CollectionSpec, from *ebpf.Map) error {
	ours, err := bpf.LoadDatapath()
	if err != nil {
		return fmt.Errorf("read the compiled programs: %w", err)
	}
	values := make([]byte, from.ValueSize())
	if err := from.Lookup(uint32(0), values); err != nil {
		return fmt.Errorf("read the constants of the programs under test: %w", err)
	}
	for name, variable := range other.Variables {
		same := ours.Variables[name]
		if same == nil || same.SectionName != constants || variable.SectionName != constants || same.Size() != variable.Size() {
			continue
		}
		if err := variable.Set(values[same.Offset:][:same.Size()]); err != nil {
			return fmt.Errorf("set %s of the other object: %w", name, err)
		}
	}
	return nil
}

// mapName identifies a map of the programs. The kernel truncates names to BPF_OBJ_NAME_LEN; the key size
// distinguishes maps for IPv4 and IPv6 with the same truncated name.
type mapName struct {
	name    string
	keySize uint32
}

func mapsOf(p *ebpf.Program, all map[mapName]*ebpf.Map) error {
	info, err := p.Info()
	if err != nil {
		return fmt.Errorf("inspect the program under test: %w", err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return fmt.Errorf("open a map of the program under test: %w", err)
		}
		about, err := m.Info()
		if err != nil {
			return errors.Join(fmt.Errorf("inspect a map of the program under test: %w", err), m.Close())
		}
		name := mapName{about.Name, m.KeySize()}
		if all[name] != nil {
			_ = m.Close()
			continue
		}
		all[name] = m
	}
	return nil
}

func (o *otherPrograms) join(subjects []subject, egress bool) []subject {
	if o == nil {
		return subjects
	}
	last := slices.Clone(subjects[len(subjects)-1:])
	last[0].name, last[0].program = otherObject, o.Ingress
	if egress {
		last[0].program = o.Egress
	}
	return append(subjects, last...)
}

func (o *otherPrograms) close() error { return errors.Join(o.Ingress.Close(), o.Egress.Close()) }
