// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/test/isolated"
)

// lookVariable makes this program run the checks of the node, like a pod of `millrace preflight`.
const lookVariable = "MILLRACE_TEST_PREFLIGHT"

type looking struct {
	Patterns         []string
	Addresses, Nodes []netip.Addr
	// Old makes the kernel report version 2.6.
	Old bool
	// Answer answers other nodes until stdin ends.
	Answer bool
}

func TestMain(m *testing.M) {
	if text := os.Getenv(lookVariable); text != "" {
		if err := look(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const uname26 = 0x20000

func look(text string) error {
	var of looking
	if err := json.Unmarshal([]byte(text), &of); err != nil {
		return err
	}
	if of.Answer {
		ctx, stop := context.WithCancel(context.Background())
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop()
		}()
		return Serve(ctx)
	}
	if of.Old {
		runtime.LockOSThread()
		if _, _, errno := unix.Syscall(unix.SYS_PERSONALITY, uname26, 0, 0); errno != 0 {
			return errno
		}
	}
	facts, err := Read(of.Patterns, of.Addresses)
	if err != nil {
		return err
	}
	facts.ProbeNodes(context.Background(), of.Addresses, of.Nodes)
	return json.NewEncoder(os.Stdout).Encode(Evaluate(facts, false))
}

// self is a process of this program with the user and groups of `millrace preflight` pods.
func self(t *testing.T, of looking) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(of)
	must(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), lookVariable+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: 65532, Gid: 65532, Groups: []uint32{0}}, Pdeathsig: syscall.SIGKILL,
	}
	return cmd
}

func findings(t *testing.T, of looking) []consoleapi.Finding {
	t.Helper()
	cmd := self(t, of)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("collect findings: %v\n%s", err, stderr.String())
	}
	var all []consoleapi.Finding
	must(t, json.Unmarshal(output, &all))
	if len(all) < 9 {
		t.Errorf("only %+v were reported", all)
	}
	return slices.DeleteFunc(all, func(f consoleapi.Finding) bool { return f.Level == consoleapi.LevelOK })
}

// sh runs commands, one per line, whose words have no spaces.
func sh(t *testing.T, commands string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if output, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.TrimSpace(line), err, output)
		}
	}
}

func set(t *testing.T, name, value string) {
	t.Helper()
	write(t, "/proc/sys/"+name, value)
}

// healthy creates a node without findings, and a second one at 198.51.100.2 in the namespace far, which
// answers.
func healthy(t *testing.T) looking {
	t.Helper()
	must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
	must(t, unix.Mount("bpf", bpffsDirectory, "bpf", 0, ""))
	sh(t, `
		ip netns add far
		ip link add eth0 mtu 1400 type veth peer name eth0 mtu 1400 netns far
		ip link set lo up
		ip link set eth0 up
		ip addr add 198.51.100.1/24 dev eth0
		ip -n far link set lo up
		ip -n far link set eth0 up
		ip -n far addr add 198.51.100.2/24 dev eth0
		ip route add default via 198.51.100.254`)
	set(t, "net/ipv4/conf/all/rp_filter", "0")
	set(t, "net/ipv4/ip_forward", "1")
	set(t, "net/ipv6/conf/all/forwarding", "1")
	here, there := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	answer(t, func(do func() error) error { return do() })
	answer(t, func(do func() error) error { return within("far", do) })
	return looking{Addresses: []netip.Addr{here}, Nodes: []netip.Addr{there}}
}

// within runs do in a namespace. Its thread remains, because children end with their thread.
func within(namespace string, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		file, err := os.Open("/run/netns/" + namespace)
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = do()
		}
		done <- err
		select {}
	}()
	return <-done
}

func answer(t *testing.T, where func(do func() error) error) {
	t.Helper()
	cmd := self(t, looking{Answer: true})
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	must(t, err)
	must(t, where(cmd.Start))
	t.Cleanup(func() {
		must(t, input.Close())
		must(t, cmd.Wait())
	})
}

type realFault struct {
	// make causes it, and heal follows the message's advice.
	make, heal func(t *testing.T, of *looking)
	check      string
	level      consoleapi.Level
	message    string
}

const warns, breaks = consoleapi.LevelWarning, consoleapi.LevelFault

