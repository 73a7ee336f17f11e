// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

const rowGroup = int(bpf.DatapathShapeROW_GROUP)

func groupOf(t testing.TB, p packet) []packet {
	t.Helper()
	group, found := make([]packet, rowGroup), 0
	for port := 1024; port < 1<<16 && found < rowGroup; port++ {
		other := p.fromPort(uint16(port))
		if place := int(other.rowIndex()) % rowGroup; other.rowGroup() == p.rowGroup() && group[place].from.Port() == 0 {
			group[place] = other
			found++
		}
	}
	if found < rowGroup {
		t.Fatalf("found flows for %d rows of the group, want %d", found, rowGroup)
	}
	return group
}

func (w *world) writeRows(t testing.TB, p packet, isFresh bool, updates []bpf.DatapathRowUpdate) {
	t.Helper()
	for i, update := range updates {
		put(t, w.RowUpdates, uint32(i), update)
	}
	request := bpf.DatapathRowsWrite{First: p.rowIndex() &^ 4095, Count: uint32(len(updates))}
	if isFresh {
		request.Fresh = 1
	}
	done, err := w.WriteRows.Run(&ebpf.RunOptions{Context: request})
	if err != nil || done != request.Count {
		t.Fatalf("%d of %d rows were written: %v", done, request.Count, err)
	}
}

func (w *world) rowGroup(t testing.TB, p packet) (mark bpf.DatapathRowGroup) {
	t.Helper()
	if err := w.RowGroups.Lookup(p.rowGroup(), &mark); err != nil {
		t.Fatal(err)
	}
	return mark
}

func (w *world) rowPath(t testing.TB, p packet) uint64 {
	t.Helper()
	var row bpf.DatapathRow
	if err := w.Rows.Lookup(p.rowIndex(), &row); err != nil {
		t.Fatal(err)
	}
	return row.Path
}

func (w *world) awaitTick(t testing.TB) {
	t.Helper()
	for before := w.tick(t); w.tick(t) == before; {
		time.Sleep(time.Millisecond)
	}
}

type mates struct {
	*world
	family  family
	random  *rand.Rand
	packets []packet
	rows    []table
	// moved is true while a row's datagrams must be looked up at other nodes, young while a chain by rank
	// must be used.
	moved, young []bool
	// held is true while node 2 holds the flow of the row by an override.
	held []bool
}

func (m *mates) update(row int) bpf.DatapathRowUpdate {
	return bpf.DatapathRowUpdate{Row: m.packets[row].rowIndex() % 4096, Path: m.rows[row].row().Path}
}

// move changes the primary of some rows, or only the ranks behind their history.
func (m *mates) move(t testing.TB) {
	var updates []bpf.DatapathRowUpdate
	for row := range m.rows {
		switch m.random.IntN(4) {
		case 0:
			previous := m.rows[row].primary
			m.rows[row] = table{primary: 5 - previous, chain: [3]uint16{previous}, history: 1}
			m.moved[row], m.young[row] = true, true
		case 1:
			m.rows[row].chain[2] = uint16(10 + m.random.IntN(5))
		default:
			continue
		}
		updates = append(updates, m.update(row))
	}
	m.writeRows(t, m.packets[0], false, updates)
}

// replace writes another table to the slot, in which some rows have a history.
func (m *mates) replace(t testing.TB) {
	m.clearOverrides(t)
	updates := make([]bpf.DatapathRowUpdate, 4096)
	for row := range updates {
		updates[row] = bpf.DatapathRowUpdate{Row: uint32(row), Path: table{primary: 3}.row().Path}
	}
	for row := range m.rows {
		m.held[row], m.rows[row] = false, table{primary: uint16(2 + m.random.IntN(2))}
		hasHistory := m.random.IntN(3) == 0
		if hasHistory {
			m.rows[row].chain, m.rows[row].history = [3]uint16{7}, 1
		}
		m.moved[row], m.young[row] = hasHistory, hasHistory
		updates[m.update(row).Row] = m.update(row)
	}
	m.writeRows(t, m.packets[0], true, updates)
	if slicesHave(m.moved) != (m.rowGroup(t, m.packets[0]).Moved != 0) {
		t.Errorf("new table: moved rows %v, group mark %+v", m.moved, m.rowGroup(t, m.packets[0]))
	}
}

func slicesHave(all []bool) bool {
	for _, one := range all {
		if one {
			return true
		}
	}
	return false
}

func (m *mates) hear(t testing.TB) {
	row := m.random.IntN(len(m.rows))
	m.learn(t, m.packets[row])
	m.held[row] = m.rows[row].primary != 2
}

// rest sweeps. Afterwards no row is marked unless one has an override.
func (m *mates) rest(t testing.TB) {
	m.awaitTick(t)
	m.mustSweep(t)
	for row := range m.rows {
		if m.held[row] && m.rows[row].primary != 2 {
			return
		}
	}
	for row, p := range m.packets {
		if m.rowPath(t, p)&rowOverridden != 0 {
			t.Errorf("row %d may have overrides after a sweep, but the group is not marked", row)
		}
	}
}

func (m *mates) forgetAll(t testing.TB) {
	m.clearOverrides(t)
	clear(m.held)
}

