// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

type traffic struct {
	frame  []byte
	fields fields
	// flows is the number of clients in turn; zero draws a random client per packet.
	flows uint32
	// egress packets leave through the uplink, others enter through it.
	egress bool
}

// stream runs a program on traffic frame by frame. Before each run, the original frame is restored.
type stream struct {
	traffic
	objects replayObjects
	replay  *ebpf.Program
	target  *ebpf.Map
	context any
}

func newStream(t traffic, ifindex int) (*stream, error) {
	spec, err := loadReplay()
	if err != nil {
		return nil, fmt.Errorf("read the compiled replay program: %w", err)
	}
	var header [20]uint64
	if len(t.frame) > 8*len(header) || len(t.frame)%8 != 0 {
		return nil, fmt.Errorf("a frame of %d bytes, must be a multiple of 8 up to %d", len(t.frame), 8*len(header))
	}
	for i := range len(t.frame) / 8 {
		header[i] = binary.NativeEndian.Uint64(t.frame[8*i:])
	}
	for name, value := range map[string]any{
		"header": header, "frame_length": uint32(len(t.frame)), "flow_count": t.flows,
		"address_offset": t.fields.address, "port_offset": t.fields.port,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s of the replay program: %w", name, err)
		}
	}
	for ours, theirs := range map[string]string{"replay_xdp": "ingress", "replay_egress": "egress"} {
		if err := alike(spec, ours, theirs); err != nil {
			return nil, err
		}
	}
	s := &stream{traffic: t}
	if err := spec.LoadAndAssign(&s.objects, nil); err != nil {
		return nil, fmt.Errorf("load the replay program: %w", err)
	}
	if t.egress {
		s.replay, s.target = s.objects.ReplayEgress, s.objects.EgressTarget
		s.context = rig.SKBContext{Ifindex: uint32(ifindex)}
	} else {
		s.replay, s.target = s.objects.ReplayXdp, s.objects.IngressTarget
		s.context = rig.XDPContext{DataEnd: uint32(len(t.frame)), IngressIfindex: uint32(ifindex)}
	}
	return s, nil
}

// alike sets a program's attach type to that of a program under test, because the kernel allows tail calls only
// between programs of the same type.
func alike(spec *ebpf.CollectionSpec, name, tested string) error {
	datapath, err := bpf.LoadDatapath()
	if err != nil {
		return fmt.Errorf("read the compiled data plane: %w", err)
	}
	program, like := spec.Programs[name], datapath.Programs[tested]
	if program == nil || like == nil {
		return fmt.Errorf("a program is missing, of %s and the data plane's %s", name, tested)
	}
	program.AttachType, program.Flags = like.AttachType, like.Flags
	return nil
}

func (s *stream) aim(p *ebpf.Program) error {
	if err := s.target.Put(uint32(0), p); err != nil {
		return fmt.Errorf("aim at program %s: %w", p, err)
	}
	return nil
}

type outcome struct {
	verdict int32
	frame   []byte
	// cpu is the thread time of all frames.
	cpu time.Duration
}

func (s *stream) pass(p *ebpf.Program, count int) (outcome, error) {
	if err := s.aim(p); err != nil {
		return outcome{}, err
	}
	return s.run(count)
}

func (s *stream) run(count int) (outcome, error) {
	options := &ebpf.RunOptions{
		Data: s.frame, DataOut: make([]byte, len(s.frame)+256), Context: s.context, Repeat: uint32(count),
	}
	if in, ok := s.context.(rig.XDPContext); ok {
		options.ContextOut = &in
	}
	before, err := threadTime()
	if err != nil {
		return outcome{}, err
	}
	verdict, err := s.call(options)
	if err != nil {
		return outcome{}, err
	}
	after, err := threadTime()
	if err != nil {
		return outcome{}, err
	}
	out := options.DataOut
	if context, ok := options.ContextOut.(*rig.XDPContext); ok {
		out = out[context.Data:]
	}
	return outcome{verdict: int32(verdict), frame: out, cpu: after - before}, nil
}

// call blocks the Go runtime's preemption signals, which would make the kernel interrupt and restart the run.
func (s *stream) call(options *ebpf.RunOptions) (uint32, error) {
	var previous unix.Sigset_t
	all := unix.Sigset_t{}
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &previous); err != nil {
		return 0, fmt.Errorf("block signals: %w", err)
	}
	verdict, err := s.replay.Run(options)
	if unmask := unix.PthreadSigmask(unix.SIG_SETMASK, &previous, nil); unmask != nil {
		return 0, fmt.Errorf("unblock signals: %w", unmask)
	}
	if err != nil {
		return 0, fmt.Errorf("run the program (needs root): %w", err)
	}
	return verdict, nil
}

func (s *stream) close() error { return s.objects.Close() }

func threadTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("read the clock of the thread: %w", err)
	}
	return time.Duration(t.Nano()), nil
}
