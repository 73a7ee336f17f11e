// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

const (
	btfFile        = "/sys/kernel/btf/vmlinux"
	bpffsDirectory = "/sys/fs/bpf"
	openVSwitch    = "openvswitch"
	forwardIPv4    = "net.ipv4.ip_forward"
	forwardIPv6    = "net.ipv6.conf.all.forwarding"
)

// ports are the agents' listening ports with default flags.
var ports = []struct{ network, address string }{
	{"tcp", ":7480"}, {"tcp", "127.0.0.1:7481"}, {"tcp", ":7482"}, {"udp", ":7482"}, {"udp", ":3784"}, {"udp", ":4784"},
}

// legacyTables are the procfs files of iptables-legacy tables. Unlike running the programs, reading them
// creates no table.
var legacyTables = []struct{ program, file string }{
	{"iptables-legacy", "/proc/thread-self/net/ip_tables_names"},
	{"ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"},
}

// Read collects the facts of this node. patterns is the agents' --uplinks, addresses those of the Node.
func Read(patterns []string, addresses []netip.Addr) (*Facts, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, fmt.Errorf("read the version of the kernel: %w", err)
	}
	facts := &Facts{Kernel: unix.ByteSliceToString(name.Release[:]), BPFFS: isBPFFS(bpffsDirectory), Addresses: addresses, Forwarding: map[string]bool{}}
	_, err := os.Stat(btfFile)
	facts.BTF = err == nil
	for _, setting := range []string{forwardIPv4, forwardIPv6} {
		content, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(setting, ".", "/"))
		if err == nil {
			facts.Forwarding[setting] = strings.TrimSpace(string(content)) != "0"
		}
	}
	if err := facts.readLinks(patterns, addresses); err != nil {
		return nil, err
	}
	facts.Ports, facts.Legacy = usedPorts(), legacyPrograms()
	facts.BGP, err = bgpSockets("/proc/net/tcp", "/proc/net/tcp6")
	return facts, err
}

func (f *Facts) readLinks(patterns []string, addresses []netip.Addr) error {
	found, err := netdev.NewFinder(patterns).Find(addresses, nil, time.Now())
	if err != nil {
		return err
	}
	f.Uplinks = found.Links
	if f.XDPInterfaces, err = netdev.XDPInterfaces(found.Links); err != nil {
		return err
	}
	var uplinks, devices []string
	for _, uplink := range found.Links {
		uplinks = append(uplinks, uplink.Name)
	}
	for _, card := range f.XDPInterfaces {
		devices = append(devices, card.Name)
	}
	f.Filtered, f.Unspread = netdev.StrictlyFiltered(uplinks), netdev.SingleQueueTunnels(devices)
	return nil
}

// mtu returns the lowest MTU of uplinks that carry a node address, otherwise of all uplinks, or 0.
func (f *Facts) mtu() int {
	least := 0
	for _, carries := range []bool{true, false} {
		for _, uplink := range f.Uplinks {
			if (uplink.HasAddress || !carries) && (least == 0 || uplink.MTU < least) {
				least = uplink.MTU
			}
		}
		if least > 0 {
			break
		}
	}
	return least
}

func isBPFFS(directory string) bool {
	var stat unix.Statfs_t
	return unix.Statfs(directory, &stat) == nil && stat.Type == unix.BPF_FS_MAGIC
}

// legacyPrograms returns the iptables-legacy programs whose filter table, with the chain FORWARD, is loaded.
func legacyPrograms() (found []string) {
	for _, tables := range legacyTables {
		names, err := os.ReadFile(tables.file)
		if err == nil && slices.Contains(strings.Fields(string(names)), "filter") {
			found = append(found, tables.program)
		}
	}
	return found
}

func usedPorts() (found []string) {
	for _, port := range ports {
		var closer interface{ Close() error }
		var err error
		if port.network == "tcp" {
			closer, err = net.Listen(port.network, port.address)
		} else {
			closer, err = net.ListenPacket(port.network, port.address)
		}
		if err == nil {
			_ = closer.Close()
		} else if errors.Is(err, syscall.EADDRINUSE) {
			found = append(found, strings.ToUpper(port.network)+" "+strings.TrimPrefix(port.address, ":"))
		}
	}
	return found
}

// TCP states in /proc/net/tcp (include/net/tcp_states.h).
const (
	established = "01"
	listening   = "0A"
)

// bgpSockets returns the sockets of port 179 in files such as /proc/net/tcp. Missing files are skipped.
func bgpSockets(files ...string) (found []Socket, err error) {
	for _, file := range files {
		opened, err := os.Open(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the sockets of the node: %w", err)
		}
		lines := bufio.NewScanner(opened)
		lines.Scan()
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 4 || fields[3] != established && fields[3] != listening {
				continue
			}
			local, localErr := parseSocket(fields[1])
			remote, remoteErr := parseSocket(fields[2])
			if localErr != nil || remoteErr != nil {
				continue
			}
			if local.Port() == bgpPort || remote.Port() == bgpPort {
				found = append(found, Socket{Local: local, Remote: remote, Listens: fields[3] == listening})
			}
		}
		err = errors.Join(lines.Err(), opened.Close())
		if err != nil {
			return nil, fmt.Errorf("read the sockets of the node: %w", err)
		}
	}
	return found, nil
}

// parseSocket parses the kernel's address format: 32-bit words in native byte order.
func parseSocket(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	bytes, err := hex.DecodeString(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for i := 0; i+4 <= len(bytes); i += 4 {
		binary.NativeEndian.PutUint32(bytes[i:], binary.BigEndian.Uint32(bytes[i:]))
	}
	address, valid := netip.AddrFromSlice(bytes)
	if !valid {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", host)
	}
	return netip.AddrPortFrom(address.Unmap(), uint16(number)), nil
}
