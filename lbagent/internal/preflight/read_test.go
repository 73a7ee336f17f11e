// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/millrace-lb/millrace/test/isolated"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func addUplink(t *testing.T) netlink.Link {
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: 1400}, PeerName: "far"}
	must(t, netlink.LinkAdd(veth))
	link, err := netlink.LinkByName("eth0")
	must(t, err)
	for _, name := range []string{"eth0", "far", "lo"} {
		each, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(each))
	}
	address, err := netlink.ParseAddr("198.51.100.1/24")
	must(t, err)
	must(t, netlink.AddrAdd(link, address))
	_, all, err := net.ParseCIDR("0.0.0.0/0")
	must(t, err)
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Gw: net.IPv4(198, 51, 100, 254)}))
	return link
}

func write(t *testing.T, file, text string) {
	t.Helper()
	must(t, os.WriteFile(file, []byte(text), 0o644))
}

// Faults are caused on a real node one by one. It needs root.
func TestRead(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	link := addUplink(t)
	write(t, "/proc/sys/net/ipv4/ip_forward", "1")
	read := func() *Facts {
		t.Helper()
		facts, err := Read(nil, []netip.Addr{netip.MustParseAddr("198.51.100.1")})
		must(t, err)
		return facts
	}
	facts := read()
	if !facts.Forwarding[forwardIPv4] || len(facts.Ports) > 0 || len(facts.Legacy) > 0 || len(facts.BGP) > 0 || facts.mtu() != 1400 || facts.Kernel == "" || !facts.BTF {
		t.Errorf("facts = %+v", facts)
	}
	if len(facts.Uplinks) != 1 || facts.Uplinks[0].Name != "eth0" || len(facts.XDPInterfaces) != 1 {
		t.Fatalf("uplinks = %+v, XDP interfaces = %+v", facts.Uplinks, facts.XDPInterfaces)
	}
	if card := facts.XDPInterfaces[0]; card.Name != "eth0" || card.Kind != "veth" || card.Program != 0 {
		t.Errorf("XDP interface = %+v", card)
	}

	write(t, "/proc/sys/net/ipv4/ip_forward", "0")
	if read().Forwarding[forwardIPv4] {
		t.Error("forwarding is disabled, but reported as enabled")
	}

	output, err := exec.Command("iptables-legacy", "-P", "FORWARD", "DROP").CombinedOutput()
	if err != nil {
		t.Fatalf("iptables-legacy: %v\n%s", err, output)
	}
	if got := read().Legacy; !slices.Equal(got, []string{"iptables-legacy"}) {
		t.Errorf("legacy tables of %q were reported, want only iptables-legacy", got)
	}

	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, License: "Apache-2.0",
	})
	must(t, err)
	defer program.Close()
	must(t, netlink.LinkSetXdpFd(link, program.FD()))
	info, err := program.Info()
	must(t, err)
	if id, _ := info.ID(); read().XDPInterfaces[0].Program != uint32(id) {
		t.Errorf("program = %d, got %+v", id, read().XDPInterfaces[0])
	}

	metrics, err := net.Listen("tcp", "198.51.100.1:7480")
	must(t, err)
	defer metrics.Close()
	probes, err := net.ListenPacket("udp", "127.0.0.1:7482")
	must(t, err)
	defer probes.Close()
	if got := read().Ports; !slices.Equal(got, []string{"TCP 7480", "UDP 7482"}) {
		t.Errorf("ports in use = %q", got)
	}

	speaker, err := net.Listen("tcp", "198.51.100.1:179")
	must(t, err)
	defer speaker.Close()
	if got := read().BGP; len(got) != 1 || !got[0].Listens || got[0].Local.String() != "198.51.100.1:179" {
		t.Errorf("listening BGP speaker = %+v", got)
	}
	session, err := net.Dial("tcp", "198.51.100.1:179")
	must(t, err)
	defer session.Close()
	if !slices.ContainsFunc(read().BGP, func(s Socket) bool { return !s.Listens && s.Remote.String() == "198.51.100.1:179" }) {
		t.Errorf("BGP session = %+v", read().BGP)
	}
}

// Nodes that answer or not, and a narrow path. It needs root.
func TestProbeNodes(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	addUplink(t)
	loopback, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetMTU(loopback, 1500))
	ctx, stop := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() { answered <- Serve(ctx) }()
	here, nobody := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.77")
	for _, test := range []struct {
		length int
		want   []Reachability
	}{
		{1400, []Reachability{{here, true, true, 1400}, {nobody, false, false, 1400}}},
		{9000, []Reachability{{here, true, false, 9000}, {nobody, false, false, 9000}}},
	} {
		facts, err := Read(nil, []netip.Addr{here})
		must(t, err)
		facts.Uplinks[0].MTU = test.length
		if facts.ProbeNodes(ctx, []netip.Addr{here}, []netip.Addr{here, nobody}); !slices.Equal(facts.Reached, test.want) || facts.NotProbed != "" {
			t.Errorf("reached nodes = %+v (%s), want %+v", facts.Reached, facts.NotProbed, test.want)
		}
	}
	taken, err := net.ListenPacket("udp", ":7482")
	must(t, err)
	facts := fine()
	if facts.ProbeNodes(ctx, nil, []netip.Addr{here}); facts.NotProbed == "" {
		t.Error("no error although another program uses the source port")
	}
	must(t, taken.Close())
	stop()
	must(t, <-answered)

	geneve, err := net.ListenPacket("udp", ":6081")
	must(t, err)
	defer geneve.Close()
	ctx, stop = context.WithCancel(t.Context())
	go func() { answered <- Serve(ctx) }()
	facts = fine()
	if facts.ProbeNodes(ctx, []netip.Addr{here}, []netip.Addr{nobody}); !strings.Contains(facts.NotProbed, "6081") {
		t.Errorf("error %q does not mention the port in use", facts.NotProbed)
	}
	stop()
	must(t, <-answered)
}
