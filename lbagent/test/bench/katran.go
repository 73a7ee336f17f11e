// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

// Katran's balancer (github.com/facebookincubator/katran, katran/lib/bpf) is compiled from the user's checkout
// with its defaults. It has this node's VIPs and the other nodes as reals, uses IPIP, and writes no tag.

type katranPrograms struct {
	// recording creates an entry for each new flow. Katran's default limit of 125,000 entries per second and
	// processor would prevent a million flows.
	recording *katranObjects
	// flooded treats each new flow as above the limit and creates no entry.
	flooded *katranObjects
}

type katranObjects struct {
	Ingress *ebpf.Program `ebpf:"balancer_ingress"`
	VIPs    *ebpf.Map     `ebpf:"vip_map"`
	Rings   *ebpf.Map     `ebpf:"ch_rings"`
	Reals   *ebpf.Map     `ebpf:"reals"`
	Control *ebpf.Map     `ebpf:"ctl_array"`
	LRUs    *ebpf.Map     `ebpf:"lru_mapping"`
}

// Sizes and flags of Katran (katran/lib/bpf/balancer_consts.h).
const (
	katranRing     = 65537
	katranRealIPv6 = 1
)

// Layouts of Katran's maps (katran/lib/bpf/balancer_structs.h). Addresses and ports are in network order; an
// IPv4 address is in the first four bytes.
type (
	katranVIP struct {
		Address  [16]byte
		Port     [2]byte
		Protocol uint8
		_        uint8
	}
	katranVIPMeta struct{ Flags, Number uint32 }
	katranReal    struct {
		Address [16]byte
		Flags   uint8
		_       [3]uint8
	}
	katranControl struct {
		MAC [6]byte
		_   [2]byte
	}
)

func newKatran(checkout string) (*katranPrograms, error) {
	directory, err := os.MkdirTemp("", "millrace-bench-katran-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	k := &katranPrograms{}
	for rate, into := range map[uint32]**katranObjects{^uint32(0) >> 1: &k.recording, 0: &k.flooded} {
		object := filepath.Join(directory, fmt.Sprintf("balancer-%d.o", rate))
		if err := compileKatran(checkout, object, rate); err != nil {
			return nil, errors.Join(err, k.close())
		}
		if *into, err = loadKatran(object); err != nil {
			return nil, errors.Join(err, k.close())
		}
	}
	return k, nil
}

// compileKatran compiles the balancer with a limit of new flows per second and the data plane's compiler flags.
func compileKatran(checkout, object string, rate uint32) error {
	source := filepath.Join(checkout, "katran/lib/bpf/balancer.bpf.c")
	// The C library's headers (for string.h) depend on the architecture.
	architecture := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	compiler := exec.CommandContext(context.Background(), "clang-19", "-O2", "-g", "-mcpu=v3", "-target", "bpf",
		"-Wno-everything", fmt.Sprintf("-DMAX_CONN_RATE=%d", rate), "-I", checkout,
		"-idirafter", "/usr/include/"+architecture+"-linux-gnu", "-D__"+architecture+"__", "-c", source, "-o", object)
	if out, err := compiler.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s of Katran (needs clang-19 and a checkout of github.com/facebookincubator/katran): %w\n%s",
			source, err, out)
	}
	return nil
}

func loadKatran(object string) (*katranObjects, error) {
	spec, err := ebpf.LoadCollectionSpec(object)
	if err != nil {
		return nil, fmt.Errorf("read Katran's compiled balancer: %w", err)
	}
	// The replay program can only call programs of the same type.
	if err := alike(spec, "balancer_ingress", "ingress"); err != nil {
		return nil, err
	}
	k := &katranObjects{}
	if err := spec.LoadAndAssign(k, nil); err != nil {
		return nil, fmt.Errorf("load Katran's balancer: %w", err)
	}
	if err := k.fill(spec.Maps["lru_mapping"].InnerMap); err != nil {
		return nil, errors.Join(fmt.Errorf("fill the maps of Katran's balancer: %w", err), k.close())
	}
	return k, nil
}

