// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// Apply performs the operations in order and stops at the first that fails, with
// an *ApplyError. Deleting what is not there succeeds.
func (d *Dataplane) Apply(ops []program.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, op := range ops {
		err := d.apply(op)
		if failed := (*ApplyError)(nil); errors.As(err, &failed) {
			failed.Index, failed.Op = i, op
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Dataplane) apply(op program.Op) error {
	switch op := op.(type) {
	case program.SetSelf:
		return d.setSelf(op.Self)
	case program.PutNode:
		return d.putNode(op.ID, op.Node)
	case program.PutEndpoint:
		return d.writeEndpoint(op.ID, encodeEndpoint(op.Endpoint))
	case program.PutEndpointTable:
		return d.writeEndpointTable(op.Slot, op.Table)
	case program.PutRows:
		return d.writeRows(op)
	case program.PutSourceRange:
		return d.putRange(op.Range)
	case program.PutFrontend:
		return d.putFrontend(op.Key, op.Frontend)
	case program.PutVIP:
		return d.putVIP(op.Address)
	default:
		return d.applyRemoval(op)
	}
}

func (d *Dataplane) applyRemoval(op program.Op) error {
	switch op := op.(type) {
	case program.DeleteNode:
		return d.deleteNode(op.ID)
	case program.DeleteEndpoint:
		return d.writeEndpoint(op.ID, bpf.DatapathEndpoint{})
	case program.ClearEndpointTable:
		return d.writeEndpointTable(op.Slot, &program.EndpointTable{})
	case program.ClearTable:
		return d.clearTable(op.Slot)
	case program.DeleteSourceRange:
		return d.deleteRange(op.Range)
	case program.LeaveZones:
		return d.leaveZones(op.Key)
	case program.DeleteFrontend:
		return d.deleteFrontend(op.Key)
	case program.DeleteVIP:
		return d.deleteVIP(op.Address)
	default:
		return failure("", op, errors.New("unknown kind of operation"))
	}
}

// flags are what raises the size of a map.
var flags = map[string]string{
	bpf.DatapathMapFrontends4:    "--max-frontends",
	bpf.DatapathMapFrontends6:    "--max-frontends",
	bpf.DatapathMapRows:          "--max-tables",
	bpf.DatapathMapEndpointRows:  "--max-endpoint-tables",
	bpf.DatapathMapEndpoints:     "--max-endpoints",
	bpf.DatapathMapVips:          "--max-vips",
	bpf.DatapathMapSourceRanges4: "--max-source-ranges",
	bpf.DatapathMapSourceRanges6: "--max-source-ranges",
}

// failure describes a write that failed; the map's flag is named where it is full.
func failure(name string, key any, err error) error {
	// A trie that is full says ENOSPC, a hash E2BIG.
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		err = ErrFull
	}
	if flag := flags[name]; flag != "" && errors.Is(err, ErrFull) {
		err = fmt.Errorf("%w; raise %s", err, flag)
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

// checkIndex refuses the place 0, which means none, and those beyond the limit.
func checkIndex[T ~uint16 | ~uint32](name string, index T, limit int) error {
	if index == 0 {
		return failure(name, index, errors.New("0 is not an id"))
	}
	if uint64(index) > uint64(limit) {
		return failure(name, index, fmt.Errorf("%w: the limit is %d", ErrFull, limit))
	}
	return nil
}

func (d *Dataplane) writeEndpoint(id program.EndpointID, endpoint bpf.DatapathEndpoint) error {
	if err := checkIndex(bpf.DatapathMapEndpoints, id, d.limits.Endpoints); err != nil {
		return err
	}
	return write(d.maps.Endpoints, bpf.DatapathMapEndpoints, id, uint32(id), endpoint)
}

func (d *Dataplane) writeEndpointTable(slot program.EndpointSlot, table *program.EndpointTable) error {
	if err := checkIndex(bpf.DatapathMapEndpointRows, slot, d.limits.EndpointSlots); err != nil {
		return err
	}
	keys := make([]uint32, program.EndpointRows)
	for i := range keys {
		keys[i] = uint32(slot)*program.EndpointRows + uint32(i)
	}
	if _, err := d.maps.EndpointRows.BatchUpdate(keys, table[:], nil); err != nil {
		return failure(bpf.DatapathMapEndpointRows, slot, err)
	}
	return nil
}

// frontendMap gives the map of the key's family, its name, and the key in it.
func (d *Dataplane) frontendMap(key program.FrontendKey) (*ebpf.Map, string, any) {
	if key.VIP.Unmap().Is4() {
		return d.maps.Frontends4, bpf.DatapathMapFrontends4, encodeFrontendKey4(key)
	}
	return d.maps.Frontends6, bpf.DatapathMapFrontends6, key.Hash()
}

// findFrontend returns the id that a frontend has in the maps, zero where it is not there.
func (d *Dataplane) findFrontend(key program.FrontendKey) (program.FrontendID, error) {
	m, name, encoded := d.frontendMap(key)
	entry := bpf.DatapathFrontend6{Key: encodeFrontendKey6(key)}
	var err error
	if key.VIP.Unmap().Is4() {
		err = m.Lookup(encoded, &entry.Frontend)
	} else {
		err = m.Lookup(encoded, &entry)
	}
	switch other := decodeFrontendKey6(entry.Key); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return 0, nil
	case err != nil:
		return 0, failure(name, showKey(key), err)
	case other != key:
		return 0, failure(name, showKey(key), fmt.Errorf("%s has the same hash, give one of the two another address or port", showKey(other)))
	default:
		return program.FrontendID(entry.Frontend.Id), nil
	}
}

// putFrontend zeroes the counters of an id that the frontend did not have before.
func (d *Dataplane) putFrontend(key program.FrontendKey, frontend program.Frontend) error {
	m, name, encoded := d.frontendMap(key)
	if err := checkIndex(name, frontend.ID, d.limits.Frontends); err != nil {
		return err
	}
	old, err := d.findFrontend(key)
	if err != nil {
		return err
	}
	if old != frontend.ID {
		zero := make([]bpf.DatapathFrontendCounter, ebpf.MustPossibleCPU())
		if err := d.maps.FrontendCounts.Put(uint32(frontend.ID), zero); err != nil {
			return failure(bpf.DatapathMapFrontendCounts, frontend.ID, err)
		}
		if err := d.forgetDrops(frontend.ID); err != nil {
			return err
		}
	}
	if err := d.writeFrontendKey(key, frontend.ID); err != nil {
		return err
	}
	if err := d.writeZones(frontend.ID, frontend.Zones); err != nil {
		return err
	}
	var entry any = encodeFrontend(frontend)
	if m == d.maps.Frontends6 {
		entry = bpf.DatapathFrontend6{Frontend: encodeFrontend(frontend), Key: encodeFrontendKey6(key)}
	}
	return write(m, name, showKey(key), encoded, entry)
}

// writeFrontendKey writes the key by the id, where the egress program finds it.
func (d *Dataplane) writeFrontendKey(key program.FrontendKey, id program.FrontendID) error {
	return write(d.maps.FrontendKeys, bpf.DatapathMapFrontendKeys, id, uint32(id), encodeFrontendKey6(key))
}

func (d *Dataplane) writeZones(id program.FrontendID, zones [program.Zones]program.TableSlot) error {
	return write(d.maps.ZoneTables, bpf.DatapathMapZoneTables, id, uint32(id), encodeZones(zones))
}

func (d *Dataplane) leaveZones(key program.FrontendKey) error {
	id, err := d.findFrontend(key)
	if err != nil || id == 0 {
		return err
	}
	return d.writeZones(id, [program.Zones]program.TableSlot{})
}

func (d *Dataplane) deleteFrontend(key program.FrontendKey) error {
	id, err := d.findFrontend(key)
	if err != nil || id == 0 {
		return err
	}
	m, name, encoded := d.frontendMap(key)
	return errors.Join(remove(m, name, showKey(key), encoded), d.forgetDrops(id))
}

// forgetDrops makes room for the drops of other frontends.
func (d *Dataplane) forgetDrops(id program.FrontendID) error {
	for reason := range uint32(bpf.DatapathDropReasonDROP_REASONS) {
		key := bpf.DatapathFrontendDrop{Frontend: uint32(id), Reason: reason}
		if err := remove(d.maps.FrontendDrops, bpf.DatapathMapFrontendDrops, id, key); err != nil {
			return err
		}
	}
	return nil
}

func showKey(key program.FrontendKey) string {
	return fmt.Sprintf("%s protocol %d", netip.AddrPortFrom(key.VIP, key.Port), key.Protocol)
}
