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

// ErrNoUplink is returned by Trace if no uplink is attached.
var ErrNoUplink = errors.New("no uplink is attached")

// TraceVerdict is the ingress program's decision about a packet.
type TraceVerdict string

// Verdicts of a trace.
const (
	// TracePassed passes the packet to the stack unchanged.
	TracePassed TraceVerdict = "passed"
	// TraceDropped drops the packet for Trace.Reason.
	TraceDropped TraceVerdict = "dropped"
	// TraceAnswered replies on behalf of the VIP.
	TraceAnswered TraceVerdict = "answered"
	// TraceSent encapsulates the packet to another node.
	TraceSent TraceVerdict = "sent"
	// TraceDelivered passes the packet to the stack with an endpoint as its destination.
	TraceDelivered TraceVerdict = "delivered"
)

// Trace is the ingress program's processing of a packet. Fields of steps that it did not reach are zero.
type Trace struct {
	// Interface is the ingress uplink.
	Interface string
	Verdict   TraceVerdict
	// Reason is set for TraceDropped.
	Reason string
	// Packet is the resulting IP packet, unless it is dropped.
	Packet []byte

	// VIP reports a VIP as destination, OtherStation another host's MAC address.
	VIP, OtherStation bool
	// FromNode reports whether a node encapsulated it, SourceChecked whether its frontend restricts sources.
	FromNode, SourceChecked bool
	// Frontend is zero if no frontend matched.
	Frontend forwarding.FrontendID
	Key      forwarding.FrontendKey
	// Local is forwarding.Frontend.Local; Zonal reports whether the frontend has tables for zones.
	Local, Zonal bool

	// Stage1 reports whether a row was looked up, of Rows rows.
	Stage1 bool
	Row    int
	Rows   int
	Owners forwarding.Row

	// Stage2 reports whether this node looked up the connection; Established or HalfOpen whether it exists,
	// Chosen whether an endpoint was selected for it, Affinity whether by the client's record.
	Stage2, Established, HalfOpen, Chosen, Affinity bool
	Endpoint                                        forwarding.EndpointID
	EndpointAddress                                 netip.AddrPort
	EndpointRow                                     int

	// LookupForwarded reports whether it is sent to a former owner of the row, Returned whether it is returned
	// to the node that asked, OtherZone whether it is sent to the primary of another zone's table.
	LookupForwarded, Returned, OtherZone bool
	// Delegated reports whether another node selects the endpoint, because this node's agent is silent.
	Delegated bool
	// Override reports whether an override led to the node of its flow, RedirectSent whether it is returned to
	// its ingress node as a notice that the flow is here, RedirectReceived whether it was such a notice.
	Override, RedirectSent, RedirectReceived bool
	// Node is the destination of the encapsulation.
	Node forwarding.NodeID
	// ToKernel reports whether the kernel resolves its next hop.
	ToKernel bool
	// LeavesBy is the egress interface.
	LeavesBy string
}

// Trace runs an IP packet through a copy of the ingress program with the same maps, as if received on an
// uplink. Nothing is sent, delivered, recorded or counted. It returns ErrNoUplink if no uplink is attached.
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
	// maxTraced is the longest packet that fits into one buffer with its headroom.
	maxTraced = 3000
)

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
	// The source is a fictitious router with a locally administered address.
	frame = append(frame, 2, 0, 0, 0, 0, 1)
	frame = binary.BigEndian.AppendUint16(frame, kind)
	return append(frame, packet...), nil
}

// loadTracing loads the copy of the program, which takes about 0.5 s in the verifier.
func (d *Dataplane) loadTracing() (*ebpf.Program, error) {
	spec, err := newSpec(d.config)
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[bpf.DatapathVarTracing].Set(uint32(1)); err != nil {
		return nil, fmt.Errorf("create the tracing BPF programs: %w", err)
	}
	replacements := d.set.programMaps()
	replacements[bpf.DatapathMapTraceRecord] = d.maps.TraceRecord
	var programs struct {
		Ingress *ebpf.Program `ebpf:"ingress"`
	}
	if err := spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: replacements}); err != nil {
		return nil, fmt.Errorf("load the tracing BPF program: %w", err)
	}
	return programs.Ingress, nil
}

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
		return Trace{}, fmt.Errorf("run the tracing BPF program: %w", err)
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
	// The frame follows its metadata.
	if start := int(context.Data) + ethernetHeader; trace.Verdict != TraceDropped && start <= len(run.DataOut) {
		trace.Packet = run.DataOut[start:]
	}
	if err := errors.Join(d.readFrontend(&trace), d.readEndpoint(&trace)); err != nil {
		return Trace{}, err
	}
	return trace, nil
}

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
		VIP:              has(bpf.DatapathTraceStepTRACE_VIP),
		OtherStation:     has(bpf.DatapathTraceStepTRACE_OTHER_STATION),
		FromNode:         has(bpf.DatapathTraceStepTRACE_FROM_NODE),
		SourceChecked:    has(bpf.DatapathTraceStepTRACE_SOURCE_CHECKED),
		Frontend:         forwarding.FrontendID(record.Frontend),
		Stage1:           has(bpf.DatapathTraceStepTRACE_ROW),
		Row:              int(record.Row),
		Owners:           decodeRow(record.Owners),
		Stage2:           has(bpf.DatapathTraceStepTRACE_STAGE2),
		Established:      has(bpf.DatapathTraceStepTRACE_ESTABLISHED),
		HalfOpen:         has(bpf.DatapathTraceStepTRACE_HALF_OPEN),
		Chosen:           has(bpf.DatapathTraceStepTRACE_SELECTED),
		Affinity:         has(bpf.DatapathTraceStepTRACE_AFFINITY),
		Endpoint:         forwarding.EndpointID(record.Endpoint),
		EndpointRow:      int(record.EndpointRow),
		LookupForwarded:  has(bpf.DatapathTraceStepTRACE_LOOKUP_FORWARDED),
		OtherZone:        has(bpf.DatapathTraceStepTRACE_OTHER_ZONE),
		Delegated:        has(bpf.DatapathTraceStepTRACE_DELEGATED),
		Returned:         has(bpf.DatapathTraceStepTRACE_LOOKUP_RETURNED),
		Override:         has(bpf.DatapathTraceStepTRACE_OVERRIDE),
		RedirectSent:     has(bpf.DatapathTraceStepTRACE_REDIRECT_SENT),
		RedirectReceived: has(bpf.DatapathTraceStepTRACE_REDIRECT_RECEIVED),
		Node:             forwarding.NodeID(record.Node),
		ToKernel:         has(bpf.DatapathTraceStepTRACE_TO_KERNEL),
	}
	if record.Reason != 0 {
		trace.Reason = reasonName(all["drop_reason"], record.Reason)
	}
	if record.Ifindex != 0 {
		trace.LeavesBy = InterfaceName(int(record.Ifindex))
	}
	return trace, nil
}
