// SPDX-License-Identifier: Apache-2.0

// Package preflight checks whether a node can run Millrace, before and after the installation. It needs no
// privileges and changes nothing.
package preflight

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// Facts are the facts of a node.
type Facts struct {
	Kernel string
	// BTF is true if the kernel has BTF, BPFFS if the BPF file system is mounted at the agents' path.
	BTF, BPFFS bool
	Addresses  []netip.Addr
	// Forwarding maps sysctls to their values; missing sysctls are absent, for example without IPv6.
	Forwarding    map[string]bool
	Uplinks       []netdev.Link
	XDPInterfaces []netdev.XDPInterface
	// Filtered are uplinks with strict reverse path filtering, Unspread the result of
	// netdev.SingleQueueTunnels.
	Filtered, Unspread []string
	// Legacy are the iptables-legacy programs with a loaded filter table.
	Legacy []string
	// Ports are those in use by other programs, such as "TCP 7480"; BGP has the sockets of port 179.
	Ports     []string
	BGP       []Socket
	Reached   []Reachability
	NotProbed string
}

// Socket is a TCP socket.
type Socket struct {
	Local, Remote netip.AddrPort
	Listens       bool
}

// Reachability is the result of probing another node.
type Reachability struct {
	Address netip.Addr
	// Answers and FullSize report answers to a small packet and to one of Length bytes, the MTU of the uplink.
	Answers, FullSize bool
	Length            int
}

// Names of checks.
const (
	CheckKernel     = "kernel"
	CheckBTF        = "btf"
	CheckTCX        = "tcx"
	CheckBPFFS      = "bpffs"
	CheckForwarding = "forwarding"
	CheckUplinks    = "uplinks"
	CheckXDP        = "xdp"
	CheckDriver     = "driver"
	CheckOVS        = "openvswitch"
	CheckFilter     = "rp_filter"
	CheckQueues     = "receive-queues"
	CheckLegacy     = "iptables-legacy"
	CheckPorts      = "ports"
	CheckBGP        = "bgp"
	CheckNodes      = "nodes"
	CheckMTU        = "mtu"
)

// Evaluate returns the findings. If installed is true, checks that would find Millrace's own programs, ports
// and sessions are skipped, because agents report conflicts themselves (LBNodeReport).
func Evaluate(facts *Facts, installed bool) []consoleapi.Finding {
	found := slices.Concat(facts.kernel(), facts.files(), facts.forwarding(), facts.uplinks(), facts.host())
	if !installed {
		found = slices.Concat(found, facts.programs(), facts.ports(), facts.speakers(), facts.nodes())
	}
	return found
}

func ok(check, format string, args ...any) consoleapi.Finding {
	return consoleapi.Finding{Check: check, Level: consoleapi.LevelOK, Message: fmt.Sprintf(format, args...)}
}

func warning(check, format string, args ...any) consoleapi.Finding {
	return consoleapi.Finding{Check: check, Level: consoleapi.LevelWarning, Message: fmt.Sprintf(format, args...)}
}

func fault(check, format string, args ...any) consoleapi.Finding {
	return consoleapi.Finding{Check: check, Level: consoleapi.LevelFault, Message: fmt.Sprintf(format, args...)}
}

// atLeast compares a release with a version; unparsable releases count as new enough.
func atLeast(release string, major, minor int) bool {
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) < 2 {
		return true
	}
	first, err := strconv.Atoi(parts[0])
	second, other := strconv.Atoi(parts[1])
	if err != nil || other != nil {
		return true
	}
	return first > major || first == major && second >= minor
}

func (f *Facts) kernel() []consoleapi.Finding {
	switch {
	case !atLeast(f.Kernel, 6, 1):
		return []consoleapi.Finding{fault(CheckKernel, "Linux %s is too old: it must be 6.1 or later", f.Kernel)}
	case !atLeast(f.Kernel, 6, 6):
		return []consoleapi.Finding{
			ok(CheckKernel, "Linux %s", f.Kernel),
			warning(CheckTCX, "Linux %s has no tcx, which requires 6.6: the agent uses clsact, and programs attached later run before it (docs/install.md, Linux before 6.6)", f.Kernel),
		}
	}
	return []consoleapi.Finding{ok(CheckKernel, "Linux %s", f.Kernel), ok(CheckTCX, "Linux 6.6 or later has it")}
}