// commands runs iproute2 commands and sysctls as name=value.
func commands(text string) func(*testing.T, *looking) {
	return func(t *testing.T, _ *looking) {
		t.Helper()
		for line := range strings.Lines(text) {
			if name, value, found := strings.Cut(strings.TrimSpace(line), "="); found {
				set(t, name, value)
			} else {
				sh(t, line)
			}
		}
	}
}

func uplinks(patterns ...string) func(*testing.T, *looking) {
	return func(_ *testing.T, of *looking) { of.Patterns = patterns }
}

func mount(kind, directory string) func(*testing.T, *looking) {
	return func(t *testing.T, _ *looking) { must(t, unix.Mount(kind, directory, kind, 0, "")) }
}

func unmount(directory string) func(*testing.T, *looking) {
	return func(t *testing.T, _ *looking) { must(t, unix.Unmount(directory, 0)) }
}

// alone disables probing of other nodes, which would not answer.
func alone(_ *testing.T, of *looking) { of.Nodes = nil }

// addTun creates an interface without Ethernet, like WireGuard's.
func addTun(t *testing.T, _ *looking) {
	must(t, netlink.LinkAdd(&netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: "wg0"}, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true, Queues: 1,
	}))
}

func attachXDP(t *testing.T, _ *looking) {
	link, err := netlink.LinkByName("eth0")
	must(t, err)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, License: "Apache-2.0",
	})
	must(t, err)
	defer program.Close()
	must(t, netlink.LinkSetXdpFd(link, program.FD()))
}

func listen(t *testing.T, network, address string) {
	t.Helper()
	var listener io.Closer
	var err error
	if network == "tcp" {
		listener, err = net.Listen(network, address)
	} else {
		listener, err = net.ListenPacket(network, address)
	}
	must(t, err)
	t.Cleanup(func() { must(t, listener.Close()) })
}

// openSession opens a connection to the other node as a router.
func openSession(t *testing.T, _ *looking) {
	must(t, within("far", func() error {
		listener, err := net.Listen("tcp", "198.51.100.2:179")
		if err == nil {
			t.Cleanup(func() { must(t, listener.Close()) })
		}
		return err
	}))
	session, err := net.Dial("tcp", "198.51.100.2:179")
	must(t, err)
	t.Cleanup(func() { must(t, session.Close()) })
}

func inOrder(steps ...func(*testing.T, *looking)) func(*testing.T, *looking) {
	return func(t *testing.T, of *looking) {
		for _, step := range steps {
			step(t, of)
		}
	}
}

// Faults are reported with their remedy until it is applied. The test needs root.
func TestRealFaults(t *testing.T) {
	for _, faults := range []map[string]realFault{hostFaults(), uplinkFaults(), networkFaults()} {
		for name, fault := range faults {
			t.Run(name, func(t *testing.T) {
				if isolated.Test(t) {
					trip(t, &fault)
				}
			})
		}
	}
}

func trip(t *testing.T, fault *realFault) {
	t.Helper()
	of := healthy(t)
	healthy := expected(t)
	if fault.check == CheckDriver && !atLeast(release(t), 6, 3) {
		t.Skip("Linux before 6.3 does not report XDP features of drivers")
	}
	if got := findings(t, of); !sameFindings(got, healthy) {
		t.Errorf("healthy node: findings %+v, want none", got)
	}
	fault.make(t, &of)
	want := append(healthy, consoleapi.Finding{Check: fault.check, Level: fault.level, Message: fault.message})
	if fault.check == CheckKernel {
		want = want[len(healthy):]
	}
	if got := findings(t, of); !sameFindings(got, want) {
		t.Errorf("findings %+v,\nwant %+v", got, want)
	}
	if fault.heal == nil {
		return
	}
	fault.heal(t, &of)
	if got := findings(t, of); !sameFindings(got, healthy) {
		t.Errorf("after the remedy: findings %+v, want none", got)
	}
}

func release(t *testing.T) string {
	t.Helper()
	var name unix.Utsname
	must(t, unix.Uname(&name))
	return unix.ByteSliceToString(name.Release[:])
}

// varying matches program IDs and the release under Old.
var varying = regexp.MustCompile(`\bid [0-9]+|\b2\.6\.[^ ]+`)

func sameFindings(got, want []consoleapi.Finding) bool {
	byCheck := func(a, b consoleapi.Finding) int { return strings.Compare(a.Check, b.Check) }
	got, want = slices.SortedStableFunc(slices.Values(got), byCheck), slices.SortedStableFunc(slices.Values(want), byCheck)
	return slices.EqualFunc(got, want, func(a, b consoleapi.Finding) bool {
		a.Message, b.Message = varying.ReplaceAllString(a.Message, "N"), varying.ReplaceAllString(b.Message, "N")
		return a == b
	})
}

