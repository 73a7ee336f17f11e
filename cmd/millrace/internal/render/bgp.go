// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// BGPPeers writes the sessions of nodes.
func BGPPeers(out io.Writer, nodes []consoleapi.BGP, options Options) error {
	if options.Format.Structured() {
		return encode(out, options.Format, map[string]any{"nodes": nodes})
	}
	t := &table{columns: []column{
		{heading: "NODE", cut: true}, {heading: "PEER", cut: true}, {heading: "ADDRESS"}, {heading: "STATE"}, {heading: "SINCE"},
		{heading: "FLAPS", optional: true}, {heading: "FAMILIES", optional: true}, {heading: "SENT"}, {heading: "ACCEPTED", optional: true},
		{heading: "BFD", optional: true}, {heading: "LAST ERROR", cut: true},
	}}
	if options.Format == Wide {
		t.columns = append(t.columns, column{heading: "ERROR TIME"}, column{heading: "LOCAL ADDRESS"}, column{heading: "UPDATES SENT"},
			column{heading: "UPDATES RECEIVED"})
	}
	for _, node := range nodes {
		for i := range node.Peers {
			peer := &node.Peers[i]
			accepted := unknown
			if peer.RoutesAccepted != nil {
				accepted = fmt.Sprint(*peer.RoutesAccepted)
			}
			row := []string{
				node.Node, peer.Peer, peer.Address.String(), peer.State, moment(peer.Since), fmt.Sprint(peer.Flaps),
				orNone(strings.Join(peer.Families, ",")), fmt.Sprint(peer.RoutesSent), accepted, orNone(peer.BFD), orNone(lastError(peer)),
			}
			if options.Format == Wide {
				row = append(row, moment(peer.LastErrorTime), orNone(addressText(peer.LocalAddress)), fmt.Sprint(peer.UpdatesSent),
					fmt.Sprint(peer.UpdatesReceived))
			}
			t.rows = append(t.rows, row)
		}
	}
	return writeTable(out, t, options, "No BGP sessions: no LBPeer selects these nodes.")
}

// lastError returns the last error of BGP, with that of BFD if its session is not up.
func lastError(peer *consoleapi.BGPPeer) string {
	if peer.BFDMessage == "" || strings.Contains(peer.LastError, peer.BFDMessage) {
		return peer.LastError
	}
	if peer.LastError == "" {
		return "BFD: " + peer.BFDMessage
	}
	return peer.LastError + "; BFD: " + peer.BFDMessage
}

// BGPRoutes writes the routes that nodes announce.
func BGPRoutes(out io.Writer, nodes []consoleapi.BGP, options Options) error {
	if options.Format.Structured() {
		return encode(out, options.Format, map[string]any{"nodes": nodes})
	}
	t := &table{columns: []column{
		{heading: "NODE", cut: true}, {heading: "PREFIX"}, {heading: "PEER", cut: true}, {heading: "NEXT HOP", optional: true}, {heading: "SENT"},
		{heading: "ATTRIBUTES", cut: true},
	}}
	for _, node := range nodes {
		for i := range node.Routes {
			route := &node.Routes[i]
			sent := "yes"
			if !route.Established {
				sent = "no session"
			}
			t.rows = append(t.rows, []string{
				node.Node, route.Prefix.String(), route.Peer, route.NextHop.String(), sent, orNone(attributes(route)),
			})
		}
	}
	return writeTable(out, t, options, "No routes.")
}

func attributes(route *consoleapi.BGPRoute) string {
	var parts []string
	if len(route.Communities) > 0 {
		parts = append(parts, "communities "+strings.Join(route.Communities, ","))
	}
	if route.MED != nil {
		parts = append(parts, fmt.Sprintf("med %d", *route.MED))
	}
	if route.LocalPreference != nil {
		parts = append(parts, fmt.Sprintf("local-preference %d", *route.LocalPreference))
	}
	if route.Prepend > 0 {
		parts = append(parts, fmt.Sprintf("prepend %d", route.Prepend))
	}
	if route.Weight > 0 {
		parts = append(parts, fmt.Sprintf("weight %d", route.Weight))
	}
	return strings.Join(parts, "; ")
}

func moment(at time.Time) string {
	if at.IsZero() {
		return none
	}
	return at.UTC().Format(time.RFC3339)
}

func addressText(address netip.Addr) string {
	if !address.IsValid() {
		return ""
	}
	return address.String()
}

func writeTable(out io.Writer, t *table, options Options, empty string) error {
	text := empty + "\n"
	if len(t.rows) > 0 {
		text = strings.Join(t.lines(options.width()), "\n") + "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}
