// SPDX-License-Identifier: Apache-2.0

// Package attach attaches BPF programs to interfaces and detaches them. Attached programs are pinned, so that
// they outlive the process and the next one replaces them without a gap.
package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Kind is the kind of attachment, part of the pin's name "<interface index>-<kind>".
type Kind string

const (
	linkNative    Kind = "xdp-native"
	linkGeneric   Kind = "xdp-generic"
	linkIngress   Kind = "tcx-ingress"
	linkEgress    Kind = "tcx-egress"
	filterIngress Kind = "clsact-ingress"
	filterEgress  Kind = "clsact-egress"

	tagOffload        Kind = "rx-vlan"
	serviceTagOffload Kind = "rx-vlan-stag"
)

// detachOrder detaches ingress before egress, which translates the replies.
var detachOrder = []Kind{linkNative, linkGeneric, linkIngress, filterIngress, linkEgress, filterEgress,
	tagOffload, serviceTagOffload}

// Pin is the pin of a link, or for a clsact filter, which has no link, an empty directory as its record.
type Pin struct {
	path string
	// Interface is an interface index.
	Interface int
	Kind      Kind
}

func newPin(dir string, ifindex int, kind Kind) Pin {
	name := strconv.Itoa(ifindex) + "-" + string(kind)
	return Pin{path: filepath.Join(dir, name), Interface: ifindex, Kind: kind}
}

// Pins lists the pins of a directory, which may be missing.
func Pins(dir string) ([]Pin, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the pinned links: %w", err)
	}
	pins := make([]Pin, 0, len(entries))
	for _, entry := range entries {
		index, kind, _ := strings.Cut(entry.Name(), "-")
		ifindex, err := strconv.Atoi(index)
		if err != nil {
			return nil, fmt.Errorf("list the pinned links: %s is not a link of Millrace", filepath.Join(dir, entry.Name()))
		}
		pins = append(pins, newPin(dir, ifindex, Kind(kind)))
	}
	return pins, nil
}

// open loads the link. If the link's interface is gone, it removes the pin and returns fs.ErrNotExist.
func (p Pin) open() (link.Link, error) {
	l, err := link.LoadPinnedLink(p.path, nil)
	if err != nil {
		return nil, fmt.Errorf("load pinned link %s: %w", p.path, err)
	}
	info, err := l.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("inspect pinned link %s: %w", p.path, err), l.Close())
	}
	if linkIfindex(info) == p.Interface {
		return l, nil
	}
	if err := errors.Join(l.Unpin(), l.Close()); err != nil {
		return nil, fmt.Errorf("remove link %s of a deleted interface: %w", p.path, err)
	}
	return nil, fmt.Errorf("load pinned link %s: its interface was deleted: %w", p.path, fs.ErrNotExist)
}

func linkIfindex(info *link.Info) int {
	if xdp := info.XDP(); xdp != nil {
		return int(xdp.Ifindex)
	}
	if tcx := info.TCX(); tcx != nil {
		return int(tcx.Ifindex)
	}
	return 0
}

// update replaces the program of a pinned link without a gap. It returns false if there is no link.
func (p Pin) update(prog *ebpf.Program) (bool, error) {
	if p.isFilter() {
		return p.updateFilter(prog)
	}
	l, err := p.open()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := errors.Join(l.Update(prog), l.Close()); err != nil {
		return true, fmt.Errorf("replace the program of link %s: %w", p.path, err)
	}
	return true, nil
}

func (p Pin) keep(l link.Link) error {
	if err := errors.Join(l.Pin(p.path), l.Close()); err != nil {
		return fmt.Errorf("pin link %s: %w", p.path, err)
	}
	return nil
}

func (p Pin) detach() error {
	if p.isFilter() {
		return p.detachFilter()
	}
	if p.isTagFeature() {
		return p.restore()
	}
	l, err := p.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// Close alone does not detach while others hold the link open.
	if err := errors.Join(l.Unpin(), l.Detach(), l.Close()); err != nil {
		return fmt.Errorf("detach link %s: %w", p.path, err)
	}
	return nil
}