// expected returns the findings of a healthy node: below Linux 6.6 that tcx is missing.
func expected(t *testing.T) []consoleapi.Finding {
	t.Helper()
	if atLeast(release(t), 6, 6) {
		return nil
	}
	return []consoleapi.Finding{{Check: CheckTCX, Level: warns, Message: "Linux " + release(t) + " has no tcx, which requires 6.6: " +
		"the agent uses clsact, and programs attached later run before it (docs/install.md, Linux before 6.6)"}}
}

func hostFaults() map[string]realFault {
	const noBPFFS = "/sys/fs/bpf is not a BPF file system: mount it at each boot (mount -t bpf bpf /sys/fs/bpf), as systemd does"
	filter := func(program string) realFault {
		return realFault{
			make: commands(program + " -P FORWARD DROP"), check: CheckLegacy, level: warns,
			message: "the kernel has a table of " + program + ", whose rules agents do not read: check that `" + program +
				" -S FORWARD` accepts packets to and from the pod networks (docs/cni.md)",
		}
	}
	return map[string]realFault{
		"no-btf": {
			make: mount("tmpfs", "/sys/kernel/btf"), heal: unmount("/sys/kernel/btf"), check: CheckBTF, level: breaks,
			message: "/sys/kernel/btf/vmlinux does not exist: the kernel must be built with CONFIG_DEBUG_INFO_BTF",
		},
		"no-bpffs": {
			make: mount("tmpfs", bpffsDirectory), heal: mount("bpf", bpffsDirectory), check: CheckBPFFS, level: breaks, message: noBPFFS,
		},
		"no-forwarding": {
			make: commands("net/ipv4/ip_forward=0"), heal: commands("net/ipv4/ip_forward=1"), check: CheckForwarding, level: breaks,
			message: "net.ipv4.ip_forward is 0: packets of that family are not forwarded; set it to 1 at each boot (/etc/sysctl.d)",
		},
		"no-forwarding-of-ipv6": {
			make: func(t *testing.T, of *looking) {
				sh(t, "ip addr add 2001:db8::1/64 dev eth0 nodad")
				of.Addresses = append(of.Addresses, netip.MustParseAddr("2001:db8::1"))
				set(t, "net/ipv6/conf/all/forwarding", "0")
			},
			heal: commands("net/ipv6/conf/all/forwarding=1"), check: CheckForwarding, level: breaks,
			message: "net.ipv6.conf.all.forwarding is 0: packets of that family are not forwarded; set it to 1 at each boot (/etc/sysctl.d)",
		},
		"iptables-legacy":  filter("iptables-legacy"),
		"ip6tables-legacy": filter("ip6tables-legacy"),
	}
}

