// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/layout"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func pinAs(t *testing.T, cfg Config, change func(layouts map[string]layout.Map)) {
	t.Helper()
	spec, err := newSpec(cfg)
	if err != nil {
		t.Fatal(err)
	}
	now, err := newSchema(spec, cfg.Seed)
	if err != nil {
		t.Fatal(err)
	}
	then := &schema{seed: cfg.Seed, layouts: currentLayouts(t)}
	change(then.layouts)
	directory := filepath.Join(cfg.PinRoot, mapDirectory)
	for name, want := range then.layouts {
		if layout.Equal(want, now.layouts[name]) {
			continue
		}
		pinMapAs(t, directory, spec.Maps[name], now.layouts[name], want)
	}
	for name := range now.layouts {
		if _, found := then.layouts[name]; found {
			continue
		}
		if err := os.Remove(filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := then.create()
	if err != nil {
		t.Fatal(err)
	}
	pinOver(t, m, filepath.Join(directory, schemaMap))
}

// pinMapAs replaces a pinned map by one of another layout with the convertible content.
func pinMapAs(t *testing.T, directory string, spec *ebpf.MapSpec, now, then layout.Map) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: spec.Name, Type: spec.Type, Flags: spec.Flags, MaxEntries: spec.MaxEntries,
		KeySize: then.Key.Size, ValueSize: then.Value.Size,
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(directory, spec.Name)
	if converter, err := layout.NewConverter(now, then); err == nil {
		previous, err := ebpf.LoadPinnedMap(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer previous.Close()
		if err := copyMap(previous, m, converter, ebpf.UpdateAny); err != nil {
			t.Fatal(err)
		}
	}
	pinOver(t, m, path)
}

func pinOver(t *testing.T, m *ebpf.Map, path string) {
	t.Helper()
	defer m.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
}

// otherLayouts returns the layouts of a fictitious version: without affinity of frontends, with narrower
// counters and times, reordered nodes and a longer endpoint.
func otherLayouts(t *testing.T) func(map[string]layout.Map) {
	t.Helper()
	return func(layouts map[string]layout.Map) {
		edit := func(name string, change func(m *layout.Map)) {
			m := layouts[name]
			change(&m)
			layouts[name] = m
		}
		edit(bpf.DatapathMapFrontends4, func(m *layout.Map) {
			m.Value.Fields = slices.DeleteFunc(m.Value.Fields, func(f layout.Field) bool { return f.Name == "affinity" })
		})
		edit(bpf.DatapathMapNodes, func(m *layout.Map) {
			ipv4, zone := fieldsOf(t, m, "ipv4"), fieldsOf(t, m, "zone")
			ipv4.Offset, zone.Offset = zone.Offset, ipv4.Offset
		})
		edit(bpf.DatapathMapEndpoints, func(m *layout.Map) {
			m.Value.Size += 8
			m.Value.Fields = append(m.Value.Fields, layout.Field{Name: "weight", Offset: m.Value.Size - 8, Type: layout.Type{Size: 8}})
		})
		edit(bpf.DatapathMapConnections4, func(m *layout.Map) {
			fieldsOf(t, m, "seen").Type.Size = 2
		})
		edit(bpf.DatapathMapFrontendCounts, func(m *layout.Map) {
			fieldsOf(t, m, "packets").Type.Size = 4
		})
		// Maps without counterpart, and one without a converter.
		delete(layouts, bpf.DatapathMapVipQuotas)
		edit(bpf.DatapathMapReplyRates, func(m *layout.Map) { m.Meaning++ })
	}
}

var exampleOverride = bpf.DatapathOverride{Fingerprint: 1 << 40, Value: 9<<36 | 2<<24 | 7}

func exampleState(t *testing.T, d *Dataplane) {
	t.Helper()
	table := &forwarding.EndpointTable{}
	rows, changed := make([]forwarding.Row, forwarding.Rows), make([]uint32, forwarding.Rows)
	for i := range rows {
		rows[i], changed[i] = forwarding.Row{Primary: 2, Chain: [3]forwarding.NodeID{1, 3}, History: 1}, uint32(i)
	}
	for i := range table {
		table[i] = 5
	}
	apply(t, d, forwarding.SetSelf{Self: forwarding.Self{ID: 1, IPv4: vip4}},
		forwarding.PutNode{ID: 2, Node: forwarding.Node{IPv4: vip4, IPv6: vip6, Zone: 3}}, forwarding.PutVIP{Address: vip4},
		forwarding.PutEndpoint{ID: 5, Endpoint: forwarding.Endpoint{Address: vip6, Port: 1}},
		forwarding.PutRows{Slot: 8, Changed: changed, Rows: rows}, forwarding.PutEndpointTable{Slot: 3, Table: table},
		forwarding.PutFrontend{
			Key:      forwarding.FrontendKey{VIP: vip4, Port: 80, Protocol: 6},
			Frontend: forwarding.Frontend{ID: 60, Table: 8, Endpoints: 3, Local: true},
		})
	key := bpf.DatapathConnectionKey4{Client: 1, Vip: 2, ClientPort: 3, VipPort: 4, Protocol: 6}
	if err := d.maps.Connections4.Put(key, bpf.DatapathConnection{Endpoint: 5, Tag: 6, Seen: 7, Flags: 8}); err != nil {
		t.Fatal(err)
	}
	for client, seen := range []uint32{8, 9, 3} {
		key := bpf.DatapathConnectionKey6{ClientPort: uint16(client), Protocol: 6}
		if err := d.maps.OverflowConn.Put(key, bpf.DatapathConnection{Endpoint: 5, Seen: seen}); err != nil {
			t.Fatal(err)
		}
	}
	counts := make([]bpf.DatapathFrontendCounter, ebpf.MustPossibleCPU())
	counts[0] = bpf.DatapathFrontendCounter{Packets: 9, Bytes: 1 << 40, Connections: 1}
	if err := d.maps.FrontendCounts.Put(uint32(60), counts); err != nil {
		t.Fatal(err)
	}
	var bucket bpf.DatapathOverrideBucket
	bucket.Slot[0] = exampleOverride
	if err := d.maps.Overrides.Put(uint32(0), bucket); err != nil {
		t.Fatal(err)
	}
}

// allEntries returns the contents of the maps with other layouts.
func allEntries(t *testing.T, d *Dataplane) map[string]any {
	t.Helper()
	state, err := d.Dump()
	if err != nil {
		t.Fatal(err)
	}
	connections := map[bpf.DatapathConnectionKey4]bpf.DatapathConnection{}
	err = readMap(d.maps.Connections4, func(key bpf.DatapathConnectionKey4, value bpf.DatapathConnection) { connections[key] = value })
	if err != nil {
		t.Fatal(err)
	}
	var counts []bpf.DatapathFrontendCounter
	if err := d.maps.FrontendCounts.Lookup(uint32(60), &counts); err != nil {
		t.Fatal(err)
	}
	var bucket bpf.DatapathOverrideBucket
	if err := d.maps.Overrides.Lookup(uint32(0), &bucket); err != nil {
		t.Fatal(err)
	}
	return map[string]any{"state": state, "connections": connections, "counts": counts, "overrides": bucket}
}

// Maps of another version, with added, removed, moved, wider and narrower fields, keep their content.
func TestConverted(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	exampleState(t, d)
	want := allEntries(t, d)
	pinAs(t, cfg, otherLayouts(t))
	larger := cfg
	larger.Limits.Endpoints *= 2
	again := openDataplane(t, larger)
	adoption := again.Adoption()
	if adoption.Kind != Converted || !slices.Contains(adoption.Copied, bpf.DatapathMapConnections4) ||
		!slices.Equal(adoption.Emptied, []string{bpf.DatapathMapReplyRates}) {
		t.Errorf("adoption = %+v, want %s with connections copied and reply rates emptied", adoption, Converted)
	}
	if got := allEntries(t, again); !reflect.DeepEqual(got, want) {
		t.Errorf("after the conversion: %+v\nwant: %+v", got, want)
	}
	// The quotas are new, but the overflow table still has flows.
	var quotas bpf.DatapathQuotas
	for _, slot := range []uint32{0, again.maps.VipQuotas.MaxEntries() - 1} {
		err := again.maps.VipQuotas.Lookup(slot, &quotas)
		if used := quotas.Kind[bpf.DatapathQuotaKindQUOTA_CONNECTIONS].Used; err != nil || used != 9 {
			t.Errorf("overflow quota in slot %d: %d used (%v), want 9", slot, used, err)
		}
	}
	if kind := openDataplane(t, larger).Adoption().Kind; kind != Adopted {
		t.Errorf("then adoption = %s, want %s", kind, Adopted)
	}
}

// A required map that cannot be converted causes a rebuild with a reason.
func TestNotConverted(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, layouts map[string]layout.Map)
		reason string
	}{
		"changed meaning of a field": {func(_ *testing.T, layouts map[string]layout.Map) {
			m := layouts[bpf.DatapathMapConnections6]
			m.Meaning = 7
			layouts[bpf.DatapathMapConnections6] = m
		}, "map connections6 cannot be converted: its meaning is 7"},
		"changed map type": {func(t *testing.T, layouts map[string]layout.Map) {
			m := layouts[bpf.DatapathMapNodes]
			fieldsOf(t, &m, "ipv6").Type = layout.Type{Size: 16}
			layouts[bpf.DatapathMapNodes] = m
		}, "value.ipv6 has another type"},
		"fewer elements": {func(_ *testing.T, layouts map[string]layout.Map) {
			m := layouts[bpf.DatapathMapZoneTables]
			m.Value.Size *= 2
			table := &m.Value.Fields[0].Type
			table.Size, table.Elements = 2*table.Size, 2*table.Elements
			layouts[bpf.DatapathMapZoneTables] = m
		}, "value.table has 8 elements, not 16"},
		"sizes that differ from the schema": {func(_ *testing.T, layouts map[string]layout.Map) {
			m := layouts[bpf.DatapathMapVips]
			m.Value.Size = 8
			layouts[bpf.DatapathMapVips] = m
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := smallConfig(mountBPF(t))
			exampleState(t, openDataplane(t, cfg))
			pinAs(t, cfg, func(layouts map[string]layout.Map) { test.change(t, layouts) })
			if test.reason == "" {
				// The map has 4 bytes, unlike its schema.
				m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "vips", Type: ebpf.Hash, KeySize: 16, ValueSize: 4, MaxEntries: 64})
				if err != nil {
					t.Fatal(err)
				}
				pinOver(t, m, filepath.Join(cfg.PinRoot, mapDirectory, bpf.DatapathMapVips))
				test.reason = "map vips cannot be converted: it has keys of 16 bytes and values of 4 bytes"
			}
			d := openDataplane(t, cfg)
			if adoption := d.Adoption(); adoption.Kind != Rebuilt || !strings.Contains(adoption.Reason, test.reason) {
				t.Errorf("adoption = %+v, want %s with the reason %s", adoption, Rebuilt, test.reason)
			}
			if state, err := d.Dump(); err != nil || len(state.Frontends) > 0 {
				t.Errorf("state = %+v, %v; want empty", state, err)
			}
		})
	}
}

