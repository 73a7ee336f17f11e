// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"regexp"
	"time"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

// subject is a program, and what it must do for its time to count.
type subject struct {
	name    string
	program *ebpf.Program
	verdict int32
	// check checks the frame that came out.
	check check
}

// Names of the subjects.
const (
	datapath         = "millrace"
	otherObject      = "the other object"
	empty            = "floor: empty"
	lookupPass       = "floor: parse + hash lookup + pass"
	lookupTX         = "floor: parse + hash lookup + TX"
	parseEncapsulate = "floor: parse + encapsulate"
	bareStage1       = "floor: bare stage 1"
	lruIPIP          = "floor: parse + LRU lookup + IPIP"
)

// Names of the cases.
const (
	notForUs     = "not for us"
	besideVIP    = "not for us, in the network of a VIP"
	awayOne      = "stage 1, established, 1 flow"
	awayMany     = "stage 1, established, 1M flows"
	awaySYN      = "stage 1, SYN from random sources"
	movedOne     = "stage 1, on rows that moved, 1 flow"
	movedMany    = "stage 1, on rows that moved, 1M flows"
	affineOne    = "stage 1, session affinity, 1 flow"
	affineMany   = "stage 1, session affinity, 1M flows"
	rangesOne    = "stage 1, source ranges, 1 flow"
	rangesMany   = "stage 1, source ranges, 1M flows"
	fewOne       = "stage 1, beside 200,000 exceptions, 1 flow"
	fewMany      = "stage 1, beside 200,000 exceptions, 1M flows"
	fewSYN       = "stage 1, beside 200,000 exceptions, random SYN"
	besideOne    = "stage 1, beside 1M exceptions, 1 flow"
	besideMany   = "stage 1, beside 1M exceptions, 1M flows"
	besideSYN    = "stage 1, beside 1M exceptions, random SYN"
	exceptedOne  = "stage 1, one of 1M exceptions, 1 flow"
	exceptedMany = "stage 1, each of 1M exceptions, 1M flows"
	hereOne      = "stage 1+2, established, 1 flow"
	hereMany     = "stage 1+2, established, 1M flows"
	hereIdle     = "stage 1+2, 1M flows, each idle for 6 s"
	hereSYN      = "stage 1+2, SYN from random sources"
	tunnelOne    = "decapsulation + stage 2, 1 flow"
	tunnelMany   = "decapsulation + stage 2, 1M flows"
	egressOther  = "egress, no reply of a VIP"
	reverseOne   = "reverse at egress, 1 flow"
	reverseMany  = "reverse at egress, 1M flows"
	measurements = 200_000
)

// benchCase is a stream and the subjects measured with it. The first subject is the empty
// program, whose time is subtracted.
type benchCase struct {
	name   string
	family family
	// port is that of the VIP.
	port     uint16
	stream   *stream
	subjects []subject
	// count is the number of frames of a measurement: at least one of each flow.
	count int
	// idle is how long all flows were without a packet.
	idle time.Duration
}

// idleTime is longer than REFRESH_SECONDS of bpf/src/consts.h: a flow's first packet after it
// renews the flow's entry.
const idleTime = 6 * time.Second

// contenders are the programs beside which the data plane is measured.
type contenders struct {
	floors *floorsObjects
	// other is nil where there is none.
	other *otherPrograms
}

