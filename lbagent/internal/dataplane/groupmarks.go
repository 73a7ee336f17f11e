// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/layout"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// rowGroup is how many rows of a node table share a mark.
const rowGroup = uint32(bpf.DatapathShapeROW_GROUP)

// previousRowMarks is the map of versions in which each row had a mark of its own.
const previousRowMarks = "row_marks"

// rowPlaces are the entries of the map of rows. The last group is of no table: so the map has another
// size than that of a version with a mark for each row, and either version copies the rows of the
// other. The programs of both never work by one row with two marks.
func (c *Config) rowPlaces() uint32 {
	return uint32(c.Limits.NodeTables+1)*forwarding.Rows + rowGroup
}

// loadPreviousMarks adds the marks of a version in which each row had one.
func (p *pinnedMaps) loadPreviousMarks(directory string) error {
	if p.schema == nil {
		return nil
	}
	if _, described := p.schema.layouts[previousRowMarks]; !described {
		return nil
	}
	m, err := loadPinnedMap(directory, previousRowMarks)
	if err == nil && m != nil {
		p.maps[previousRowMarks] = m
	}
	return err
}

// clockSlack is how many ticks the marks of attached programs may be later than the last heartbeat:
// three days of 1,000 Hz.
const clockSlack = 1 << 28

// judgePreviousMarks has the marks of rows become those of their groups. Without any, or where they are
// of another form, all begin with none.
func (m *migration) judgePreviousMarks(spec *ebpf.MapSpec, pinned *pinnedMaps, want layout.Map) error {
	name, from := spec.Name, pinned.maps[previousRowMarks]
	m.note(Converted, "map %s is new", name)
	if from == nil || !layout.Equal(pinned.schema.layouts[previousRowMarks], want) || formOf(from, spec, want) != nil {
		m.new = append(m.new, name)
		return nil
	}
	var beat uint64
	if heartbeat := pinned.maps[bpf.DatapathMapHeartbeat]; heartbeat != nil {
		if err := heartbeat.Lookup(uint32(0), &beat); err != nil {
			return fmt.Errorf("read the last heartbeat: %w", err)
		}
	}
	m.copied[name] = copying{from: previousRowMarks, now: uint32(beat) + clockSlack}
	m.adoption.Copied = append(m.adoption.Copied, name)
	return nil
}

// copyRowMarks gives each group the latest times of its rows. Marks beyond the end have lost their rows.
func copyRowMarks(from, to *ebpf.Map, now uint32) error {
	var groups []uint32
	var marks []bpf.DatapathGroupMark
	write := func() error {
		if len(groups) == 0 {
			return nil
		}
		if _, err := to.BatchUpdate(groups, marks, nil); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		groups, marks = groups[:0], marks[:0]
		return nil
	}
	err := eachEntry(from, func(row uint32, mark bpf.DatapathGroupMark) error {
		group := row / rowGroup
		if mark == (bpf.DatapathGroupMark{}) || group >= to.MaxEntries() {
			return nil
		}
		if last := len(groups) - 1; last >= 0 && groups[last] == group {
			marks[last].Moved = later(marks[last].Moved, mark.Moved, now)
			marks[last].Excepted = later(marks[last].Excepted, mark.Excepted, now)
			return nil
		}
		if len(groups) == batchSize {
			if err := write(); err != nil {
				return err
			}
		}
		groups, marks = append(groups, group), append(marks, mark)
		return nil
	})
	if err != nil {
		return err
	}
	return write()
}

// later returns the later of two times in ticks, both before now. The clock wraps, and zero means never.
func later(a, b, now uint32) uint32 {
	if a == 0 || b != 0 && now-b < now-a {
		return b
	}
	return a
}
