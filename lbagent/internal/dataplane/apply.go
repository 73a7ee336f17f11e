// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Apply performs an operation. It returns an *ApplyError on failure, after which the maps may hold a part of
// the operation. Deleting a missing entry succeeds.
func (d *Dataplane) Apply(op forwarding.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.apply(op)
	if failed := (*ApplyError)(nil); errors.As(err, &failed) {
		failed.Op = op
	}
	return err
}

func (d *Dataplane) apply(op forwarding.Op) error {
	switch op := op.(type) {
	case forwarding.SetSelf:
		return d.setSelf(op.Self)
	case forwarding.PutNode:
		return d.putNode(op.ID, op.Node)
	case forwarding.PutEndpoint:
		return d.writeEndpoint(op.ID, encodeEndpoint(op.Endpoint))
	case forwarding.PutEndpointTable:
		return d.writeEndpointTable(op.Slot, op.Table)
	case forwarding.PutRows:
		return d.writeRows(op)
	case forwarding.PutSourceRange:
		return d.putRange(op.Range)
	case forwarding.PutFrontend:
		return d.putFrontend(op.Key, op.Frontend)
	case forwarding.PutVIP:
		return d.putVIP(op.Address)
	default:
		return d.applyRemoval(op)
	}
}

func (d *Dataplane) applyRemoval(op forwarding.Op) error {
	switch op := op.(type) {
	case forwarding.DeleteNode:
		return d.deleteNode(op.ID)
	case forwarding.DeleteEndpoint:
		return d.writeEndpoint(op.ID, bpf.DatapathEndpoint{})
	case forwarding.ClearEndpointTable:
		return d.writeEndpointTable(op.Slot, &forwarding.EndpointTable{})
	case forwarding.ClearTable:
		return d.clearTable(op.Slot)
	case forwarding.DeleteSourceRange:
		return d.deleteRange(op.Range)
	case forwarding.RemoveZones:
		return d.removeZones(op.Key)
	case forwarding.DeleteFrontend:
		return d.deleteFrontend(op.Key)
	case forwarding.DeleteVIP:
		return d.deleteVIP(op.Address)
	default:
		return failure("", op, errors.New("unknown kind of operation"))
	}
}

// capacities maps each map to the capacity that is exhausted if it is full.
var capacities = map[string]forwarding.Capacity{
	bpf.DatapathMapFrontends4:    forwarding.Frontends,
	bpf.DatapathMapFrontends6:    forwarding.Frontends,
	bpf.DatapathMapRows:          forwarding.NodeTables,
	bpf.DatapathMapEndpointRows:  forwarding.EndpointTables,
	bpf.DatapathMapEndpoints:     forwarding.Endpoints,
	bpf.DatapathMapVips:          forwarding.VIPs,
	bpf.DatapathMapSourceRanges4: forwarding.SourceRanges,
	bpf.DatapathMapSourceRanges6: forwarding.SourceRanges,
}

// failure wraps the error of a failed write, with a *FullError if the map is full.
func failure(name string, key any, err error) error {
	// A full trie returns ENOSPC, a full hash E2BIG.
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		err = ErrFull
	}
	if capacity := capacities[name]; capacity != 0 && errors.Is(err, ErrFull) {
		err = &FullError{Capacity: capacity, Err: err}
	}
	return &ApplyError{Map: name, Key: fmt.Sprint(key), Err: err}
}

func write(m *ebpf.Map, name string, shown, key, value any) error {
	if err := m.Put(key, value); err != nil {
		return failure(name, shown, err)
	}
	return nil
}

func remove(m *ebpf.Map, name string, shown, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return failure(name, shown, err)
	}
	return nil
}

// checkIndex rejects the reserved index 0 and indexes beyond the limit.
func checkIndex[T ~uint16 | ~uint32](name string, index T, limit int) error {
	if index == 0 {
		return failure(name, index, errors.New("0 is not an id"))
	}
	if uint64(index) > uint64(limit) {
		return failure(name, index, fmt.Errorf("%w: the limit is %d", ErrFull, limit))
	}
	return nil
}

func (d *Dataplane) writeEndpoint(id forwarding.EndpointID, endpoint bpf.DatapathEndpoint) error {
	if err := checkIndex(bpf.DatapathMapEndpoints, id, d.limits.Endpoints); err != nil {
		return err
	}
	var old bpf.DatapathEndpoint
	if err := d.maps.Endpoints.Lookup(uint32(id), &old); err != nil {
		return failure(bpf.DatapathMapEndpoints, id, err)
	}
	if err := write(d.maps.Endpoints, bpf.DatapathMapEndpoints, id, uint32(id), endpoint); err != nil {
		return err
	}
	return d.indexEndpoint(old, endpoint)
}

func (d *Dataplane) frontendMap(key forwarding.FrontendKey) (*ebpf.Map, string, any) {
	if key.VIP.Unmap().Is4() {
		return d.maps.Frontends4, bpf.DatapathMapFrontends4, encodeFrontendKey4(key)
	}
	return d.maps.Frontends6, bpf.DatapathMapFrontends6, key.Hash(d.hash)
}

// findFrontend returns a frontend in the maps, or an empty one. A hash collision is an error.
func (d *Dataplane) findFrontend(key forwarding.FrontendKey) (bpf.DatapathFrontend, error) {
	entry, found, err := d.lookUpFrontend(key)
	if err != nil {
		return bpf.DatapathFrontend{}, err
	}
	if other := decodeFrontendKey6(entry.Key); !found && other.Port != 0 {
		_, name, _ := d.frontendMap(key)
		return bpf.DatapathFrontend{}, failure(name, formatKey(key), fmt.Errorf("%s has the same hash: change the address or port of one of them", formatKey(other)))
	}
	return entry.Frontend, nil
}