// build makes the cases of a family whose names match. The programs themselves open the flows
// of the established cases.
func (w *world) build(f family, names *regexp.Regexp, beside contenders) ([]*benchCase, error) {
	floors := beside.floors
	toUplink := func(s segment) ([]byte, error) { return s.frame(routerMAC, uplinkMAC) }
	nothing := subject{empty, floors.Empty, rig.XDPPass, longer(f, 0)}
	ours := func(verdict int32, check check) subject {
		return subject{datapath, w.Ingress, verdict, check}
	}
	away := ours(rig.XDPTX, f.encapsulated(0))
	bare := subject{bareStage1, floors.BareStage1, rig.XDPTX, f.encapsulated(0)}
	lru := subject{lruIPIP, floors.LruIpip, rig.XDPTX, longer(f, int(f.ipHeader()))}
	here := ours(rig.XDPPass, f.delivered(0))
	tunnel, err := w.encapsulated(f)
	if err != nil {
		return nil, err
	}
	fromTunnel := ours(rig.XDPPass, f.delivered(f.overhead))
	fromClient := f.clientFields(ethernetLength)
	inTunnel := f.clientFields(uint32(ethernetLength + f.overhead))
	egressEmpty := subject{empty, floors.EmptyEgress, rig.TCXNext, anything}
	egress := subject{datapath, w.Egress, rig.TCXNext, f.replied}

	var all []*benchCase
	add := func(name string, t traffic, frame func() ([]byte, error), subjects ...subject) {
		if err != nil || !names.MatchString(name) {
			return
		}
		var c *benchCase
		subjects = beside.other.join(subjects, t.egress)
		if t.frame, err = frame(); err == nil {
			c, err = w.newCase(name, f, t, subjects)
			all = append(all, c)
		}
	}
	incoming := func(s segment) func() ([]byte, error) { return func() ([]byte, error) { return toUplink(s) } }
	one, many, random := uint32(1), uint32(flowCount), uint32(0)
	add(notForUs, traffic{fields: fromClient, flows: one}, incoming(f.fromClient(f.stranger, portAway, false)),
		nothing, subject{lookupPass, floors.LookupPass, rig.XDPPass, longer(f, 0)}, ours(rig.XDPPass, unchanged))
	add(besideVIP, traffic{fields: fromClient, flows: one}, incoming(f.fromClient(f.neighbour, portAway, false)),
		nothing, subject{lookupPass, floors.LookupPass, rig.XDPPass, longer(f, 0)}, ours(rig.XDPPass, unchanged))
	add(awayOne, traffic{fields: fromClient, flows: one}, incoming(f.fromClient(f.vip, portAway, false)),
		nothing, subject{lookupTX, floors.LookupTx, rig.XDPTX, longer(f, 0)},
		subject{parseEncapsulate, floors.ParseEncapsulate, rig.XDPTX, longer(f, f.overhead)}, bare, lru, away)
	add(awayMany, traffic{fields: fromClient, flows: many}, incoming(f.fromClient(f.vip, portAway, false)), nothing, bare, lru, away)
	add(awaySYN, traffic{fields: fromClient, flows: random}, incoming(f.fromClient(f.vip, portAway, true)), nothing, bare, away)
	for _, m := range markedCases {
		from := f
		if m.others {
			from.client = f.otherClient
		}
		ours := away
		if m.port == portMany && !m.others {
			ours.check = f.encapsulated(f.holder)
		}
		add(m.name, traffic{fields: fromClient, flows: m.flows}, incoming(from.fromClient(f.vip, m.port, m.flows == 0)), nothing, bare, lru, ours)
		if err == nil && names.MatchString(m.name) {
			all[len(all)-1].port = m.port
		}
	}
	add(hereOne, traffic{fields: fromClient, flows: one}, incoming(f.fromClient(f.vip, portHere, false)), nothing, here)
	add(hereMany, traffic{fields: fromClient, flows: many}, incoming(f.fromClient(f.vip, portHere, false)), nothing, here)
	add(hereIdle, traffic{fields: fromClient, flows: many}, incoming(f.fromClient(f.vip, portHere, false)), nothing, here)
	add(hereSYN, traffic{fields: fromClient, flows: random}, incoming(f.fromClient(f.vip, portHere, true)), nothing, here)
	packed := func() ([]byte, error) { return tunnel, nil }
	add(tunnelOne, traffic{fields: inTunnel, flows: one}, packed, subject{empty, floors.Empty, rig.XDPPass, anything}, fromTunnel)
	add(tunnelMany, traffic{fields: inTunnel, flows: many}, packed, subject{empty, floors.Empty, rig.XDPPass, anything}, fromTunnel)
	answer := func() ([]byte, error) { return f.fromEndpoint(false).frame(uplinkMAC, routerMAC) }
	other := func() ([]byte, error) { return f.fromStranger().frame(uplinkMAC, routerMAC) }
	add(egressOther, traffic{fields: f.replyFields(), flows: one, egress: true}, other, egressEmpty,
		subject{datapath, w.Egress, rig.TCXNext, unchanged})
	add(reverseOne, traffic{fields: f.replyFields(), flows: one, egress: true}, answer, egressEmpty, egress)
	add(reverseMany, traffic{fields: f.replyFields(), flows: many, egress: true}, answer, egressEmpty, egress)
	return all, err
}

// markedCases are of stage 1 on rows that are not at rest, and of frontends that ask more of it.
// SYNs come from random sources.
var markedCases = []struct {
	name  string
	port  uint16
	flows uint32
	// others are flows that are no exceptions, on rows that have some.
	others bool
}{
	{movedOne, portMoved, 1, false}, {movedMany, portMoved, flowCount, false},
	{affineOne, portAffinity, 1, false}, {affineMany, portAffinity, flowCount, false},
	{rangesOne, portRanges, 1, false}, {rangesMany, portRanges, flowCount, false},
	{fewOne, portFew, 1, true}, {fewMany, portFew, flowCount, true}, {fewSYN, portFew, 0, true},
	{besideOne, portMany, 1, true}, {besideMany, portMany, flowCount, true}, {besideSYN, portMany, 0, true},
	{exceptedOne, portMany, 1, false}, {exceptedMany, portMany, flowCount, false},
}

func (w *world) newCase(name string, f family, t traffic, subjects []subject) (*benchCase, error) {
	s, err := newStream(t, w.Uplink.Index)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", name, f.name, err)
	}
	c := &benchCase{name: name, family: f, stream: s, subjects: subjects, count: measurements}
	if t.flows != 1 {
		c.count = flowCount
	}
	if name == hereIdle {
		c.idle = idleTime
	}
	return c, nil
}

// encapsulated is a frame of the first flow as another node sends it here. Only the program
// knows the format, so the program makes it, in the role of that node.
func (w *world) encapsulated(f family) ([]byte, error) {
	inner := f
	// So long that the frame is a multiple of 8 again.
	inner.length -= (f.length + f.overhead) % 8
	frame, err := inner.fromClient(f.vip, portHere, false).frame(routerMAC, uplinkMAC)
	if err != nil {
		return nil, err
	}
	here := w.Contents()
	there := state()
	there.Self = forwarding.Self{ID: f.firstNode, IPv4: there.Nodes[f.firstNode].IPv4, IPv6: there.Nodes[f.firstNode].IPv6}
	there.Nodes[selfID] = forwarding.Node{IPv4: self.IPv4, IPv6: self.IPv6}
	delete(there.Nodes, f.firstNode)
	if err := w.Become(there, nextHopMAC); err != nil {
		return nil, err
	}
	sent, err := w.Receive(frame)
	if err != nil {
		return nil, fmt.Errorf("encapsulate a frame: %w", err)
	}
	if sent.Verdict != rig.XDPTX {
		return nil, fmt.Errorf("encapsulate a frame: verdict %d, want XDP_TX", sent.Verdict)
	}
	copy(sent.Frame, append(append(net.HardwareAddr{}, uplinkMAC...), routerMAC...))
	return sent.Frame, w.Become(here, nextHopMAC)
}
