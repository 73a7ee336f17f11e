// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/test/isolated"
)

// onOtherKernels is true in the machines of make test-kernels, which have rare modules and network
// interfaces.
func onOtherKernels() bool { return os.Getenv("MILLRACE_TEST_MODULES") != "" }

// From linux/openvswitch.h.
const (
	ovsNew          = 1
	ovsDatapathName = 1
	ovsDatapathPID  = 2
	ovsPortType     = 2
	ovsPortName     = 3
	ovsPortPID      = 5
	ovsPortNetdev   = 1
)

type openVSwitchRequest struct {
	version  byte
	datapath int
}

func (openVSwitchRequest) Len() int { return nl.SizeofGenlmsg + 4 }

func (r openVSwitchRequest) Serialize() []byte {
	return binary.NativeEndian.AppendUint32([]byte{ovsNew, r.version, 0, 0}, uint32(r.datapath))
}

func openVSwitchNew(t *testing.T, family string, header openVSwitchRequest, attributes ...*nl.RtAttr) {
	t.Helper()
	found, err := netlink.GenlFamilyGet(family)
	must(t, err)
	request := nl.NewNetlinkRequest(int(found.ID), unix.NLM_F_ACK)
	request.AddData(header)
	for _, attribute := range attributes {
		request.AddData(attribute)
	}
	if _, err := request.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		t.Fatalf("create %s: %v", family, err)
	}
}

// addBridge creates the Open vSwitch bridge br-ex with port eth0.
func addBridge(t *testing.T) {
	t.Helper()
	nobody := nl.Uint32Attr(0)
	openVSwitchNew(t, "ovs_datapath", openVSwitchRequest{version: 2},
		nl.NewRtAttr(ovsDatapathName, nl.ZeroTerminated("br-ex")), nl.NewRtAttr(ovsDatapathPID, nobody))
	bridge, err := netlink.LinkByName("br-ex")
	must(t, err)
	openVSwitchNew(t, "ovs_vport", openVSwitchRequest{version: 1, datapath: bridge.Attrs().Index},
		nl.NewRtAttr(ovsPortType, nl.Uint32Attr(ovsPortNetdev)), nl.NewRtAttr(ovsPortName, nl.ZeroTerminated("eth0")),
		nl.NewRtAttr(ovsPortPID, nobody))
}

// Neither a bridge of Open vSwitch nor its port is a supported uplink. It needs root.
func TestOpenVSwitch(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	if _, err := netlink.GenlFamilyGet("ovs_datapath"); !onOtherKernels() && errors.Is(err, unix.ENOENT) {
		t.Skip("this kernel does not support Open vSwitch; make test-kernels runs this test on one that does")
	}
	of := healthy(t)
	addBridge(t)
	sh(t, `
		ip link set br-ex up
		ip addr flush dev eth0
		ip addr add 198.51.100.1/24 dev br-ex
		ip route add default via 198.51.100.254`)
	// The bridge has no flows and forwards no packets.
	of.Nodes = nil
	for name, patterns := range map[string][]string{"br-ex": nil, "eth0": {"eth0"}} {
		of.Patterns = patterns
		want := append(expected(t), consoleapi.Finding{Check: CheckOVS, Level: breaks,
			Message: name + " belongs to Open vSwitch, which processes packets before and instead of the kernel's stack: move the node's address to a separate NIC, bond or VLAN, and configure that (--uplinks of the agents)"})
		got := slices.DeleteFunc(findings(t, of), func(f consoleapi.Finding) bool { return f.Check == CheckDriver })
		if !sameFindings(got, want) {
			t.Errorf("findings %+v,\nwant %+v", got, want)
		}
	}
}

// A network interface that hashes UDP by addresses is reported until it is configured as advised; one
// without such a hash is not reported. The interfaces are those of test/kernels.
func TestReceiveQueues(t *testing.T) {
	if !onOtherKernels() {
		t.Skip("make test-kernels runs this test on a machine with multi-queue network interfaces")
	}
	sh(t, "ip link set eth0 up\n ip link set eth1 up")
	queues := func() (messages []string) {
		for _, finding := range findings(t, looking{Patterns: []string{"eth0", "eth1"}}) {
			if finding.Check == CheckQueues {
				messages = append(messages, finding.Message)
			}
		}
		return messages
	}
	if got := queues(); got != nil {
		t.Errorf("unmodified devices: findings %q, want none", got)
	}
	sh(t, "ethtool -N eth0 rx-flow-hash udp4 sd")
	const advice = "ethtool -N eth0 rx-flow-hash udp4 sdfn"
	want := "eth0 hashes UDP over IPv4 by addresses alone: all packets that another node encapsulates come in by one of its 2 receive " +
		"queues; run \"" + advice + "\" (docs/install.md, Uplinks)"
	if got := queues(); !slices.Equal(got, []string{want}) {
		t.Errorf("findings %q,\nwant %q", got, want)
	}
	sh(t, advice)
	if got := queues(); got != nil {
		t.Errorf("after the remedy: findings %q, want none", strings.Join(got, "; "))
	}
}