func (d *Dataplane) lookUpFrontend(key forwarding.FrontendKey) (entry bpf.DatapathFrontend6, own bool, err error) {
	m, name, encoded := d.frontendMap(key)
	if key.VIP.Unmap().Is4() {
		entry.Key = encodeFrontendKey6(key)
		err = m.Lookup(encoded, &entry.Frontend)
	} else {
		err = m.Lookup(encoded, &entry)
	}
	switch {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return bpf.DatapathFrontend6{}, false, nil
	case err != nil:
		return bpf.DatapathFrontend6{}, false, failure(name, formatKey(key), err)
	default:
		return entry, decodeFrontendKey6(entry.Key) == key, nil
	}
}

// putFrontend writes a frontend, and resets the counters of an id that is new to it.
func (d *Dataplane) putFrontend(key forwarding.FrontendKey, frontend forwarding.Frontend) error {
	m, name, encoded := d.frontendMap(key)
	if err := checkIndex(name, frontend.ID, d.limits.Frontends); err != nil {
		return err
	}
	old, err := d.findFrontend(key)
	if err != nil {
		return err
	}
	switched, err := d.switched(old, frontend)
	if err != nil {
		return err
	}
	if old.Id != uint32(frontend.ID) {
		zero := make([]bpf.DatapathFrontendCounter, ebpf.MustPossibleCPU())
		if err := d.maps.FrontendCounts.Put(uint32(frontend.ID), zero); err != nil {
			return failure(bpf.DatapathMapFrontendCounts, frontend.ID, err)
		}
		if err := d.deletePreviousDrops(frontend.ID); err != nil {
			return err
		}
	}
	if err := d.writeFrontendKey(key, frontend.ID); err != nil {
		return err
	}
	if err := d.writeZones(frontend.ID, frontend.Zones); err != nil {
		return err
	}
	value := encodeFrontend(frontend)
	value.Switched = switched
	var entry any = value
	if m == d.maps.Frontends6 {
		entry = bpf.DatapathFrontend6{Frontend: value, Key: encodeFrontendKey6(key)}
	}
	return write(m, name, formatKey(key), encoded, entry)
}

// switched returns the time of the last change that selects the nodes of established connections in another
// way: of session affinity, whose hash ignores the client's port, or from policy Local to rows. The programs
// then query the nodes of the previous selection. Frontends with zones have no such time.
func (d *Dataplane) switched(old bpf.DatapathFrontend, frontend forwarding.Frontend) (uint32, error) {
	next := encodeFrontend(frontend)
	local := uint32(bpf.DatapathFrontendFlagFRONTEND_LOCAL)
	switch {
	case old.Id == 0 || frontend.Zones != [forwarding.Zones]forwarding.NodeTableSlot{}:
		return 0, nil
	case (old.Affinity == 0) == (next.Affinity == 0) && old.Flags&local <= next.Flags&local:
		return old.Switched, nil
	}
	var clock uint64
	if err := d.maps.HopLease.Lookup(uint32(0), &clock); err != nil {
		return 0, failure(bpf.DatapathMapHopLease, 0, err)
	}
	return max(1, uint32(clock)), nil
}

func (d *Dataplane) writeFrontendKey(key forwarding.FrontendKey, id forwarding.FrontendID) error {
	return write(d.maps.FrontendKeys, bpf.DatapathMapFrontendKeys, id, uint32(id), encodeFrontendKey6(key))
}

func (d *Dataplane) writeZones(id forwarding.FrontendID, zones [forwarding.Zones]forwarding.NodeTableSlot) error {
	return write(d.maps.ZoneTables, bpf.DatapathMapZoneTables, id, uint32(id), encodeZones(zones))
}

func (d *Dataplane) removeZones(key forwarding.FrontendKey) error {
	found, err := d.findFrontend(key)
	if err != nil || found.Id == 0 {
		return err
	}
	return d.writeZones(forwarding.FrontendID(found.Id), [forwarding.Zones]forwarding.NodeTableSlot{})
}

func (d *Dataplane) deleteFrontend(key forwarding.FrontendKey) error {
	found, err := d.findFrontend(key)
	if err != nil || found.Id == 0 {
		return err
	}
	m, name, encoded := d.frontendMap(key)
	return errors.Join(remove(m, name, formatKey(key), encoded), d.deleteDrops(forwarding.FrontendID(found.Id)))
}

// deletePreviousDrops deletes drops counted for an id after its frontend was deleted. An id without a key was
// never used; skipping these saves seconds of system calls at start.
func (d *Dataplane) deletePreviousDrops(id forwarding.FrontendID) error {
	var previous bpf.DatapathFrontendKey6
	if err := d.maps.FrontendKeys.Lookup(uint32(id), &previous); err != nil {
		return failure(bpf.DatapathMapFrontendKeys, id, err)
	}
	if previous == (bpf.DatapathFrontendKey6{}) {
		return nil
	}
	return d.deleteDrops(id)
}

func (d *Dataplane) deleteDrops(id forwarding.FrontendID) error {
	for reason := range uint32(bpf.DatapathDropReasonDROP_REASONS) {
		key := bpf.DatapathFrontendDrop{Frontend: uint32(id), Reason: reason}
		if err := remove(d.maps.FrontendDrops, bpf.DatapathMapFrontendDrops, id, key); err != nil {
			return err
		}
	}
	return nil
}

func formatKey(key forwarding.FrontendKey) string {
	return fmt.Sprintf("%s protocol %d", netip.AddrPortFrom(key.VIP, key.Port), key.Protocol)
}
