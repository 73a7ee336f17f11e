// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
)

func TestPart(t *testing.T) {
	s := NewState()
	for i := range 300 {
		key := FrontendKey{VIP: netip.AddrFrom4([4]byte{203, 0, byte(113 + i/250), byte(i % 250)}), Port: 80, Protocol: ProtocolTCP}
		s.VIPs[key.VIP] = struct{}{}
		s.Frontends[key] = Frontend{ID: FrontendID(i + 1)}
		s.Endpoints[EndpointID(i+1)] = Endpoint{Address: key.VIP, Port: 80}
		s.NodeTables[NodeTableSlot(i+1)] = NewNodeTable()
		s.EndpointTables[EndpointTableSlot(i+1)] = &EndpointTable{}
	}
	const parts = 7
	all := &Entries{}
	for part := range uint32(parts) {
		entries := s.Part(part, parts)
		if len(entries.Frontends) == 0 || len(entries.VIPs) == 0 {
			t.Errorf("part %d has %d frontends and %d VIPs", part, len(entries.Frontends), len(entries.VIPs))
		}
		all.Add(entries)
	}
	for name, counts := range map[string][2]int{
		"VIPs": {len(all.VIPs), len(s.VIPs)}, "frontends": {len(all.Frontends), len(s.Frontends)},
		"endpoints": {len(all.Endpoints), len(s.Endpoints)}, "node tables": {len(all.NodeTables), len(s.NodeTables)},
		"endpoint tables": {len(all.EndpointTables), len(s.EndpointTables)},
	} {
		if counts[0] != counts[1] {
			t.Errorf("the parts contain %d %s, want %d", counts[0], name, counts[1])
		}
	}
	if !reflect.DeepEqual(s.only(all), s) {
		t.Error("the union of the parts is not the State")
	}
	if ops := DiffOf(NewState(), s, s.Part(3, parts)); len(ops) == 0 || slices.ContainsFunc(ops, func(op Op) bool {
		put, is := op.(PutFrontend)
		return is && uint32(put.Frontend.ID)%parts != 3
	}) {
		t.Errorf("differences of the part: %v", ops)
	}
}
