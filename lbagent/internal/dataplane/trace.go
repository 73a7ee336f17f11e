// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// ErrNoUplink means that no uplink is attached through which a packet could come in.
var ErrNoUplink = errors.New("no uplink is attached")

// TraceVerdict is what the ingress program does with a packet.
type TraceVerdict string

// Verdicts of a trace.
const (
	// TracePassed leaves the packet to the stack as it came.
	TracePassed TraceVerdict = "passed"
	// TraceDropped has a reason.
	TraceDropped TraceVerdict = "dropped"
	// TraceAnswered sends an answer of the VIP's own.
	TraceAnswered TraceVerdict = "answered"
	// TraceSent encapsulates it to another node.
	TraceSent TraceVerdict = "sent"
	// TraceDelivered gives it to the stack with an endpoint as its destination.
	TraceDelivered TraceVerdict = "delivered"
)

// Trace is what the ingress program did with a packet, step by step. What the
// packet did not get to is zero.
type Trace struct {
	// Interface is the uplink by which it came in.
	Interface string
	Verdict   TraceVerdict
	// Reason is that of TraceDropped.
	Reason string
	// Packet is the IP packet that results, unless it is dropped.
	Packet []byte

	// VIP reports whether its destination is one, OtherStation whether its frame is
	// addressed to another host.
	VIP, OtherStation bool
	// FromNode reports whether a node had encapsulated it, SourceChecked whether its
	// frontend does not admit every source.
	FromNode, SourceChecked bool
	// Frontend is zero where the packet is for none.
	Frontend forwarding.FrontendID
	Key      forwarding.FrontendKey
	// Local is that of forwarding.Frontend; Zonal reports whether it has tables for zones.
	Local, Zonal bool

	// Stage1 reports whether a row was looked up, of so many Rows.
	Stage1 bool
	Row    int
	Rows   int
	Owners forwarding.Row

	// Stage2 reports whether this node looked for the connection; Established or
	// HalfOpen whether it found it, Chosen whether it chose the endpoint, Affinity whether
	// the client had that endpoint before.
	Stage2, Established, HalfOpen, Chosen, Affinity bool
	Endpoint                                        forwarding.EndpointID
	EndpointAddress                                 netip.AddrPort
	EndpointRow                                     int

	// SecondChance reports whether it goes to a former owner of the row, Returned whether
	// it goes back to the node that asked, OtherZone whether it goes to the primary
	// by the table of another zone.
	SecondChance, Returned, OtherZone bool
	// HandedOn reports whether another node of the row chooses the endpoint, because this node's agent is
	// silent.
	HandedOn bool
	// Exception reports whether an exception led it to the node that holds its flow.
	// Notifies reports whether the flow is here and the packet goes back to its ingress
	// node as a notice, Notified whether it was such a notice to this node.
	Exception, Notifies, Notified bool
	// Node is that to which it was to be encapsulated.
	Node forwarding.NodeID
	// ToKernel reports whether the kernel finds its next hop.
	ToKernel bool
	// LeavesBy is the interface by which it leaves.
	LeavesBy string
}

// Trace runs an IP packet through a copy of the ingress program over the same
// maps, as if it came in by an uplink. Nothing is sent, delivered, recorded or
// counted. The error is ErrNoUplink where there is none.
func (d *Dataplane) Trace(packet []byte) (Trace, error) {
	d.tracing.Lock()
	defer d.tracing.Unlock()
	uplink, err := d.anyUplink()
	if err != nil {
		return Trace{}, err
	}
	frame, err := ethernet(uplink.HardwareAddr, packet)
	if err != nil {
		return Trace{}, err
	}
	if d.tracer == nil {
		if d.tracer, err = d.loadTracing(); err != nil {
			return Trace{}, err
		}
	}
	return d.trace(uplink, frame)
}

// anyUplink is an uplink that the programs are attached to.
func (d *Dataplane) anyUplink() (*net.Interface, error) {
	for _, attachment := range d.Attachments() {
		if attachment.Mode == "" {
			continue
		}
		uplink, err := net.InterfaceByIndex(attachment.Index)
		if err != nil {
			return nil, fmt.Errorf("find uplink %s: %w", attachment.Interface, err)
		}
		return uplink, nil
	}
	return nil, ErrNoUplink
}