func (f *Facts) files() []consoleapi.Finding {
	found := []consoleapi.Finding{ok(CheckBTF, "%s is there", btfFile), ok(CheckBPFFS, "%s is mounted", bpffsDirectory)}
	if !f.BTF {
		found[0] = fault(CheckBTF, "%s does not exist: the kernel must be built with CONFIG_DEBUG_INFO_BTF", btfFile)
	}
	if !f.BPFFS {
		found[1] = fault(CheckBPFFS, "%s is not a BPF file system: mount it at each boot (mount -t bpf bpf %s), as systemd does",
			bpffsDirectory, bpffsDirectory)
	}
	return found
}

func (f *Facts) forwarding() []consoleapi.Finding {
	var off []string
	for name, on := range f.Forwarding {
		if !on && f.mayUse(name) {
			off = append(off, name)
		}
	}
	if len(off) == 0 {
		return []consoleapi.Finding{ok(CheckForwarding, "IP forwarding is on")}
	}
	slices.Sort(off)
	level, unless := fault, ""
	if len(f.Addresses) == 0 {
		unless = ", unless the cluster does not use the family"
		if !slices.Contains(off, forwardIPv4) {
			// IPv4-only clusters work without it.
			level = warning
		}
	}
	return []consoleapi.Finding{level(CheckForwarding, "%s is 0: packets of that family are not forwarded; set it to 1 at each boot "+
		"(/etc/sysctl.d)%s", strings.Join(off, " and "), unless)}
}

// mayUse reports whether the cluster may use the sysctl's family: the Node has an address of it or its
// addresses are unknown.
func (f *Facts) mayUse(setting string) bool {
	return len(f.Addresses) == 0 ||
		slices.ContainsFunc(f.Addresses, func(a netip.Addr) bool { return a.Unmap().Is4() == (setting == forwardIPv4) })
}

func (f *Facts) uplinks() []consoleapi.Finding {
	if len(f.Uplinks) == 0 {
		return []consoleapi.Finding{fault(CheckUplinks, "no interface has a default route or the node's address: name the uplinks "+
			"(--uplinks of the agents; docs/install.md, Uplinks)")}
	}
	var names []string
	var bad []consoleapi.Finding
	for _, uplink := range f.Uplinks {
		names = append(names, uplink.Name)
		if !uplink.Ethernet {
			bad = append(bad, fault(CheckUplinks, "%s has no Ethernet header, so no program of Millrace can run there: "+
				"name other uplinks (--uplinks of the agents)", uplink.Name))
		}
		if !uplink.Up {
			bad = append(bad, warning(CheckUplinks, "%[1]s is down or has no carrier and receives no packets; see `ip link show %[1]s`, the cable and the switch", uplink.Name))
		}
	}
	return append([]consoleapi.Finding{ok(CheckUplinks, "%s", strings.Join(names, ", "))}, bad...)
}

func (f *Facts) runsNothing(card *netdev.XDPInterface) bool {
	return slices.ContainsFunc(f.Uplinks, func(u netdev.Link) bool { return u.Name == card.Name && !u.Ethernet })
}

// host returns the findings that agents also report in HostCompatible, except tables of iptables-legacy,
// which mostly accept all packets.
func (f *Facts) host() []consoleapi.Finding {
	var found []consoleapi.Finding
	for i := range f.XDPInterfaces {
		card := &f.XDPInterfaces[i]
		if card.Kind == openVSwitch || card.Master == openVSwitch {
			found = append(found, fault(CheckOVS, "%s belongs to Open vSwitch, which processes packets before and instead of the kernel's stack: move the node's address to a separate NIC, bond or VLAN, and configure that (--uplinks of the agents)", card.Name))
		}
		if card.Known && !card.Native && !f.runsNothing(card) {
			found = append(found, warning(CheckDriver, "the driver of %s does not run XDP programs: they run in generic mode, "+
				"which is slower", card.Name))
		}
	}
	if !slices.ContainsFunc(found, func(x consoleapi.Finding) bool { return x.Check == CheckDriver }) && len(f.XDPInterfaces) > 0 {
		found = append(found, ok(CheckDriver, "%s", drivers(f.XDPInterfaces)))
	}
	for _, message := range netdev.FilterProblems(f.Filtered) {
		found = append(found, warning(CheckFilter, "%s", message))
	}
	for _, message := range f.Unspread {
		found = append(found, warning(CheckQueues, "%s", message))
	}
	for _, program := range f.Legacy {
		found = append(found, warning(CheckLegacy, "the kernel has a table of %s, whose rules agents do not read: check that "+
			"`%s -S FORWARD` accepts packets to and from the pod networks (docs/cni.md)", program, program))
	}
	return found
}

