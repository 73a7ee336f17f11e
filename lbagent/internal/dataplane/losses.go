// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

// lossDirectory has the pins of the programs that count what drivers did not take.
const lossDirectory = "losses"

// LossesUncounted is why frames that drivers did not take are not counted, or nil.
func (d *Dataplane) LossesUncounted() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lossErr
}

// Losses counts the frames that the program sent and a driver did not take.
func (d *Dataplane) Losses() (uint64, error) {
	var total uint64
	for _, reason := range []bpf.DatapathDropReason{bpf.DatapathDropReasonDROP_TRANSMIT, bpf.DatapathDropReasonDROP_REDIRECT} {
		var perCPU []uint64
		if err := d.maps.DropCounts.Lookup(uint32(reason), &perCPU); err != nil {
			return 0, fmt.Errorf("read how many frames drivers did not take: %w", err)
		}
		for _, count := range perCPU {
			total += count
		}
	}
	return total, nil
}

// countLosses lets the kernel's tracepoints count what this process's program loses, in place of
// those of a former process.
func (d *Dataplane) countLosses() error {
	if d.lossesCounted {
		return nil
	}
	objects, err := d.loadLosses()
	if err != nil {
		return err
	}
	defer objects.Close()
	directory := filepath.Join(d.config.PinRoot, lossDirectory)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("create pin directory %s: %w", directory, err)
	}
	for name, program := range map[string]*ebpf.Program{
		"xdp_exception":    objects.SentBack,
		"xdp_redirect_err": objects.Redirected,
		"xdp_devmap_xmit":  objects.RedirectedTogether,
	} {
		if err := attachTracepoint(name, program, filepath.Join(directory, name)); err != nil {
			return err
		}
	}
	d.lossesCounted = true
	return nil
}

func (d *Dataplane) loadLosses() (*bpf.LossesObjects, error) {
	spec, err := bpf.LoadLosses()
	if err != nil {
		return nil, fmt.Errorf("read the compiled BPF programs that count losses: %w", err)
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
		return nil, fmt.Errorf("set what the programs that count losses look for: %w", err)
	}
	spec.Maps[bpf.DatapathMapUplinks].MaxEntries = d.maps.Uplinks.MaxEntries()
	var objects bpf.LossesObjects
	err = spec.LoadAndAssign(&objects, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		bpf.DatapathMapUplinks: d.maps.Uplinks, bpf.DatapathMapDropCounts: d.maps.DropCounts,
	}})
	if err != nil {
		return nil, fmt.Errorf("load the BPF programs that count losses: %w", err)
	}
	return &objects, nil
}

// attachTracepoint attaches the program and pins the link, in place of a former one. A link to a
// tracepoint cannot be updated.
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
