// SPDX-License-Identifier: Apache-2.0

package forwarding

// Part returns one of parts disjoint subsets of the entries, numbered from 0 and similar in size.
func (s *State) Part(part, parts uint32) *Entries {
	entries := &Entries{}
	for address := range s.VIPs {
		bytes := address.As16()
		if (uint32(bytes[13])<<16|uint32(bytes[14])<<8|uint32(bytes[15]))%parts == part {
			entries.VIPs = append(entries.VIPs, address)
		}
	}
	for id := range s.Endpoints {
		if uint32(id)%parts == part {
			entries.Endpoints = append(entries.Endpoints, id)
		}
	}
	for slot := range s.EndpointTables {
		if uint32(slot)%parts == part {
			entries.EndpointTables = append(entries.EndpointTables, slot)
		}
	}
	for slot := range s.NodeTables {
		if uint32(slot)%parts == part {
			entries.NodeTables = append(entries.NodeTables, slot)
		}
	}
	for key, frontend := range s.Frontends {
		if uint32(frontend.ID)%parts == part {
			entries.Frontends = append(entries.Frontends, key)
		}
	}
	return entries
}

// Writes returns operations that identify the entries, without values.
func (e *Entries) Writes() []Op {
	var ops []Op
	for _, key := range e.Frontends {
		ops = append(ops, PutFrontend{Key: key})
	}
	for _, address := range e.VIPs {
		ops = append(ops, PutVIP{Address: address})
	}
	for _, id := range e.Endpoints {
		ops = append(ops, PutEndpoint{ID: id})
	}
	for _, slot := range e.NodeTables {
		ops = append(ops, PutRows{Slot: slot})
	}
	for _, slot := range e.EndpointTables {
		ops = append(ops, PutEndpointTable{Slot: slot})
	}
	return ops
}

// DiffOf is Diff restricted to entries; nil stands for all entries.
func DiffOf(have, want *State, of *Entries) []Op { return Diff(have.only(of), want.only(of)) }

// IsEmpty reports whether there are no entries.
func (e *Entries) IsEmpty() bool {
	return len(e.VIPs)+len(e.Endpoints)+len(e.EndpointTables)+len(e.NodeTables)+len(e.Frontends) == 0
}
