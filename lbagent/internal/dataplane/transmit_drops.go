// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

const transmitDropsDirectory = "transmit_drops"

// TransmitDropsErr returns the reason why frames rejected by drivers are not counted, or nil.
func (d *Dataplane) TransmitDropsErr() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.transmitDropsErr
}

// UplinkTransmitDrops counts frames that the program sent and the interface's driver rejected.
type UplinkTransmitDrops struct {
	// Interface is the uplink, the interface below it, or a member of a bond.
	Interface string
	// Transmit counts frames to the interface on which they arrived, Redirect frames from another uplink.
	Transmit, Redirect uint64
}

// TransmitDrops returns the counters since the interfaces became uplinks, sorted by name, also if zero.
func (d *Dataplane) TransmitDrops() ([]UplinkTransmitDrops, error) {
	var drops []UplinkTransmitDrops
	var perCPU []bpf.TransmitDropsTransmitDrops
	for index, name := range d.interfaceNames.load() {
		err := d.maps.UplinkTxDrops.Lookup(index, &perCPU)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the transmit drops of %s: %w", name, err)
		}
		sum := UplinkTransmitDrops{Interface: name}
		for _, count := range perCPU {
			sum.Transmit += count.Transmit
			sum.Redirect += count.Redirect
		}
		drops = append(drops, sum)
	}
	slices.SortFunc(drops, func(a, b UplinkTransmitDrops) int { return cmp.Compare(a.Interface, b.Interface) })
	return drops, nil
}

type interfaceNames struct {
	current atomic.Pointer[map[uint32]string]
}

func (n *interfaceNames) load() map[uint32]string {
	if names := n.current.Load(); names != nil {
		return *names
	}
	return nil
}

func (d *Dataplane) watchTransmitDrops() error {
	names := map[uint32]string{}
	for i := range d.attachments {
		a := &d.attachments[i]
		if a.Mode == "" {
			continue
		}
		names[uint32(a.Index)], names[uint32(a.Device)] = a.Interface, a.DeviceName
		for _, member := range a.Members {
			if iface, err := net.InterfaceByIndex(member); err == nil {
				names[uint32(member)] = iface.Name
			}
		}
	}
	present, stale := map[uint32]bool{}, []uint32{}
	var index uint32
	var perCPU []bpf.TransmitDropsTransmitDrops
	entries := d.maps.UplinkTxDrops.Iterate()
	for entries.Next(&index, &perCPU) {
		present[index] = true
		if names[index] == "" {
			stale = append(stale, index)
		}
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("read map %s: %w", bpf.DatapathMapUplinkTxDrops, err)
	}
	for _, index := range stale {
		if err := remove(d.maps.UplinkTxDrops, bpf.DatapathMapUplinkTxDrops, index, index); err != nil {
			return err
		}
	}
	zero := make([]bpf.TransmitDropsTransmitDrops, ebpf.MustPossibleCPU())
	for index, name := range names {
		if present[index] {
			continue
		}
		if err := write(d.maps.UplinkTxDrops, bpf.DatapathMapUplinkTxDrops, name, index, zero); err != nil {
			return err
		}
	}
	d.interfaceNames.current.Store(&names)
	return nil
}

// countTransmitDrops attaches tracepoint programs that count this process's losses, in place of previous ones.
func (d *Dataplane) countTransmitDrops() error {
	if err := d.watchTransmitDrops(); err != nil || d.countsTransmitDrops {
		return err
	}
	objects, err := d.loadTransmitDrops()
	if err != nil {
		return err
	}
	defer objects.Close()
	directory := filepath.Join(d.config.PinRoot, transmitDropsDirectory)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("create pin directory %s: %w", directory, err)
	}
	for name, program := range map[string]*ebpf.Program{
		"xdp_exception":    objects.OnXdpException,
		"xdp_bulk_tx":      objects.OnXdpBulkTx,
		"xdp_redirect_err": objects.OnXdpRedirectErr,
		"xdp_devmap_xmit":  objects.OnXdpDevmapXmit,
	} {
		if err := attachTracepoint(name, program, filepath.Join(directory, name)); err != nil {
			return err
		}
	}
	d.countsTransmitDrops = true
	return nil
}

func (d *Dataplane) loadTransmitDrops() (*bpf.TransmitDropsObjects, error) {
	spec, err := bpf.LoadTransmitDrops()
	if err != nil {
		return nil, fmt.Errorf("read the compiled BPF programs that count transmit drops: %w", err)
	}
	info, err := d.programs.Ingress.Info()
	if err != nil {
		return nil, fmt.Errorf("inspect the XDP program: %w", err)
	}
	id, _ := info.ID()
	var namespace unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &namespace); err != nil {
		return nil, fmt.Errorf("read the network namespace: %w", err)
	}
	err = errors.Join(
		spec.Variables["ingress_program"].Set(uint32(id)),
		spec.Variables["network_namespace"].Set(uint32(namespace.Ino)))
	if err != nil {
		return nil, fmt.Errorf("configure the programs that count transmit drops: %w", err)
	}
	var objects bpf.TransmitDropsObjects
	err = spec.LoadAndAssign(&objects, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		bpf.TransmitDropsMapUplinkTxDrops: d.maps.UplinkTxDrops, bpf.TransmitDropsMapDropCounts: d.maps.DropCounts,
	}})
	if err != nil {
		return nil, fmt.Errorf("load the BPF programs that count transmit drops: %w", err)
	}
	return &objects, nil
}

// attachTracepoint replaces the pinned link, because a link to a tracepoint cannot be updated.
func attachTracepoint(name string, program *ebpf.Program, path string) error {
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: program})
	if err != nil {
		return fmt.Errorf("attach to tracepoint %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("replace pinned link %s: %w", path, err), l.Close())
	}
	if err := errors.Join(l.Pin(path), l.Close()); err != nil {
		return fmt.Errorf("pin link %s: %w", path, err)
	}
	return nil
}