// fill writes the content of Katran's control plane: VIPs, their rings of reals, and a flow table per processor
// of the data plane's size.
func (k *katranObjects) fill(lru *ebpf.MapSpec) error {
	control := katranControl{MAC: [6]byte(nextHopMAC)}
	if err := k.Control.Put(uint32(0), control); err != nil {
		return err
	}
	lru = lru.Copy()
	lru.MaxEntries = connections
	for cpu := range ebpf.MustPossibleCPU() {
		m, err := ebpf.NewMap(lru)
		if err != nil {
			return err
		}
		if err := errors.Join(k.LRUs.Put(uint32(cpu), m), m.Close()); err != nil {
			return err
		}
	}
	number := uint32(0)
	for i, f := range families {
		// Real 0 is invalid.
		first := uint32(1 + i*perNodes)
		for n, to := range f.reals() {
			real := katranReal{Address: networkOrder(to)}
			if to.Is6() {
				real.Flags = katranRealIPv6
			}
			if err := k.Reals.Put(first+uint32(n), real); err != nil {
				return err
			}
		}
		for _, port := range []uint16{portAway, portHere} {
			vip := katranVIP{Address: networkOrder(f.vip), Protocol: tcp}
			binary.BigEndian.PutUint16(vip.Port[:], port)
			if err := errors.Join(k.VIPs.Put(vip, katranVIPMeta{Number: number}), k.fillRing(number, first)); err != nil {
				return err
			}
			number++
		}
	}
	return nil
}

// fillRing distributes a VIP's ring over the reals of a family. The order does not affect the cost.
func (k *katranObjects) fillRing(vip, first uint32) error {
	keys, values := make([]uint32, katranRing), make([]uint32, katranRing)
	for i := range keys {
		keys[i], values[i] = vip*katranRing+uint32(i), first+uint32(i%perNodes)
	}
	_, err := k.Rings.BatchUpdate(keys, values, nil)
	return err
}

func (f family) reals() []netip.Addr {
	all, known := make([]netip.Addr, perNodes), nodes()
	for i := range all {
		node := known[f.firstNode+forwarding.NodeID(i)]
		all[i] = node.IPv4
		if f.client.Is6() {
			all[i] = node.IPv6
		}
	}
	return all
}

func networkOrder(a netip.Addr) (all [16]byte) {
	copy(all[:], a.AsSlice())
	return all
}

func (k *katranPrograms) join(subjects []subject, name string, f family) []subject {
	if k == nil || !slices.Contains([]string{awayOne, awayMany, awaySYN, hereSYN}, name) {
		return subjects
	}
	subjects = append(slices.Clone(subjects), subject{katran, k.recording.Ingress, rig.XDPTX, f.ipip})
	if name == awaySYN || name == hereSYN {
		subjects = append(subjects, subject{katranFlooded, k.flooded.Ingress, rig.XDPTX, f.ipip})
	}
	return subjects
}

// ipip checks that the packet is encapsulated for one of the reals (RFC 2003 section 3.1, RFC 2473 section 3).
func (f family) ipip(sent, got []byte) error {
	header := int(f.ipHeader())
	if len(got) != f.length+header {
		return fmt.Errorf("it has %d bytes, want %d", len(got), f.length+header)
	}
	outer, inner := got[ethernetLength:ethernetLength+header], slices.Concat(sent[:ethernetLength], got[ethernetLength+header:])
	if want := f.withClient(sent, inner); !bytes.Equal(inner, want) {
		return fmt.Errorf("the packet inside is %x, want %x", inner, want)
	}
	if !bytes.HasPrefix(got, nextHopMAC) {
		return fmt.Errorf("it goes to %s, want %s", net.HardwareAddr(got[:6]), nextHopMAC)
	}
	to, _ := netip.AddrFromSlice(outer[header-len(f.vip.AsSlice()):])
	if !slices.Contains(f.reals(), to) {
		return fmt.Errorf("it goes to %s, which is no real", to)
	}
	return nil
}

func (k *katranPrograms) close() error {
	if k == nil {
		return nil
	}
	return errors.Join(k.recording.close(), k.flooded.close())
}

func (k *katranObjects) close() error {
	if k == nil {
		return nil
	}
	return errors.Join(k.Ingress.Close(), k.VIPs.Close(), k.Rings.Close(), k.Reals.Close(), k.Control.Close(),
		k.LRUs.Close())
}