// A number of a newer version that does not fit causes a rebuild.
func TestTooLarge(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	exampleState(t, d)
	pinAs(t, cfg, func(layouts map[string]layout.Map) {
		m := layouts[bpf.DatapathMapZoneTables]
		// The upper half of each number is the next entry.
		table := &m.Value.Fields[0].Type
		table.Elements, table.Element = table.Elements/2, &layout.Type{Size: 8}
		layouts[bpf.DatapathMapZoneTables] = m
	})
	m, err := ebpf.LoadPinnedMap(filepath.Join(cfg.PinRoot, mapDirectory, bpf.DatapathMapZoneTables), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Put(uint32(1), bytes.Repeat([]byte{1}, int(m.ValueSize()))); err != nil {
		t.Fatal(err)
	}
	again := openDataplane(t, cfg)
	if adoption := again.Adoption(); adoption.Kind != Rebuilt || !strings.Contains(adoption.Reason, "out of range") {
		t.Errorf("%+v, want %s", adoption, Rebuilt)
	}
}

// A connection whose time does not fit is dropped, also if written by attached programs after the copy;
// others are retained.
func TestTooLargeConnection(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	exampleState(t, d)
	want := allEntries(t, d)
	var seen uint32
	pinAs(t, cfg, func(layouts map[string]layout.Map) {
		m := layouts[bpf.DatapathMapConnections4]
		field := fieldsOf(t, &m, "seen")
		seen, m.Value.Size = m.Value.Size, m.Value.Size+8
		field.Offset, field.Type.Size = seen, 8
		layouts[bpf.DatapathMapConnections4] = m
	})
	m, err := ebpf.LoadPinnedMap(filepath.Join(cfg.PinRoot, mapDirectory, bpf.DatapathMapConnections4), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	put := func(client, high byte) {
		key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		key[0], value[seen], value[seen+7] = client, 9, high
		if err := m.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	put(200, 1)
	again := openDataplane(t, cfg)
	put(201, 1)
	put(202, 0)
	late := bpf.DatapathConnectionKey4{Client: 202}
	want["connections"].(map[bpf.DatapathConnectionKey4]bpf.DatapathConnection)[late] = bpf.DatapathConnection{Seen: 9}
	if err := again.Attach(nil); err != nil {
		t.Fatal(err)
	}
	if adoption := again.Adoption(); adoption.Kind != Converted {
		t.Errorf("%+v, want %s", adoption, Converted)
	}
	if got := allEntries(t, again); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// An agent that ends before it attached its programs leaves the previous maps to the next one.
func TestEndBeforeAttach(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	exampleState(t, d)
	larger := cfg
	larger.Connections *= 2
	if err := openDataplane(t, larger).Close(); err != nil {
		t.Fatal(err)
	}
	// As an attached program of the first agent would.
	key := bpf.DatapathConnectionKey4{Client: 9, Vip: 2, ClientPort: 3, VipPort: 4, Protocol: 6}
	if err := d.maps.Connections4.Put(key, bpf.DatapathConnection{Endpoint: 5, Tag: 1}); err != nil {
		t.Fatal(err)
	}
	want := allEntries(t, d)
	for _, step := range []struct {
		cfg  Config
		want AdoptionKind
	}{{larger, Adopted}, {cfg, Resized}} {
		again := openDataplane(t, step.cfg)
		if kind := again.Adoption().Kind; kind != step.want {
			t.Errorf("%s, want %s", kind, step.want)
		}
		if step.cfg.Connections == cfg.Connections {
			if err := again.Attach(nil); err != nil {
				t.Fatal(err)
			}
			if got := allEntries(t, again); !reflect.DeepEqual(got, want) {
				t.Errorf("after attaching: %+v\nprevious maps: %+v", got, want)
			}
		}
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(cfg.PinRoot, previousMapDirectory)); !os.IsNotExist(err) {
		t.Errorf("the previous maps were not removed: %v", err)
	}
}

// An agent that finds maps of a newer one that never attached restores the previous maps.
func TestGoBack(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	exampleState(t, d)
	larger := cfg
	larger.Connections *= 2
	openDataplane(t, larger)
	changeSchema(t, cfg.PinRoot, func(content []byte) { content[0]++ })
	want := allEntries(t, d)
	again := openDataplane(t, cfg)
	if adoption := again.Adoption(); adoption.Kind != Adopted {
		t.Errorf("%+v, want %s", adoption, Adopted)
	}
	if got := allEntries(t, again); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
