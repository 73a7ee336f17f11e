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

// Constants of linux/netdev.h (Linux 6.3).
const (
	netdevFamily      = "netdev"
	netdevVersion     = 1
	netdevDeviceGet   = 1
	netdevIndex       = 1
	netdevXDPFeatures = 3
	xdpBasic          = 1 << 0
	xdpTransmits      = 1 << 2
)

// genericHeader is struct genlmsghdr: command, version and two reserved bytes. nl.Genlmsg does not set
// the reserved bytes to zero, and the kernel rejects that for this family.
type genericHeader [nl.SizeofGenlmsg]byte

func (genericHeader) Len() int { return nl.SizeofGenlmsg }

func (h genericHeader) Serialize() []byte { return h[:] }

// TakesRedirects reports whether the driver transmits frames redirected by XDP on another interface
// (NETDEV_XDP_ACT_NDO_XMIT), which may require an XDP program of its own. It returns true for a missing
// interface and before Linux 6.3.
func TakesRedirects(index int) (bool, error) {
	features, known, err := xdpFeatures(index)
	return !known || features&xdpTransmits != 0, err
}

// RunsPrograms reports whether the driver of an interface supports native XDP (NETDEV_XDP_ACT_BASIC).
// known is false before Linux 6.3.
func RunsPrograms(index int) (runs, known bool, err error) {
	features, known, err := xdpFeatures(index)
	return features&xdpBasic != 0, known, err
}

func xdpFeatures(index int) (features uint64, known bool, err error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if errors.Is(err, unix.ENOENT) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look for the netlink family %s: %w", netdevFamily, err)
	}
	// One interface per request: a dump has no NLM_F_MULTI flag, so that the library reads only its first
	// message.
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
		return 0, false, fmt.Errorf("read the XDP features of the driver of interface %d: %w", index, err)
	}
	if len(messages) == 0 {
		return 0, false, fmt.Errorf("the kernel reports no XDP features of the driver of interface %d", index)
	}
	features, err = parseXDPFeatures(messages[0])
	if err != nil {
		return 0, false, fmt.Errorf("read the XDP features of the driver of interface %d: %w", index, err)
	}
	return features, true, nil
}

func parseXDPFeatures(message []byte) (features uint64, err error) {
	if len(message) < nl.SizeofGenlmsg {
		return 0, fmt.Errorf("invalid message of %d bytes", len(message))
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
