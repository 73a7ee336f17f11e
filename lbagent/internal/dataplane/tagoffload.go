// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/safchain/ethtool"
)

// XDP sees a VLAN tag only where the card leaves it in the frame. So while a VLAN is an uplink,
// the cards below it are told to. The kernel then takes the tags off, after XDP. An empty
// directory among the pins records that this agent turned the feature off, so that it is turned
// on again with the last VLAN, or by Remove.

// tagFeatures are the features of a card that take tags off (ethtool -k), by what records them.
var tagFeatures = map[linkKind]string{
	tagOffload:        "rx-vlan-hw-parse",
	serviceTagOffload: "rx-vlan-stag-hw-parse",
}

func (p linkPin) isTagFeature() bool { return tagFeatures[p.kind] != "" }

// leaveTags tells the interface to leave tags in frames. It fails where the card cannot.
func (p linkPin) leaveTags() error {
	feature := tagFeatures[p.kind]
	return withFeatures(p.ifindex, func(tool *ethtool.Ethtool, name string) error {
		features, err := tool.Features(name)
		if err != nil {
			return fmt.Errorf("read the features of %s: %w", name, err)
		}
		if !features[feature] {
			return nil
		}
		// First the record, so that an interrupted start leaves nothing behind that is not known.
		if err := os.Mkdir(p.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("record %s of %s in %s: %w", feature, name, p.path, err)
		}
		err = tool.Change(name, map[string]bool{feature: false})
		if err == nil {
			features, err = tool.Features(name)
		}
		if err == nil && features[feature] {
			err = errors.New("the driver does not let it")
		}
		if err != nil {
			return errors.Join(fmt.Errorf("turn %s of %s off: %w", feature, name, err), p.forgetFilter())
		}
		return nil
	})
}

// takeTags lets the interface take tags off again.
func (p linkPin) takeTags() error {
	if _, err := os.Stat(p.path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := withFeatures(p.ifindex, func(tool *ethtool.Ethtool, name string) error {
		feature := tagFeatures[p.kind]
		if err := tool.Change(name, map[string]bool{feature: true}); err != nil {
			return fmt.Errorf("turn %s of %s on again: %w", feature, name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.forgetFilter()
}

// withFeatures calls change with the name of the interface, unless it is gone.
func withFeatures(ifindex int, change func(tool *ethtool.Ethtool, name string) error) error {
	iface, err := net.InterfaceByIndex(ifindex)
	if err != nil {
		return nil //nolint:nilerr // Its features went with it.
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open a socket for ethtool: %w", err)
	}
	defer tool.Close()
	return change(tool, iface.Name)
}

// sideTagged are the kinds of interfaces, as ethtool names their drivers, whose frames always have
// their tags beside them: the other end of a veth decides, and the stack has taken the tags off
// before the frames get to the others.
var sideTagged = map[string]bool{"veth": true, "bridge": true, "team": true, "macvlan": true}

// tagPins are where it is recorded that interfaces below the uplink take no tags off.
func (d *Dataplane) tagPins(uplink *Uplink) []linkPin {
	var pins []linkPin
	for _, index := range append([]int{uplink.device()}, uplink.Members...) {
		for _, kind := range []linkKind{tagOffload, serviceTagOffload} {
			pins = append(pins, newLinkPin(d.linkDir, index, kind))
		}
	}
	return pins
}

// showAllTags makes the tags of all uplinks that are VLANs visible to XDP, as far as it can.
func (d *Dataplane) showAllTags(uplinks []Uplink, devices map[int]device) {
	for i := range uplinks {
		uplink := &uplinks[i]
		if found, usable := devices[uplink.Index]; usable && len(uplink.Tags) > 0 {
			found.tagsBeside = d.showTags(uplink)
			devices[uplink.Index] = found
		}
	}
}

// showTags makes the tags of an uplink visible to XDP. It says why they are not.
func (d *Dataplane) showTags(uplink *Uplink) error {
	for _, pin := range d.tagPins(uplink) {
		if err := pin.leaveTags(); err != nil {
			return err
		}
	}
	for _, index := range append([]int{uplink.device()}, uplink.Members...) {
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

// settleTags takes in by which mode the program is attached, and returns why it may not see tags.
func settleTags(uplink *Uplink, devices map[int]device, mode XDPMode) error {
	found, usable := devices[uplink.Index]
	if !usable || len(uplink.Tags) == 0 {
		return nil
	}
	found.native = mode == Native
	if found.tagsBeside == nil && mode == Generic && len(uplink.Members) > 0 {
		found.tagsBeside = fmt.Errorf("%s consists of others, and its mode is generic", found.name)
	}
	devices[uplink.Index] = found
	return found.tagsBeside
}
