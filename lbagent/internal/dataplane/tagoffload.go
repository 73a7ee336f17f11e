// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/attach"
)

// sideTagged are the drivers, as reported by ethtool, whose frames always carry tags as metadata: for veth
// the peer decides, and the stack removes tags before frames reach the others.
var sideTagged = map[string]bool{"veth": true, "bridge": true, "team": true, "macvlan": true}

func (d *Dataplane) showAllTags(uplinks []Uplink, devices map[int]device) {
	for i := range uplinks {
		uplink := &uplinks[i]
		if found, usable := devices[uplink.Index]; usable && len(uplink.Tags) > 0 {
			found.tagsBeside = d.showTags(uplink)
			devices[uplink.Index] = found
		}
	}
}

// showTags disables tag offload so that XDP sees the uplink's VLAN tags, or returns why it cannot.
func (d *Dataplane) showTags(uplink *Uplink) error {
	for _, index := range uplink.devices() {
		if err := d.hooks.DisableTagOffload(index); err != nil {
			return err
		}
	}
	for _, index := range uplink.devices() {
		iface, err := net.InterfaceByIndex(index)
		if err != nil {
			return fmt.Errorf("find interface %d: %w", index, err)
		}
		driver, err := driverOf(iface.Name)
		if err != nil {
			return fmt.Errorf("read the driver of interface %s: %w", iface.Name, err)
		}
		if sideTagged[driver] {
			return fmt.Errorf("%s is of kind %s", iface.Name, driver)
		}
	}
	return nil
}

// settleTags records the XDP mode and returns the reason why the program may not see tags, or nil.
func settleTags(uplink *Uplink, devices map[int]device, mode attach.Mode) error {
	found, usable := devices[uplink.Index]
	if !usable || len(uplink.Tags) == 0 {
		return nil
	}
	found.native = mode == attach.Native
	if found.tagsBeside == nil && mode == attach.Generic && len(uplink.Members) > 0 {
		found.tagsBeside = fmt.Errorf("%s has member interfaces and generic mode", found.name)
	}
	devices[uplink.Index] = found
	return found.tagsBeside
}
