// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func describe(packet []byte, trace dataplane.Trace, names *Directory) *consoleapi.Trace {
	out := &consoleapi.Trace{Node: names.Node, Interface: trace.Interface, Steps: []consoleapi.Step{}, Reason: trace.Reason}
	e := description{trace: trace, names: names, out: out}
	e.frontend(packet)
	if trace.Frontend != 0 {
		e.sources()
		e.stage1()
		e.stage2()
	}
	e.verdict()
	return out
}

type description struct {
	trace dataplane.Trace
	names *Directory
	out   *consoleapi.Trace
}

func (e *description) add(name, format string, args ...any) {
	e.out.Steps = append(e.out.Steps, consoleapi.Step{Name: name, Text: fmt.Sprintf(format, args...)})
}

func (e *description) frontend(packet []byte) {
	if e.trace.FromNode {
		e.add("tunnel", "encapsulated by another node of the cluster")
	}
	switch {
	case e.trace.Frontend != 0:
		policy := "Cluster"
		if e.trace.Local || e.names.Local[e.trace.Key] {
			policy = "Local"
		}
		e.out.Service = e.names.Services[e.trace.Key]
		service := "a deleted Service"
		if e.out.Service != "" {
			service = "Service " + e.out.Service
		}
		e.add("frontend", "%s of %s, traffic policy %s", e.trace.Key, service, policy)
		e.backends()
	case e.trace.OtherStation:
		e.add("frontend", "the frame is addressed to another station; this node passes it on unchanged")
	case e.trace.VIP && e.trace.Reason == "":
		e.add("frontend", "%s is a VIP", destination(packet))
	case e.trace.VIP:
		e.add("frontend", "%s is a VIP, but no Service serves this packet", destination(packet))
	case !e.trace.FromNode:
		e.add("frontend", "%s is not a VIP on this node", destination(packet))
	}
}

func (e *description) backends() {
	var parts []string
	for _, backend := range e.names.Backends[e.trace.Key] {
		part := "Service " + backend.Service
		if backend.Service == "" {
			part = "an invalid backend"
		}
		part += fmt.Sprintf(", weight %d", backend.Weight)
		if backend.Refused {
			part += " (refused)"
		}
		parts = append(parts, part)
	}
	if len(parts) > 0 {
		e.add("route", "a VIPRoute leads to %s", strings.Join(parts, "; "))
	}
}

func (e *description) backend(endpoint netip.AddrPort) string {
	for _, backend := range e.names.Backends[e.trace.Key] {
		if slices.Contains(backend.Endpoints, endpoint) {
			return " of Service " + backend.Service
		}
	}
	return ""
}

func destination(packet []byte) string {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		return netip.AddrFrom4([4]byte(packet[16:20])).String()
	case len(packet) >= 40 && packet[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(packet[24:40])).String()
	default:
		return "the destination"
	}
}

func (e *description) sources() {
	switch {
	case e.trace.FromNode:
		// The ingress node has checked the source range.
	case e.trace.Reason == "source_range":
		e.add("range check", "loadBalancerSourceRanges of the Service do not contain the source")
	case e.trace.SourceChecked:
		e.add("range check", "loadBalancerSourceRanges of the Service contain the source")
	default:
		e.add("range check", "the Service has no loadBalancerSourceRanges: every source is admitted")
	}
}

func (e *description) stage1() {
	if !e.trace.Stage1 {
		if e.trace.Local && !e.trace.FromNode {
			e.add("row", "none: traffic policy Local stays on the ingress node, unless another node owns the connection")
		}
		return
	}
	e.add("row", "%d of %d%s", e.trace.Row, e.trace.Rows, e.zone())
	e.add("primary", "%s", e.names.node(e.trace.Owners.Primary))
	var previous []string
	for _, id := range e.trace.Owners.Chain {
		if id != 0 {
			previous = append(previous, e.names.node(id))
		}
	}
	if len(previous) == 0 {
		e.add("secondary", "none: no other node is queried")
	} else {
		e.add("secondary", "%s: queried in this order for a connection that the primary does not have", strings.Join(previous, ", "))
	}
	if e.trace.Override {
		e.add("override", "another node than the row's primary owns the connection")
	}
}

