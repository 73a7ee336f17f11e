// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// XDPContext is struct xdp_md.
type XDPContext struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// SKBContext is the part of struct __sk_buff that the kernel accepts for a test run.
type SKBContext struct {
	_       [40]byte
	Ifindex uint32
	_       [148]byte
}

// Return codes of the programs.
const (
	XDPDrop int32 = 1
	XDPPass int32 = 2
	XDPTX   int32 = 3
	TCXNext int32 = -1
)

// growth bounds how many bytes a program adds to a frame.
const growth = 256

// Result is a program's return code and output frame.
type Result struct {
	Verdict int32
	Frame   []byte
	// Note is the metadata in front of the frame.
	Note []byte
}

// Receive runs the XDP program on a frame as if the uplink had received it.
func (r *Rig) Receive(frame []byte) (Result, error) {
	context := XDPContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(r.Uplink.Index)}
	options := &ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+growth), Context: context, ContextOut: &context,
	}
	verdict, err := r.Ingress.Run(options)
	if err != nil {
		return Result{}, fmt.Errorf("run the XDP program: %w", err)
	}
	return Result{
		Verdict: int32(verdict), Note: options.DataOut[:context.Data], Frame: options.DataOut[context.Data:],
	}, nil
}

// Send runs the egress program on a frame as if it left by the uplink.
func (r *Rig) Send(frame []byte) (Result, error) {
	options := &ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+growth), Context: SKBContext{Ifindex: uint32(r.Uplink.Index)},
	}
	verdict, err := r.Egress.Run(options)
	if err != nil {
		return Result{}, fmt.Errorf("run the egress program: %w", err)
	}
	return Result{Verdict: int32(verdict), Frame: options.DataOut}, nil
}