// pass advances the time past the limit of datagrams, or also of connections.
func (m *mates) pass(t testing.TB) {
	seconds := uint32(ticksOfMoves[m.random.IntN(2)])
	mark := m.rowGroup(t, m.packets[0])
	if mark.Moved == 0 {
		return
	}
	mark.Moved -= seconds * m.ticks(t)
	put(t, m.RowGroups, m.packets[0].rowGroup(), mark)
	clear(m.moved)
	if seconds > 7500 {
		clear(m.young)
	}
}

// ticksOfMoves are the seconds after which a moved row counts as unchanged for datagrams and for connections.
var ticksOfMoves = [2]int{300, 7600}

func (m *mates) sendAll(t testing.TB) {
	for row, p := range m.packets {
		before := m.tally(t)
		m.ingress(t, p.frame())
		used := m.tally(t).since(before)["event "+fmt.Sprint(uint32(bpf.DatapathEventEVENT_OVERRIDE_USED))] > 0
		if want := m.held[row] && m.rows[row].primary != 2; used != want {
			t.Errorf("row %d: override used: %v, want %v", row, used, want)
		}
		if m.rows[row].primary == 2 && m.rowPath(t, p)&rowOverridden != 0 {
			m.held[row] = false
		}
	}
}

func (m *mates) check(t testing.TB, step string) {
	t.Helper()
	mark := m.rowGroup(t, m.packets[0])
	now, perSecond := uint32(m.tick(t)), m.ticks(t)
	for row, p := range m.packets {
		path := m.rowPath(t, p)
		if m.young[row] && (mark.Moved == 0 || now-mark.Moved > 7500*perSecond) {
			t.Fatalf("%s: row %d has moved, group mark %+v", step, row, mark)
		}
		if m.moved[row] && (path&rowMoved == 0 || now-mark.Moved > 240*perSecond) {
			t.Fatalf("%s: row %d moved recently, row path %#x, group mark %+v", step, row, path, mark)
		}
		if m.held[row] && m.rows[row].primary != 2 && path&rowOverridden == 0 {
			t.Fatalf("%s: row %d has an override, but is not marked: row path %#x", step, row, path)
		}
	}
}

// Rows of a group share timestamps without losing their own state: each moved row and each override is found.
// Sweeps clear all flags.
func TestGroupMates(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := &mates{
				world: w, family: f, random: rand.New(rand.NewPCG(1, 2)), packets: groupOf(t, f.tcp(portNode3, "A")),
				rows: make([]table, rowGroup), moved: make([]bool, rowGroup), young: make([]bool, rowGroup), held: make([]bool, rowGroup),
			}
			m.replace(t)
			for step := range 600 {
				name, do := "sent", m.sendAll
				switch m.random.IntN(14) {
				case 0, 1, 2:
					name, do = "moved", m.move
				case 3, 4, 5:
					name, do = "learned", m.hear
				case 6, 7:
					name, do = "swept", m.rest
				case 8:
					name, do = "forgotten", m.forgetAll
				case 9, 10:
					name, do = "aged", m.pass
				case 11:
					name, do = "replaced", m.replace
				}
				do(t)
				m.check(t, fmt.Sprintf("step %d, %s", step, name))
			}
		})
	}
}

// ClearRowFlags clears the flags of all rows marked before the sweep began, also if the clock exceeds 1<<31.
func TestGroupFlagsAreCleared(t *testing.T) {
	w := newWorld(t)
	for name, since := range map[string]uint32{"early": 1 << 20, "late": 1<<31 + 1<<20} {
		t.Run(name, func(t *testing.T) {
			group := groupOf(t, v4.tcp(portNode3, "A"))
			for _, p := range group {
				w.mark(t, p, bpf.DatapathRowGroup{Overridden: since - 10})
			}
			request := bpf.DatapathOverrideSweep{Count: w.Rows.MaxEntries(), Since: since}
			if _, err := w.ClearRowFlags.Run(&ebpf.RunOptions{Context: request, ContextOut: &request}); err != nil {
				t.Fatal(err)
			}
			for _, p := range group {
				if w.isMarked(t, p) {
					t.Errorf("row %d is marked, want it unmarked", p.rowIndex()%8)
				}
				w.unmark(t, p)
			}
			if request.Left != 0 {
				t.Errorf("Left = %d rows, want 0", request.Left)
			}
		})
	}
}

// A datagram of an unchanged row in a group with a moved row is not looked up at other nodes. A moved row is, as
// long as its group moves.
func TestGroupAges(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		group := groupOf(t, f.udp(portNode2))
		atRest, before, now := group[0], group[3], group[7]
		w.mark(t, before, bpf.DatapathRowGroup{Moved: w.ago(t, 300)})
		path := table{primary: 3, chain: [3]uint16{2}, history: 1}.row().Path
		w.writeRows(t, now, false, []bpf.DatapathRowUpdate{{Row: now.rowIndex() % 4096, Path: path}})
		for name, c := range map[string]struct {
			of   packet
			want []byte
		}{
			"at rest":        {atRest, toNode2(atRest.tunnelled(v4.node2, 2))},
			"moved long ago": {before, toNode2(withFlags(before.tunnelled(v4.node2, 2), flagLookup))},
			"moved now":      {now, toNode3(withFlags(now.tunnelled(node3, 3, 2), flagLookup))},
		} {
			w.check(t, fixture{name: f.name + ", " + name, in: c.of.frame(), verdict: xdpTX, out: c.want, counts: f.received(c.of)})
		}
		for _, p := range group {
			w.unmark(t, p)
		}
	}
}