func drivers(devices []netdev.XDPInterface) string {
	var native, unknown []string
	for _, card := range devices {
		if card.Known {
			native = append(native, card.Name)
		} else {
			unknown = append(unknown, card.Name)
		}
	}
	var texts []string
	if len(native) > 0 {
		texts = append(texts, strings.Join(native, ", ")+": native XDP")
	}
	if len(unknown) > 0 {
		texts = append(texts, strings.Join(unknown, ", ")+": unknown, because Linux before 6.3 does not report it")
	}
	return strings.Join(texts, "; ")
}

func (f *Facts) programs() []consoleapi.Finding {
	var found []consoleapi.Finding
	for _, card := range f.XDPInterfaces {
		if card.Program != 0 {
			found = append(found, fault(CheckXDP, "%s has another XDP program (id %d; see `bpftool prog show id %d`): Millrace cannot attach. Disable that program, such as the CNI's XDP acceleration", card.Name, card.Program, card.Program))
		}
	}
	if found == nil {
		return []consoleapi.Finding{ok(CheckXDP, "no other XDP program")}
	}
	return found
}

func (f *Facts) ports() []consoleapi.Finding {
	if len(f.Ports) == 0 {
		return []consoleapi.Finding{ok(CheckPorts, "all are free")}
	}
	return []consoleapi.Finding{fault(CheckPorts, "other programs of the node use %s: stop them, or configure other ports for the agents "+
		"(docs/install.md, Settings)", strings.Join(f.Ports, ", "))}
}

const bgpPort = 179

func (f *Facts) speakers() []consoleapi.Finding {
	var routers []string
	listens := false
	for _, socket := range f.BGP {
		listens = listens || socket.Listens
		if !socket.Listens {
			routers = append(routers, socket.Remote.Addr().String())
		}
	}
	slices.Sort(routers)
	routers = slices.Compact(routers)
	switch {
	case len(routers) > 0:
		return []consoleapi.Finding{warning(CheckBGP, "another BGP speaker of the node has a session with %s. A router takes one session "+
			"from an address: use another router, or a source address of its own (spec.sourceAddress of the LBPeer; docs/bgp.md)",
			strings.Join(routers, ", "))}
	case listens:
		return []consoleapi.Finding{warning(CheckBGP, "another program of the node listens on TCP port 179: it may be a BGP speaker "+
			"with a session to the router. Agents need the port for passive LBPeers and ranges of routers only")}
	}
	return []consoleapi.Finding{ok(CheckBGP, "no other BGP speaker")}
}

func (f *Facts) nodes() []consoleapi.Finding {
	if f.NotProbed != "" {
		return []consoleapi.Finding{warning(CheckNodes, "reachability of other nodes was not tested: %s", f.NotProbed)}
	}
	var silent, short []string
	length := 0
	for _, reached := range f.Reached {
		switch {
		case !reached.Answers:
			silent = append(silent, reached.Address.String())
		case !reached.FullSize:
			short, length = append(short, reached.Address.String()), reached.Length
		}
	}
	found := []consoleapi.Finding{ok(CheckNodes, "%d other nodes answer", len(f.Reached))}
	if len(silent) > 0 {
		found[0] = fault(CheckNodes, "%s: no answer to UDP port 6081 from port 7482. Open both ports between the nodes' addresses, "+
			"also for answers", list(silent))
	}
	if f.mtu() == 0 {
		// Without an uplink, which is a separate finding, no long packet was sent.
		return found
	}
	if len(short) > 0 {
		return append(found, fault(CheckMTU, "%s: packets of %d bytes, the MTU of this node, do not arrive. Configure the same MTU on all nodes and switches between them (docs/install.md, MTU)", list(short), length))
	}
	return append(found, ok(CheckMTU, "packets as long as the MTU arrive"))
}

func list(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
