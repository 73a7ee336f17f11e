// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// openAtOnce is the number of half-open connections, low enough that no bucket of their table is full.
const openAtOnce = 10_000

type shake struct {
	stream  *stream
	program *ebpf.Program
}

// establish establishes all flows of a family. The program validates both client and endpoint.
func (w *world) establish(f family) (err error) {
	syn, err := f.fromClient(f.vip, portHere, true).frame(routerMAC, uplinkMAC)
	if err != nil {
		return err
	}
	answer, err := f.fromEndpoint(true).frame(uplinkMAC, routerMAC)
	if err != nil {
		return err
	}
	ack, err := f.fromClient(f.vip, portHere, false).frame(routerMAC, uplinkMAC)
	if err != nil {
		return err
	}
	fromClient := f.clientFields(ethernetLength)
	var handshake []shake
	defer func() {
		for _, s := range handshake {
			err = errors.Join(err, s.stream.close())
		}
	}()
	for _, t := range []traffic{
		{frame: syn, fields: fromClient, flows: flowCount},
		{frame: answer, fields: f.replyFields(), flows: flowCount, egress: true},
		{frame: ack, fields: fromClient, flows: flowCount},
	} {
		s := shake{program: w.Ingress}
		if t.egress {
			s.program = w.Egress
		}
		if s.stream, err = newStream(t, w.Uplink.Index); err != nil {
			return err
		}
		handshake = append(handshake, s)
		if err := s.stream.aim(s.program); err != nil {
			return err
		}
	}
	for range flowCount / openAtOnce {
		for _, s := range handshake {
			if _, err := s.stream.run(openAtOnce); err != nil {
				return fmt.Errorf("open connections: %w", err)
			}
		}
	}
	// Like the agent's periodic sweep.
	return w.Plane.SweepConnections()
}
