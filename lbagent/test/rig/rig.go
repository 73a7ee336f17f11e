// SPDX-License-Identifier: Apache-2.0

// Package rig runs the BPF programs of the data plane on packets of tests. The agent's own code loads them,
// fills their maps and attaches them to a TAP interface. It needs root and a private mount namespace for its
// BPF file system.
package rig

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Rig is one node's data plane.
type Rig struct {
	// Uplink is the interface of received and sent packets.
	Uplink net.Interface
	Plane  *dataplane.Dataplane
	// Ingress and Egress are the attached programs.
	Ingress, Egress *ebpf.Program

	tap       *tap
	directory string
	contents  *forwarding.State
}

// New opens a data plane and attaches it to a new interface. It overrides the configuration's PinRoot.
func New(name string, mac net.HardwareAddr, cfg dataplane.Config) (*Rig, error) {
	r := &Rig{contents: forwarding.NewState()}
	if err := r.open(name, mac, cfg); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Rig) open(name string, mac net.HardwareAddr, cfg dataplane.Config) (err error) {
	if r.tap, err = newTAP(name, mac); err != nil {
		return err
	}
	r.Uplink = r.tap.Interface
	if r.directory, err = os.MkdirTemp("", "millrace-rig-"); err != nil {
		return err
	}
	if err := unix.Mount("bpf", r.directory, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system: %w", err)
	}
	cfg.PinRoot = r.root()
	if r.Plane, err = dataplane.Open(cfg); err != nil {
		return err
	}
	if err := r.Plane.Attach([]dataplane.Uplink{{Name: r.Uplink.Name, Index: r.Uplink.Index}}); err != nil {
		return err
	}
	return r.findPrograms(filepath.Join(r.root(), "links"))
}

func (r *Rig) root() string { return filepath.Join(r.directory, "millrace") }

// Contents returns the state of the maps.
func (r *Rig) Contents() *forwarding.State { return r.contents }

// Become writes the state of the maps. next is the Ethernet address of the next hop to every other node.
func (r *Rig) Become(want *forwarding.State, next net.HardwareAddr) error {
	for _, op := range forwarding.Diff(r.contents, want) {
		if err := r.Plane.Apply(op); err != nil {
			return err
		}
	}
	r.contents = want
	hops := map[forwarding.NodeID]forwarding.Hop{}
	for id := range want.Nodes {
		hops[id] = forwarding.Hop{
			Interface: r.Uplink.Index, MTU: r.Uplink.MTU, Source: [6]byte(r.Uplink.HardwareAddr), Destination: [6]byte(next),
		}
	}
	return errors.Join(r.Plane.SetHops(hops), r.Plane.RenewLease())
}

// Map opens a map of the data plane.
func (r *Rig) Map(name string) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(r.root(), "maps", name), nil)
	if err != nil {
		return nil, fmt.Errorf("open map %s: %w", name, err)
	}
	return m, nil
}

func (r *Rig) findPrograms(directory string) error {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return fmt.Errorf("list the attached programs: %w", err)
	}
	for _, entry := range entries {
		switch {
		case strings.Contains(entry.Name(), "xdp"):
			r.Ingress, err = attached(filepath.Join(directory, entry.Name()))
		case strings.Contains(entry.Name(), "egress"):
			r.Egress, err = attached(filepath.Join(directory, entry.Name()))
		}
		if err != nil {
			return err
		}
	}
	if r.Ingress == nil || r.Egress == nil {
		return fmt.Errorf("the data plane attached no XDP or no egress program, links are in %s", directory)
	}
	return nil
}

func attached(path string) (*ebpf.Program, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil, fmt.Errorf("open link %s: %w", path, err)
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return nil, fmt.Errorf("inspect link %s: %w", path, err)
	}
	p, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return nil, fmt.Errorf("open the program of link %s: %w", path, err)
	}
	return p, nil
}

// Close removes all pins and closes the interface.
func (r *Rig) Close() error {
	var errs []error
	for _, p := range []*ebpf.Program{r.Ingress, r.Egress} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	if r.Plane != nil {
		errs = append(errs, r.Plane.Close())
	}
	if r.directory != "" {
		errs = append(errs, dataplane.Remove(r.root()), unix.Unmount(r.directory, 0), os.Remove(r.directory))
	}
	if r.tap != nil {
		errs = append(errs, r.tap.file.Close())
	}
	return errors.Join(errs...)
}
