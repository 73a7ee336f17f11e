// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

// renewEvery is well below the lifetime of the prepared next hops.
const renewEvery = 5 * time.Second

// servePin pins the XDP program, prints how to run it, and removes it when ctx is done.
func (w *world) servePin(ctx context.Context, path string, out io.Writer) (err error) {
	for _, f := range families {
		if err := w.establish(f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	directory, err := os.MkdirTemp("", "millrace-bench-packets-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	pinned, err := w.Ingress.Clone()
	if err != nil {
		return fmt.Errorf("pin the XDP program: %w", err)
	}
	defer func() { err = errors.Join(err, pinned.Close()) }()
	if err := pinned.Pin(path); err != nil {
		return fmt.Errorf("pin the XDP program at %s: %w; the path must be free and on a BPF file system", path, err)
	}
	defer func() { err = errors.Join(err, pinned.Unpin()) }()
	if err := w.describe(path, directory, out); err != nil {
		return err
	}
	ticks := time.NewTicker(renewEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
			if err := w.Plane.RenewLease(); err != nil {
				return err
			}
		}
	}
}

func (w *world) describe(path, directory string, out io.Writer) error {
	p := &printer{out: out}
	p.line("The XDP program is pinned at %s until this ends (interrupt it to remove the pin).", path)
	p.line("")
	p.line("interface   %s, index %d: the ingress_ifindex of the context", uplinkName, w.Uplink.Index)
	p.line("MACs        frames to %s, from %s; the next hop is %s", uplinkMAC, routerMAC, nextHopMAC)
	for _, f := range families {
		p.line("")
		p.line("%s", f.name)
		p.line("  VIP       %s", f.vip)
		p.line("  TCP %d    endpoints on %d other nodes: XDP_TX with %d bytes in front", portAway, perNodes, f.overhead)
		p.line("  TCP %d    one endpoint here, %s port %d: XDP_PASS with that destination", portHere, f.pod, podPort)
		p.line("  clients   any; established on TCP %d are %d flows, from %s on, the lower 16 bits of the address", portHere, flowCount, f.client)
		p.line("            counting first, with source ports from %d on; sizes: %d connections, %d rows a table", firstPort, connections, forwarding.Rows)
		for _, kind := range []struct {
			name string
			port uint16
			syn  bool
		}{{"away", portAway, false}, {"away-syn", portAway, true}, {"here", portHere, false}} {
			name := strings.ToLower(f.name) + "-" + kind.name
			if err := w.writePacket(directory, name, f.fromClient(f.vip, kind.port, kind.syn)); err != nil {
				return err
			}
			packet := filepath.Join(directory, name)
			p.line("  bpftool prog run pinned %s data_in %s.bin ctx_in %s.ctx", path, packet, packet)
		}
	}
	p.line("")
	p.line("With repeat the program would see its own output, an encapsulated packet, from the second pass on. To time")
	p.line("it, call it by a map of programs from a program of type xdp.frags that restores them, as make bench does.")
	return p.err
}

func (w *world) writePacket(directory, name string, s segment) error {
	frame, err := s.frame(routerMAC, uplinkMAC)
	if err != nil {
		return err
	}
	context, err := binary.Append(nil, binary.NativeEndian, rig.XDPContext{
		DataEnd: uint32(len(frame)), IngressIfindex: uint32(w.Uplink.Index),
	})
	if err != nil {
		return err
	}
	for suffix, content := range map[string][]byte{".bin": frame, ".ctx": context} {
		if err := os.WriteFile(filepath.Join(directory, name+suffix), content, 0o600); err != nil {
			return fmt.Errorf("write a packet: %w", err)
		}
	}
	return nil
}
