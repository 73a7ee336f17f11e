// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"encoding/json"
	"fmt"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// bfdUp is the state of an established BFD session (RFC 5880, section 4.1).
const bfdUp = "Up"

// sessionCount is nodes × routers × families.
const sessionCount = 3 * 2 * 2

func (r *run) sessions(ctx context.Context) ([]consoleapi.BGP, error) {
	out, err := r.Millrace(ctx, "bgp", "peers", "-o", "json")
	if err != nil {
		return nil, err
	}
	var found struct {
		Nodes []consoleapi.BGP `json:"nodes"`
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return nil, fmt.Errorf("read `millrace bgp peers`: %w", err)
	}
	return found.Nodes, nil
}

func allUp(sessions []consoleapi.BGP) error {
	up := 0
	for _, node := range sessions {
		for i := range node.Peers {
			if err := isUp(node.Node, &node.Peers[i]); err != nil {
				return err
			}
			up++
		}
	}
	if up != sessionCount {
		return fmt.Errorf("there are %d BGP sessions, want %d", up, sessionCount)
	}
	return nil
}

func isUp(node string, peer *consoleapi.BGPPeer) error {
	switch {
	case peer.State != string(millracev1beta1.SessionEstablished):
		return fmt.Errorf("%s: session with %s is %s: %s", node, peer.Peer, peer.State, peer.LastError)
	case peer.BFD != bfdUp:
		return fmt.Errorf("%s: BFD with %s is %s: %s", node, peer.Peer, peer.BFD, peer.BFDMessage)
	case !peer.Due.IsZero():
		return fmt.Errorf("%s: session with %s is to be made again", node, peer.Peer)
	}
	return nil
}

func established(sessions []consoleapi.BGP, name string) error {
	up := 0
	for _, node := range sessions {
		for i := range node.Peers {
			if peer := &node.Peers[i]; peer.Peer == name && peer.State == string(millracev1beta1.SessionEstablished) {
				up++
			}
		}
	}
	if up != len(nodes) {
		return fmt.Errorf("%d nodes have a session with %s", up, name)
	}
	return nil
}

// reportLost reports sessions that an event lost. Missing agents are skipped.
func (r *run) reportLost(ctx context.Context, before []consoleapi.BGP) {
	after, err := r.sessions(ctx)
	if err != nil {
		return
	}
	if lost := alarms(before, after); len(lost) > 0 {
		r.remarks = append(r.remarks, fmt.Sprintf("%d sessions were lost, such as: %s", len(lost), lost[0]))
	}
}

func alarms(before, after []consoleapi.BGP) (lost []string) {
	type key struct{ node, peer string }
	flaps := map[key]uint64{}
	for _, node := range before {
		for i := range node.Peers {
			flaps[key{node.Node, node.Peers[i].Peer}] = node.Peers[i].Flaps
		}
	}
	for _, node := range after {
		for i := range node.Peers {
			peer := &node.Peers[i]
			if was, known := flaps[key{node.Node, peer.Peer}]; known && peer.Flaps == was {
				continue
			}
			lost = append(lost, fmt.Sprintf("%s lost %s: %s", node.Node, peer.Peer, peer.LastError))
		}
	}
	return lost
}
