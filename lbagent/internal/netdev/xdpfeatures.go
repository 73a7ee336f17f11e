// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Of linux/netdev.h (Linux 6.3).
const (
	netdevFamily      = "netdev"
	netdevVersion     = 1
	netdevDeviceGet   = 1
	netdevIndex       = 1
	netdevXDPFeatures = 3
	xdpBasic          = 1 << 0
	xdpTransmits      = 1 << 2
)

// genericHeader is struct genlmsghdr: command, version and two bytes that must be zero. nl.Genlmsg
// sends there what lies behind it in memory, and this family refuses that.
type genericHeader [nl.SizeofGenlmsg]byte

func (genericHeader) Len() int { return nl.SizeofGenlmsg }

func (h genericHeader) Serialize() []byte { return h[:] }

// TakesRedirects reports whether the driver of an interface sends frames that an XDP program of
// another one redirects to it (NETDEV_XDP_ACT_NDO_XMIT). Some drivers do only while they have an XDP
// program themselves. It is true where the kernel does not tell, below Linux 6.3, and of an interface
// that is gone.
func TakesRedirects(index int) (bool, error) {
	features, known, err := xdpFeatures(index)
	return !known || features&xdpTransmits != 0, err
}

// RunsPrograms reports whether the driver of an interface runs XDP programs itself, in native mode
// (NETDEV_XDP_ACT_BASIC). It is not known below Linux 6.3.
func RunsPrograms(index int) (runs, known bool, err error) {
	features, known, err := xdpFeatures(index)
	return features&xdpBasic != 0, known, err
}

// xdpFeatures are what the driver of an interface does for XDP, where the kernel tells it.
func xdpFeatures(index int) (features uint64, known bool, err error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if errors.Is(err, unix.ENOENT) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look for the netlink family %s: %w", netdevFamily, err)
	}
	// One at a time: a list of all comes without NLM_F_MULTI, and the library takes its first
	// message alone.
	messages, err := retryInterrupted(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(int(family.ID), 0)
		request.AddData(genericHeader{netdevDeviceGet, netdevVersion})
		request.AddData(nl.NewRtAttr(netdevIndex, nl.Uint32Attr(uint32(index))))
		return request.Execute(unix.NETLINK_GENERIC, 0)
	})
	if errors.Is(err, unix.ENODEV) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read what the driver of interface %d does for XDP: %w", index, err)
	}
	if len(messages) == 0 {
		return 0, false, fmt.Errorf("the kernel does not say what the driver of interface %d does for XDP", index)
	}
	features, err = parseXDPFeatures(messages[0])
	if err != nil {
		return 0, false, fmt.Errorf("read what the driver of interface %d does for XDP: %w", index, err)
	}
	return features, true, nil
}

// parseXDPFeatures returns the flags of an interface, 0 where it has none.
func parseXDPFeatures(message []byte) (features uint64, err error) {
	if len(message) < nl.SizeofGenlmsg {
		return 0, fmt.Errorf("%d bytes are no message", len(message))
	}
	attributes, err := nl.ParseRouteAttr(message[nl.SizeofGenlmsg:])
	if err != nil {
		return 0, err
	}
	for _, a := range attributes {
		if a.Attr.Type == netdevXDPFeatures && len(a.Value) == 8 {
			features = binary.NativeEndian.Uint64(a.Value)
		}
	}
	return features, nil
}
