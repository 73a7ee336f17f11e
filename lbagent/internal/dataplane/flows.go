// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Flow is an established connection, or answered UDP flow, to an endpoint on this node.
type Flow struct {
	Frontend forwarding.FrontendKey
	Client   netip.AddrPort
	Endpoint netip.AddrPort
	// Closing is true if one side only has closed the connection.
	Closing bool
	// LastSeen is the time of the last client packet that renewed the entry, with an error of seconds.
	LastSeen time.Time
}

// Idle timeouts of established flows, as in bpf/src/flow_timeout.h.
const (
	idleEstablished = 7500 * time.Second
	idleClosing     = 240 * time.Second
	idleDatagrams   = 180 * time.Second
)

var errLimitReached = errors.New("enough were found")

// Flows returns up to limit wanted flows, in no order, and whether there are more. Unless it finds that many,
// it reads the tables in full.
func (d *Dataplane) Flows(limit int, wanted func(key forwarding.FrontendKey, client netip.Addr) bool) (flows []Flow, more bool, err error) {
	walk := flowWalk{dataplane: d, limit: limit, wanted: wanted, now: time.Now()}
	if walk.ticks, err = ticksPerSecond(); err != nil {
		return nil, false, err
	}
	if err := d.maps.HopLease.Lookup(uint32(0), &walk.clock); err != nil {
		return nil, false, fmt.Errorf("read map %s: %w", bpf.DatapathMapHopLease, err)
	}
	err = walk.all()
	if errors.Is(err, errLimitReached) {
		return walk.found, true, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the tables of flows: %w", err)
	}
	return walk.found, false, nil
}

type flowWalk struct {
	dataplane *Dataplane
	limit     int
	wanted    func(forwarding.FrontendKey, netip.Addr) bool
	// clock is the programs' current clock, in units of 1/ticks s.
	clock uint64
	ticks uint32
	now   time.Time
	found []Flow
}

func (w *flowWalk) all() error {
	maps := &w.dataplane.maps
	for _, table := range []struct{ forward, reverse *ebpf.Map }{
		{maps.Connections4, maps.Reverse4}, {maps.Datagrams4, maps.DatagramsRev4},
	} {
		err := eachEntry(table.forward, func(key bpf.DatapathConnectionKey4, connection bpf.DatapathConnection) error {
			return w.visit4(key, connection, table.reverse)
		})
		if err != nil {
			return err
		}
	}
	for _, table := range []struct{ forward, reverse *ebpf.Map }{
		{maps.Connections6, maps.Reverse6}, {maps.Datagrams6, maps.DatagramsRev6},
		{maps.OverflowConn, maps.OverflowConnRev}, {maps.OverflowData, maps.OverflowDataRev},
	} {
		err := eachEntry(table.forward, func(key bpf.DatapathConnectionKey6, connection bpf.DatapathConnection) error {
			return w.visit6(key, connection, table.reverse)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *flowWalk) visit4(key bpf.DatapathConnectionKey4, connection bpf.DatapathConnection, reverse *ebpf.Map) error {
	flow := Flow{
		Frontend: forwarding.FrontendKey{VIP: decodeIPv4(key.Vip), Port: hostPort(key.VipPort), Protocol: key.Protocol},
		Client:   netip.AddrPortFrom(decodeIPv4(key.Client), hostPort(key.ClientPort)),
	}
	return w.visit(flow, connection, func(endpoint bpf.DatapathEndpoint) (answer bpf.DatapathReverse, err error) {
		err = reverse.Lookup(bpf.DatapathReverseKey4{
			Endpoint: endpoint.Address.Word[3], Client: key.Client,
			EndpointPort: endpoint.Port, ClientPort: key.ClientPort, Protocol: key.Protocol,
		}, &answer)
		return answer, err
	})
}

func (w *flowWalk) visit6(key bpf.DatapathConnectionKey6, connection bpf.DatapathConnection, reverse *ebpf.Map) error {
	flow := Flow{
		Frontend: forwarding.FrontendKey{VIP: decodeAddress(key.Vip), Port: hostPort(key.VipPort), Protocol: key.Protocol},
		Client:   netip.AddrPortFrom(decodeAddress(key.Client), hostPort(key.ClientPort)),
	}
	return w.visit(flow, connection, func(endpoint bpf.DatapathEndpoint) (answer bpf.DatapathReverse, err error) {
		err = reverse.Lookup(bpf.DatapathReverseKey6{
			Endpoint: endpoint.Address, Client: key.Client,
			EndpointPort: endpoint.Port, ClientPort: key.ClientPort, Protocol: key.Protocol,
		}, &answer)
		return answer, err
	})
}

// visit adds a wanted live flow. answered reads its reverse entry.
func (w *flowWalk) visit(
	flow Flow, connection bpf.DatapathConnection, answered func(bpf.DatapathEndpoint) (bpf.DatapathReverse, error),
) error {
	if !w.wanted(flow.Frontend, flow.Client.Addr()) {
		return nil
	}
	var endpoint bpf.DatapathEndpoint
	if err := w.dataplane.maps.Endpoints.Lookup(connection.Endpoint, &endpoint); err != nil {
		return err
	}
	if endpoint.Port == 0 {
		// The endpoint is gone, and the flow with it. The entry remains until it times out.
		return nil
	}
	flow.Endpoint = netip.AddrPortFrom(decodeAddress(endpoint.Address), hostPort(endpoint.Port))
	reverse, err := answered(endpoint)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	closed := false
	idle := idleDatagrams
	if flow.Frontend.Protocol == forwarding.ProtocolTCP {
		if flow.Closing, closed = ending(connection, reverse); flow.Closing {
			idle = idleClosing
		} else {
			idle = idleEstablished
		}
	}
	// The programs' clock may be ahead of its last reading.
	ago := time.Duration(max(int32(uint32(w.clock)-connection.Seen), 0)) * time.Second / time.Duration(w.ticks)
	if closed || ago >= idle {
		return nil
	}
	if len(w.found) == w.limit {
		return errLimitReached
	}
	flow.LastSeen = w.now.Add(-ago)
	w.found = append(w.found, flow)
	return nil
}

// ending returns how far a TCP connection is closed, as flow_state of bpf/src/flow_timeout.h does.
func ending(connection bpf.DatapathConnection, reverse bpf.DatapathReverse) (closing, closed bool) {
	clientReset := connection.Flags&uint32(bpf.DatapathConnectionFlagCLIENT_RST) != 0
	serverReset := reverse.Flags&uint32(bpf.DatapathReverseFlagSERVER_RST) != 0
	// The endpoint acknowledged the client's FIN; without a reply it acknowledged nothing.
	clientDone := connection.Flags&uint32(bpf.DatapathConnectionFlagCLIENT_FIN) != 0 &&
		reverse != (bpf.DatapathReverse{}) && reverse.Acknowledged == reverse.Sequence
	serverDone := reverse.Flags&uint32(bpf.DatapathReverseFlagSERVER_FIN) != 0
	return clientDone || serverDone, clientReset || serverReset || clientDone && serverDone
}