func (e *description) zone() string {
	switch {
	case !e.trace.Zonal:
		return ""
	case e.names.Zone == "":
		return ", in the table for nodes without a zone"
	default:
		return fmt.Sprintf(", in the table for zone %s", e.names.Zone)
	}
}

func (e *description) stage2() {
	if e.trace.RedirectReceived {
		e.add("override", "the queried node has named the owner of the connection, which this node records")
	}
	if !e.trace.Stage2 {
		return
	}
	switch {
	case e.trace.Established:
		e.add("connection", "known, established")
	case e.trace.HalfOpen:
		e.add("connection", "found, with one packet of the client so far")
	default:
		e.add("connection", "not found on this node")
	}
	endpoint := fmt.Sprintf("%s%s", e.trace.EndpointAddress, e.backend(e.trace.EndpointAddress))
	switch {
	case e.trace.Reason == "backend_invalid":
		e.add("endpoint", "none: the flow is in the share of a rejected backend")
	case e.trace.Endpoint == 0:
	case !e.trace.EndpointAddress.IsValid():
		e.add("endpoint", "number %d, which no longer exists", e.trace.Endpoint)
	case e.trace.Affinity:
		e.add("endpoint", "%s, the client's previous endpoint (session affinity)", endpoint)
	case e.trace.Chosen:
		e.add("endpoint", "%s, selected by row %d of %d", endpoint, e.trace.EndpointRow, forwarding.EndpointRows)
	default:
		e.add("endpoint", "%s, that of the connection", endpoint)
	}
}

func (e *description) verdict() {
	switch e.trace.Verdict {
	case dataplane.TraceDropped:
		e.out.Verdict = consoleapi.Dropped
		e.add("verdict", "dropped: %s", e.trace.Reason)
	case dataplane.TraceSent:
		e.out.Verdict = consoleapi.Sent
		e.out.NextNode, e.out.Packet = e.names.node(e.trace.Node), e.trace.Packet
		e.add("verdict", "encapsulated to %s%s", e.out.NextNode, e.reason())
	case dataplane.TraceDelivered:
		e.out.Verdict, e.out.Endpoint = consoleapi.Delivered, e.trace.EndpointAddress
		e.add("verdict", "delivered to %s through the node's network stack", e.trace.EndpointAddress)
		e.add("reply", "leaves %s directly to the client, with the VIP as its source", e.names.Node)
	case dataplane.TraceAnswered:
		e.out.Verdict = consoleapi.Answered
		e.add("verdict", "answered by the VIP itself")
	default:
		e.out.Verdict = consoleapi.NotOurs
		e.add("verdict", "passed to the node's network stack")
	}
}

func (e *description) reason() string {
	var parts []string
	switch {
	case e.trace.RedirectSent:
		parts = append(parts, "the ingress node, as a notice that this node owns the connection")
	case e.trace.Delegated:
		parts = append(parts, "another node of the row, which selects the endpoint: the agent of this node is silent, so its maps may be stale")
	case e.trace.OtherZone:
		parts = append(parts, "the primary by the table of another zone, in which the connection may have begun")
	case e.trace.Local && e.trace.Override:
		parts = append(parts, "which has reported that it owns the connection")
	case e.trace.Local && e.trace.LookupForwarded:
		parts = append(parts, "the row's primary or a previous owner, which may have the connection or know its owner")
	case e.trace.LookupForwarded:
		parts = append(parts, "a previous owner of the row, which may have the connection")
	case e.trace.Returned:
		parts = append(parts, "which queried first: no previous owner has the connection")
	}
	if e.trace.LeavesBy != "" {
		parts = append(parts, "by "+e.trace.LeavesBy)
	}
	if e.trace.ToKernel {
		parts = append(parts, "the kernel resolves the next hop")
	}
	if len(parts) == 0 {
		return ""
	}
	return ", " + strings.Join(parts, ", ")
}
