// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/safchain/ethtool"
)

// XDP sees a VLAN tag only if the NIC leaves it in the frame, so VLAN stripping is disabled on the NICs below
// a VLAN uplink; the kernel strips tags after XDP. An empty directory among the pins records that this agent
// disabled a feature, so that it is enabled again with the last VLAN, or by Remove.

var tagFeatures = map[Kind]string{
	tagOffload:        "rx-vlan-hw-parse",
	serviceTagOffload: "rx-vlan-stag-hw-parse",
}

func (p Pin) isTagFeature() bool { return tagFeatures[p.Kind] != "" }

// DisableTagOffload disables VLAN stripping. It returns an error if the NIC does not support that.
func (h Hooks) DisableTagOffload(ifindex int) error {
	for _, kind := range []Kind{tagOffload, serviceTagOffload} {
		if err := h.pin(ifindex, kind).disable(); err != nil {
			return err
		}
	}
	return nil
}

func (p Pin) disable() error {
	feature := tagFeatures[p.Kind]
	return withFeatures(p.Interface, func(tool *ethtool.Ethtool, name string) error {
		features, err := tool.Features(name)
		if err != nil {
			return fmt.Errorf("read the features of %s: %w", name, err)
		}
		if !features[feature] {
			return nil
		}
		// The record first, so that an interrupted start leaves no unknown change behind.
		if err := os.Mkdir(p.path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("record %s of %s in %s: %w", feature, name, p.path, err)
		}
		err = tool.Change(name, map[string]bool{feature: false})
		if err == nil {
			features, err = tool.Features(name)
		}
		if err == nil && features[feature] {
			err = errors.New("the driver does not allow it")
		}
		if err != nil {
			return errors.Join(fmt.Errorf("turn %s of %s off: %w", feature, name, err), p.deleteRecord())
		}
		return nil
	})
}

func (p Pin) restore() error {
	if _, err := os.Stat(p.path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := withFeatures(p.Interface, func(tool *ethtool.Ethtool, name string) error {
		feature := tagFeatures[p.Kind]
		if err := tool.Change(name, map[string]bool{feature: true}); err != nil {
			return fmt.Errorf("re-enable %s of %s: %w", feature, name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.deleteRecord()
}

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