const (
	etherTypeIPv4  = 0x0800
	etherTypeIPv6  = 0x86dd
	ethernetHeader = 14
	// maxTraced is the longest packet that fits one buffer with its headroom.
	maxTraced = 3000
)

// ethernet puts the packet into a frame to the station.
func ethernet(station net.HardwareAddr, packet []byte) ([]byte, error) {
	if len(packet) == 0 || len(packet) > maxTraced {
		return nil, fmt.Errorf("a packet of %d bytes cannot be traced: it must have 1 to %d", len(packet), maxTraced)
	}
	if len(station) != 6 {
		return nil, fmt.Errorf("the uplink has no Ethernet address: %w", ErrNoUplink)
	}
	kind := uint16(etherTypeIPv4)
	if packet[0]>>4 == 6 {
		kind = etherTypeIPv6
	}
	frame := append(make([]byte, 0, ethernetHeader+len(packet)), station...)
	// From a fictitious router, with a locally administered address.
	frame = append(frame, 2, 0, 0, 0, 0, 1)
	frame = binary.BigEndian.AppendUint16(frame, kind)
	return append(frame, packet...), nil
}

// loadTracing loads the copy of the program, which takes the verifier half a
// second: it is kept.
func (d *Dataplane) loadTracing() (*ebpf.Program, error) {
	spec, err := newSpec(d.config)
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[bpf.DatapathVarTracing].Set(uint32(1)); err != nil {
		return nil, fmt.Errorf("make the BPF programs trace: %w", err)
	}
	replacements := d.set.programMaps()
	replacements[bpf.DatapathMapTraceRecord] = d.maps.TraceRecord
	var programs struct {
		Ingress *ebpf.Program `ebpf:"ingress"`
	}
	if err := spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: replacements}); err != nil {
		return nil, fmt.Errorf("load the BPF program that traces: %w", err)
	}
	return programs.Ingress, nil
}

// xdpContext is struct xdp_md.
type xdpContext struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

func (d *Dataplane) trace(uplink *net.Interface, frame []byte) (Trace, error) {
	if err := d.maps.TraceRecord.Put(uint32(0), bpf.DatapathTrace{}); err != nil {
		return Trace{}, fmt.Errorf("clear map %s: %w", bpf.DatapathMapTraceRecord, err)
	}
	context := xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(uplink.Index)}
	run := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: context, ContextOut: &context}
	action, err := d.tracer.Run(run)
	if err != nil {
		return Trace{}, fmt.Errorf("run the BPF program that traces: %w", err)
	}
	var record bpf.DatapathTrace
	if err := d.maps.TraceRecord.Lookup(uint32(0), &record); err != nil {
		return Trace{}, fmt.Errorf("read map %s: %w", bpf.DatapathMapTraceRecord, err)
	}
	trace, err := decodeTrace(record)
	if err != nil {
		return Trace{}, err
	}
	trace.Interface = uplink.Name
	trace.Verdict = verdictOf(action, record)
	// Metadata stands in front of the frame.
	if start := int(context.Data) + ethernetHeader; trace.Verdict != TraceDropped && start <= len(run.DataOut) {
		trace.Packet = run.DataOut[start:]
	}
	if err := errors.Join(d.readFrontend(&trace), d.readEndpoint(&trace)); err != nil {
		return Trace{}, err
	}
	return trace, nil
}

// Verdicts of XDP (enum xdp_action).
const (
	xdpPass = 2
	xdpTx   = 3
	xdpSend = 4
)

func verdictOf(action uint32, record bpf.DatapathTrace) TraceVerdict {
	has := func(step bpf.DatapathTraceStep) bool { return record.Steps&uint32(step) != 0 }
	leaves := action == xdpTx || action == xdpSend || action == xdpPass && has(bpf.DatapathTraceStepTRACE_TO_KERNEL)
	switch {
	case leaves && has(bpf.DatapathTraceStepTRACE_TO_NODE):
		return TraceSent
	case leaves:
		return TraceAnswered
	case action == xdpPass && has(bpf.DatapathTraceStepTRACE_DELIVERED):
		return TraceDelivered
	case action == xdpPass:
		return TracePassed
	default:
		return TraceDropped
	}
}