func uplinkFaults() map[string]realFault {
	const noUplink = "no interface has a default route or the node's address: name the uplinks (--uplinks of the agents; docs/install.md, Uplinks)"
	const down = "eth0 is down or has no carrier and receives no packets; see `ip link show eth0`, the cable and the switch"
	strict := func(name, setting, advice string) realFault {
		return realFault{
			make: inOrder(commands("ip link add "+name+" type veth peer name "+strings.ReplaceAll(name, "eth", "peer")+
				"\n ip link set "+name+" up\n ip link set "+strings.ReplaceAll(name, "eth", "peer")+" up"),
				commands("net/ipv4/conf/eth0/rp_filter=2\n net/ipv4/conf/"+setting+"/rp_filter=1"), uplinks("eth*")),
			heal: commands(advice), check: CheckFilter, level: warns,
			message: name + " filters strictly by the reverse path: IPv4 packets whose answers would leave by another uplink are dropped. " +
				"Run `sysctl -w net.ipv4.conf." + strings.ReplaceAll(name, ".", "/") + ".rp_filter=2`, also at each boot (/etc/sysctl.d)",
		}
	}
	return map[string]realFault{
		"no-uplink": {
			make: commands("ip route del default\n ip addr flush dev eth0\n ip link set lo up\n ip addr add 198.51.100.1/32 dev lo\n ip route add 198.51.100.2 dev eth0"),
			heal: uplinks("eth0"), check: CheckUplinks, level: breaks, message: noUplink,
		},
		"no-ethernet": {
			make: inOrder(addTun, commands("ip link set wg0 up\n ip route add default dev wg0 metric 1")),
			heal: uplinks("eth0"), check: CheckUplinks, level: breaks,
			message: "wg0 has no Ethernet header, so no program of Millrace can run there: name other uplinks (--uplinks of the agents)",
		},
		"set-down": {
			make: inOrder(alone, commands("ip link set eth0 down")), heal: commands("ip link set eth0 up\n ip route add default via 198.51.100.254"),
			check: CheckUplinks, level: warns, message: down,
		},
		"no-carrier": {
			make: inOrder(alone, commands("ip -n far link set eth0 down")), heal: commands("ip -n far link set eth0 up"),
			check: CheckUplinks, level: warns, message: down,
		},
		"no-native-xdp": {
			make: commands("ip link add br0 type bridge\n ip link set br0 up\n ip link set eth0 master br0\n ip addr flush dev eth0\n" +
				"ip addr add 198.51.100.1/24 dev br0\n ip route add default via 198.51.100.254"),
			heal: uplinks("eth0"), check: CheckDriver, level: warns,
			message: "the driver of br0 does not run XDP programs: they run in generic mode, which is slower",
		},
		"strict-filter":           strict("eth1", "eth1", "net/ipv4/conf/eth1/rp_filter=2"),
		"strict-filter-of-all":    strict("eth1", "all", "net/ipv4/conf/eth1/rp_filter=2"),
		"strict-filter-of-a-vlan": strict("eth0.5", "eth0.5", "net/ipv4/conf/eth0.5/rp_filter=2"),
	}
}

func networkFaults() map[string]realFault {
	port := func(network, address, name string) realFault {
		return realFault{
			make: func(t *testing.T, _ *looking) { listen(t, network, address) }, check: CheckPorts, level: breaks,
			message: "other programs of the node use " + name + ": stop them, or configure other ports for the agents (docs/install.md, Settings)",
		}
	}
	return map[string]realFault{
		"metrics-port": port("tcp", "198.51.100.1:7480", "TCP 7480"),
		"health-port":  port("tcp", "127.0.0.1:7481", "TCP 127.0.0.1:7481"),
		"live-port":    port("tcp", ":7482", "TCP 7482"),
		"bfd-port":     port("udp", "198.51.100.1:3784", "UDP 3784"),
		"multihop-bfd": port("udp", ":4784", "UDP 4784"),
		"bgp-listener": {
			make: func(t *testing.T, _ *looking) { listen(t, "tcp", "198.51.100.1:179") }, check: CheckBGP, level: warns,
			message: "another program of the node listens on TCP port 179: it may be a BGP speaker with a session to the router. Agents need the port for passive LBPeers and ranges of routers only",
		},
		"bgp-session": {make: openSession, check: CheckBGP, level: warns,
			message: "another BGP speaker of the node has a session with 198.51.100.2. A router takes one session from an address: " +
				"use another router, or a source address of its own (spec.sourceAddress of the LBPeer; docs/bgp.md)"},
		"firewall": {
			make: commands("ip netns exec far nft add table inet fw\n" +
				"ip netns exec far nft add chain inet fw input { type filter hook input priority 0 ; }\n" +
				"ip netns exec far nft add rule inet fw input udp dport 6081 drop"),
			heal: commands("ip netns exec far nft delete table inet fw"), check: CheckNodes, level: breaks,
			message: "198.51.100.2: no answer to UDP port 6081 from port 7482. Open both ports between the nodes' addresses, also for answers",
		},
		"narrow-path": {
			make: commands("ip -n far link set eth0 mtu 1300"), heal: commands("ip link set eth0 mtu 1300"), check: CheckMTU, level: breaks,
			message: "198.51.100.2: packets of 1400 bytes, the MTU of this node, do not arrive. Configure the same MTU on all nodes and switches between them (docs/install.md, MTU)",
		},
		"foreign-xdp": {
			make: attachXDP, check: CheckXDP, level: breaks,
			message: "eth0 has another XDP program (id 1; see `bpftool prog show id 1`): Millrace cannot attach. Disable that program, such as the CNI's XDP acceleration",
		},
		"old-kernel": {
			make: func(_ *testing.T, of *looking) { of.Old = true }, check: CheckKernel, level: breaks,
			message: "Linux 2.6.1 is too old: it must be 6.1 or later",
		},
	}
}
