// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
)

// speakers answer bgp, except node3, which fails.
type speakers struct{}

func (speakers) Nodes() []string { return []string{"node3", "node1", "node2"} }

func (speakers) Run(_ context.Context, node string, args []string, out io.Writer) error {
	if node == "node3" {
		return errors.New("connection refused")
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	line := consoleapi.BGP{Node: node}
	med := uint32(50)
	switch {
	case slices.Equal(args, []string{"bgp", "peers"}) && node == "node1":
		line.Peers = []consoleapi.BGPPeer{{
			Peer: "tor1", Address: netip.MustParseAddr("198.51.100.1"), LocalAddress: netip.MustParseAddr("198.51.100.11"),
			State: "Established", Since: at, LastError: "NOTIFICATION received: Hold Timer Expired", LastErrorTime: at.Add(-time.Minute),
			Flaps: 2, Families: []string{"IPv4", "IPv6"}, RoutesSent: 20000, UpdatesSent: 20001, UpdatesReceived: 7, BFD: "Up",
		}}
	case slices.Equal(args, []string{"bgp", "peers"}):
		line.Peers = []consoleapi.BGPPeer{{
			Peer: "tor1", Address: netip.MustParseAddr("198.51.100.1"), State: "Idle", LastError: "no answer",
			Families: []string{"IPv4"}, BFD: "Down", BFDMessage: "no packet came",
		}}
	case slices.Equal(args, []string{"bgp", "routes"}):
		line.Routes = []consoleapi.BGPRoute{{
			Prefix: netip.MustParsePrefix("203.0.113.1/32"), Peer: "tor1", NextHop: netip.MustParseAddr("198.51.100.11"),
			Established: node == "node1", Communities: []string{"64512:100", "rt:64512:7"}, MED: &med, Prepend: 2, Weight: 3,
		}}
	default:
		return errors.New("unknown command")
	}
	return json.NewEncoder(out).Encode(consoleapi.Line{BGP: &line})
}

func TestBGP(t *testing.T) {
	for name, test := range map[string]struct {
		line, stdout, stderr string
		code                 int
	}{
		"peers": {line: "bgp peers", stderr: "millrace: node3: connection refused\n", stdout: `
NODE   PEER  ADDRESS       STATE        SINCE                 FLAPS  FAMILIES   SENT   ACCEPTED  BFD   LAST ERROR
node1  tor1  198.51.100.1  Established  2026-03-01T12:00:00Z  2      IPv4,IPv6  20000  ?         Up    NOTIFICATION received: Hold Timer Expired
node2  tor1  198.51.100.1  Idle         -                     0      IPv4       0      ?         Down  no answer; BFD: no packet came
`},
		"peers of one node": {line: "bgp peers --node node2", stdout: `
NODE   PEER  ADDRESS       STATE  SINCE  FLAPS  FAMILIES  SENT  ACCEPTED  BFD   LAST ERROR
node2  tor1  198.51.100.1  Idle   -      0      IPv4      0     ?         Down  no answer; BFD: no packet came
`},
		"routes": {line: "bgp routes --node node1,node2", stdout: `
NODE   PREFIX          PEER  NEXT HOP       SENT        ATTRIBUTES
node1  203.0.113.1/32  tor1  198.51.100.11  yes         communities 64512:100,rt:64512:7; med 50; prepend 2; weight 3
node2  203.0.113.1/32  tor1  198.51.100.11  no session  communities 64512:100,rt:64512:7; med 50; prepend 2; weight 3
`},
		"nobody answers": {line: "bgp routes --node node3", code: 1,
			stderr: "millrace: node3: connection refused\nmillrace: " + errAgentsFailed.Error() + "\n"},
		"JSON": {line: "bgp routes --node node1 -o json", stdout: `
{
  "nodes": [
    {
      "node": "node1",
      "routes": [
        {
          "prefix": "203.0.113.1/32",
          "peer": "tor1",
          "nextHop": "198.51.100.11",
          "established": true,
          "communities": [
            "64512:100",
            "rt:64512:7"
          ],
          "med": 50,
          "asPathPrepend": 2,
          "weight": 3
        }
      ]
    }
  ]
}
`},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), environment{
				args: append([]string{"millrace"}, strings.Fields(test.line)...), stdout: &stdout, stderr: &stderr,
				agents: func(cluster.Config, []corev1.Pod) (agents, error) { return speakers{}, nil },
			})
			if got, want := stdout.String(), strings.TrimPrefix(test.stdout, "\n"); got != want {
				t.Errorf("printed:\n%s\nwant:\n%s", got, want)
			}
			if stderr.String() != test.stderr || code != test.code {
				t.Errorf("code %d, complaints %q; want %d, %q", code, stderr.String(), test.code, test.stderr)
			}
		})
	}
}