// readFrontend finds the frontend by its id.
func (d *Dataplane) readFrontend(trace *Trace) error {
	if trace.Frontend == 0 {
		return nil
	}
	state := forwarding.NewState()
	if err := d.dumpFrontends(state); err != nil {
		return fmt.Errorf("read map frontends: %w", err)
	}
	var zones bpf.DatapathZones
	if err := d.maps.ZoneTables.Lookup(uint32(trace.Frontend), &zones); err != nil {
		return fmt.Errorf("read the tables by zone of frontend %d: %w", trace.Frontend, err)
	}
	trace.Zonal = zones != bpf.DatapathZones{}
	for key, frontend := range state.Frontends {
		if frontend.ID == trace.Frontend {
			trace.Key, trace.Local, trace.Rows = key, frontend.Local, frontend.Table.Rows()
		}
	}
	return nil
}

func (d *Dataplane) readEndpoint(trace *Trace) error {
	if trace.Endpoint == 0 {
		return nil
	}
	var endpoint bpf.DatapathEndpoint
	if err := d.maps.Endpoints.Lookup(uint32(trace.Endpoint), &endpoint); err != nil {
		return fmt.Errorf("read endpoint %d: %w", trace.Endpoint, err)
	}
	if endpoint.Port != 0 {
		decoded := decodeEndpoint(endpoint)
		trace.EndpointAddress = netip.AddrPortFrom(decoded.Address, decoded.Port)
	}
	return nil
}

func decodeTrace(record bpf.DatapathTrace) (Trace, error) {
	all, err := names()
	if err != nil {
		return Trace{}, err
	}
	has := func(step bpf.DatapathTraceStep) bool { return record.Steps&uint32(step) != 0 }
	trace := Trace{
		VIP:           has(bpf.DatapathTraceStepTRACE_VIP),
		OtherStation:  has(bpf.DatapathTraceStepTRACE_OTHER_STATION),
		FromNode:      has(bpf.DatapathTraceStepTRACE_FROM_NODE),
		SourceChecked: has(bpf.DatapathTraceStepTRACE_SOURCE_CHECKED),
		Frontend:      forwarding.FrontendID(record.Frontend),
		Stage1:        has(bpf.DatapathTraceStepTRACE_ROW),
		Row:           int(record.Row),
		Owners:        decodeRow(record.Owners),
		Stage2:        has(bpf.DatapathTraceStepTRACE_STAGE2),
		Established:   has(bpf.DatapathTraceStepTRACE_ESTABLISHED),
		HalfOpen:      has(bpf.DatapathTraceStepTRACE_HALF_OPEN),
		Chosen:        has(bpf.DatapathTraceStepTRACE_CHOSEN),
		Affinity:      has(bpf.DatapathTraceStepTRACE_AFFINITY),
		Endpoint:      forwarding.EndpointID(record.Endpoint),
		EndpointRow:   int(record.EndpointRow),
		SecondChance:  has(bpf.DatapathTraceStepTRACE_SECOND_CHANCE),
		OtherZone:     has(bpf.DatapathTraceStepTRACE_OTHER_ZONE),
		HandedOn:      has(bpf.DatapathTraceStepTRACE_HANDED_ON),
		Returned:      has(bpf.DatapathTraceStepTRACE_RETURNED),
		Exception:     has(bpf.DatapathTraceStepTRACE_EXCEPTION),
		Notifies:      has(bpf.DatapathTraceStepTRACE_NOTIFIES),
		Notified:      has(bpf.DatapathTraceStepTRACE_NOTIFIED),
		Node:          forwarding.NodeID(record.Node),
		ToKernel:      has(bpf.DatapathTraceStepTRACE_TO_KERNEL),
	}
	if record.Reason != 0 {
		trace.Reason = reasonName(all["drop_reason"], record.Reason)
	}
	if record.Ifindex != 0 {
		trace.LeavesBy = InterfaceName(int(record.Ifindex))
	}
	return trace, nil
}
