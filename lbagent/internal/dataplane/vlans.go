// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"

	"github.com/millrace-lb/millrace/bpf"
)

// VLANTag is the tag of a VLAN.
type VLANTag struct {
	// Protocol is the tag's EtherType: 0x8100 (802.1Q) or 0x88a8 (802.1ad).
	Protocol uint16
	// ID is 1 to 4094.
	ID uint16
}

// vlanKeys returns the map keys of a VLAN uplink: its tags on each interface that receives its frames.
func vlanKeys(uplink *Uplink) ([]bpf.DatapathVlanKey, error) {
	if len(uplink.Tags) == 0 {
		return nil, nil
	}
	var key bpf.DatapathVlanKey
	if len(uplink.Tags) > len(key.Tag) {
		return nil, fmt.Errorf("%s is a VLAN in %d others; the programs read %d tags",
			uplink.Name, len(uplink.Tags)-1, len(key.Tag))
	}
	for i, tag := range uplink.Tags {
		// In wire format: the EtherType, then the id, both big-endian.
		key.Tag[i] = nativeUint32([]byte{byte(tag.Protocol >> 8), byte(tag.Protocol), byte(tag.ID >> 8), byte(tag.ID)})
	}
	keys := make([]bpf.DatapathVlanKey, 0, 1+len(uplink.Members))
	for _, index := range uplink.devices() {
		key.Ifindex = uint32(index)
		keys = append(keys, key)
	}
	return keys, nil
}

func (d *Dataplane) addVLANs(uplinks []Uplink, errs map[int]error) error {
	for i := range uplinks {
		uplink := &uplinks[i]
		keys, err := vlanKeys(uplink)
		if err != nil {
			errs[uplink.Index] = err
			continue
		}
		for _, key := range keys {
			if err := write(d.maps.Vlans, bpf.DatapathMapVlans, uplink.Name, key, uint32(uplink.Index)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Dataplane) removeVLANs(uplinks []Uplink) error {
	wanted := map[bpf.DatapathVlanKey]bool{}
	for i := range uplinks {
		if !d.isAttached(uplinks[i].Index) {
			continue
		}
		keys, err := vlanKeys(&uplinks[i])
		if err != nil {
			return err
		}
		for _, key := range keys {
			wanted[key] = true
		}
	}
	var stale []bpf.DatapathVlanKey
	err := readMap(d.maps.Vlans, func(key bpf.DatapathVlanKey, _ uint32) {
		if !wanted[key] {
			stale = append(stale, key)
		}
	})
	if err != nil {
		return fmt.Errorf("read map %s: %w", bpf.DatapathMapVlans, err)
	}
	for _, key := range stale {
		if err := remove(d.maps.Vlans, bpf.DatapathMapVlans, key, key); err != nil {
			return err
		}
	}
	return nil
}

func (d *Dataplane) isAttached(uplink int) bool {
	for i := range d.attachments {
		if a := &d.attachments[i]; a.Index == uplink && a.Mode != "" {
			return true
		}
	}
	return false
}
