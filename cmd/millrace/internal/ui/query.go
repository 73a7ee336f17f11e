// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// Response is the agents' data about a row. Fields that do not apply are absent.
type Response struct {
	// VIPs are a Service's VIPs, with the state of each node's announcement.
	VIPs     []report.VIP     `json:"vips,omitempty"`
	Problems []report.Problem `json:"problems,omitempty"`
	// Sessions are the BGP sessions of a node.
	Sessions []consoleapi.BGPPeer `json:"sessions,omitempty"`
	// Rates are the traffic of a node, or of a Service if the aggregated API is not available.
	Rates *report.Rates `json:"rates,omitempty"`
	// Warnings describe missing data, for example nodes that did not answer.
	Warnings []string `json:"warnings,omitempty"`
}

// Timeline is the history of a Service.
type Timeline struct {
	render.Why
	Warnings []string `json:"warnings,omitempty"`
}

// WhyQuery selects a Service and a period.
type WhyQuery struct {
	Service string
	// At is a time in the format of `millrace why --at`.
	At string
	// Around is the duration before and after At.
	Around time.Duration
}

// longest is the maximum of WhyQuery.Around.
const longest = 24 * time.Hour

func whyQuery(values url.Values) (WhyQuery, error) {
	query := WhyQuery{Service: values.Get("service"), At: values.Get("at"), Around: 5 * time.Minute}
	if namespace, name, found := strings.Cut(query.Service, "/"); !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return query, fmt.Errorf("service=%q: must be namespace/name", query.Service)
	}
	if query.At == "" {
		query.At = "now"
	}
	if around := values.Get("around"); around != "" {
		var err error
		if query.Around, err = time.ParseDuration(around); err != nil || query.Around <= 0 || query.Around > longest {
			return query, fmt.Errorf("around=%q: must be a duration of at most %s, such as 30m", around, longest)
		}
	}
	return query, nil
}

// Packet is a packet to trace.
type Packet struct {
	Source, Destination netip.AddrPort
	Protocol            string
	// Node is the ingress node; empty: the first node.
	Node string
	// Midstream is true for a packet of an established connection.
	Midstream bool
}

func packetOf(values url.Values) (Packet, error) {
	packet := Packet{Protocol: strings.ToLower(values.Get("protocol")), Node: values.Get("node"), Midstream: values.Get("midstream") == "true"}
	var err error
	if packet.Source, err = netip.ParseAddrPort(values.Get("source")); err != nil {
		return packet, fmt.Errorf("source: %w; write 198.51.100.7:40000 or [2001:db8::7]:40000", err)
	}
	if packet.Destination, err = netip.ParseAddrPort(values.Get("destination")); err != nil {
		return packet, fmt.Errorf("destination: %w; write 203.0.113.7:80 or [2001:db8::1]:80", err)
	}
	if packet.Source.Addr().Unmap().Is4() != packet.Destination.Addr().Unmap().Is4() {
		return packet, fmt.Errorf("from %s to %s: both must be IPv4 or both IPv6", packet.Source, packet.Destination)
	}
	if packet.Protocol == "" {
		packet.Protocol = "tcp"
	}
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, packet.Protocol) {
		return packet, fmt.Errorf("protocol=%q: must be tcp, udp or sctp", packet.Protocol)
	}
	return packet, nil
}
