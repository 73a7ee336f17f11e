// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"time"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

// subject is a program and the check of its result.
type subject struct {
	name    string
	program *ebpf.Program
	verdict int32
	check   check
}

const (
	datapath         = "millrace"
	otherObject      = "the other object"
	empty            = "floor: empty"
	lookupPass       = "floor: parse + hash lookup + pass"
	lookupTX         = "floor: parse + hash lookup + TX"
	parseEncapsulate = "floor: parse + encapsulate"
	bareStage1       = "floor: bare stage 1"
	lruIPIP          = "floor: parse + LRU lookup + IPIP"
	bareStage2       = "floor: bare stage 2"
	bareDecap        = "floor: bare decapsulation + stage 2"
	bareEgress       = "floor: bare reverse"
	katran           = "Katran"
	katranFlooded    = "Katran, above its limit of new flows"
)

const (
	notForUs       = "not for us"
	besideVIP      = "not for us, in the network of a VIP"
	nextToVIP      = "not for us, next door to a VIP"
	foreignVXLAN   = "not for us, VXLAN of a CNI"
	foreignGeneve  = "not for us, Geneve of a CNI"
	awayOne        = "stage 1, established, 1 flow"
	awayMany       = "stage 1, established, 1M flows"
	awaySYN        = "stage 1, SYN from random sources"
	optionsOne     = "stage 1, 40 IPv4 options, 1 flow"
	movedOne       = "stage 1, on rows that moved, 1 flow"
	movedMany      = "stage 1, on rows that moved, 1M flows"
	affineOne      = "stage 1, session affinity, 1 flow"
	affineMany     = "stage 1, session affinity, 1M flows"
	rangesOne      = "stage 1, source ranges, 1 flow"
	rangesMany     = "stage 1, source ranges, 1M flows"
	fewOne         = "stage 1, beside 200,000 overrides, 1 flow"
	fewMany        = "stage 1, beside 200,000 overrides, 1M flows"
	fewSYN         = "stage 1, beside 200,000 overrides, random SYN"
	besideOne      = "stage 1, beside 1M overrides, 1 flow"
	besideMany     = "stage 1, beside 1M overrides, 1M flows"
	besideSYN      = "stage 1, beside 1M overrides, random SYN"
	overriddenOne  = "stage 1, one of 1M overrides, 1 flow"
	overriddenMany = "stage 1, each of 1M overrides, 1M flows"
	hereOne        = "stage 1+2, established, 1 flow"
	hereMany       = "stage 1+2, established, 1M flows"
	hereIdle       = "stage 1+2, 1M flows, each idle for 6 s"
	hereSYN        = "stage 1+2, SYN from random sources"
	tunnelOne      = "decapsulation + stage 2, 1 flow"
	tunnelMany     = "decapsulation + stage 2, 1M flows"
	egressOther    = "egress, no reply of a VIP"
	egressVXLAN    = "egress, VXLAN of a CNI"
	egressGeneve   = "egress, Geneve of a CNI"
	reverseOne     = "reverse at egress, 1 flow"
	reverseMany    = "reverse at egress, 1M flows"
	measurements   = 200_000
)

// benchCase is a stream and its subjects. The first subject is the empty program, whose time is subtracted.
type benchCase struct {
	name     string
	family   family
	port     uint16
	stream   *stream
	alive    *stream
	subjects []subject
	// count is the number of frames per measurement, at least one per flow.
	count int
	turns int
	idle  time.Duration
}

// idleTime exceeds REFRESH_SECONDS of bpf/src/consts.h, so that the next packet of a flow renews its entry.
const idleTime = 6 * time.Second

type contenders struct {
	floors *floorsObjects
	other  *otherPrograms
	katran *katranPrograms
}

func (c contenders) close() error {
	errs := []error{c.katran.close()}
	if c.floors != nil {
		errs = append(errs, c.floors.Close())
	}
	if c.other != nil {
		errs = append(errs, c.other.close())
	}
	return errors.Join(errs...)
}

func (w *world) build(f family, names *regexp.Regexp, beside contenders) ([]*benchCase, error) {
	b := &builder{world: w, family: f, names: names, contenders: beside}
	b.nothing = subject{empty, b.floors.Empty, rig.XDPPass, longer(f, 0)}
	b.addAside()
	b.addAway()
	b.addHere()
	b.addReplies()
	return b.all, b.err
}

type builder struct {
	*world
	contenders
	family  family
	names   *regexp.Regexp
	nothing subject

	all []*benchCase
	err error
}

type frame func() ([]byte, error)

func (b *builder) add(name string, t traffic, first frame, subjects ...subject) {
	if b.err != nil || !b.names.MatchString(name) {
		return
	}
	var c *benchCase
	subjects = b.katran.join(b.other.join(subjects, t.egress), name, b.family)
	if t.frame, b.err = first(); b.err == nil {
		if c, b.err = b.newCase(name, b.family, t, subjects); b.err == nil {
			b.all = append(b.all, c)
		}
	}
}

func (b *builder) beside(name string, established frame) {
	if b.err != nil || !b.names.MatchString(name) {
		return
	}
	t := b.clients(many)
	if t.frame, b.err = established(); b.err == nil {
		b.all[len(b.all)-1].alive, b.err = newStream(t, b.Uplink.Index)
	}
}

// Numbers of flows of a case; random creates a new flow per packet.
const (
	one    = uint32(1)
	many   = uint32(flowCount)
	random = uint32(0)
)

func (b *builder) ours(verdict int32, check check) subject {
	return subject{datapath, b.Ingress, verdict, check}
}

func incoming(s segment) frame {
	return func() ([]byte, error) { return s.frame(routerMAC, uplinkMAC) }
}

func (b *builder) clients(flows uint32) traffic {
	return traffic{fields: b.family.clientFields(ethernetLength), flows: flows}
}

func (b *builder) addAside() {
	f := b.family
	lookup := subject{lookupPass, b.floors.LookupPass, rig.XDPPass, longer(f, 0)}
	ours := b.ours(rig.XDPPass, unchanged)
	b.add(notForUs, b.clients(one), incoming(f.fromClient(f.untrusted, portAway, false)),
		b.nothing, lookup, ours)
	b.add(besideVIP, b.clients(one), incoming(f.fromClient(f.neighbour, portAway, false)),
		b.nothing, lookup, ours)
	b.add(nextToVIP, b.clients(one), incoming(f.fromClient(f.nextDoor, portAway, false)),
		b.nothing, lookup, ours)
	tunnel := func(port uint16) frame {
		return func() ([]byte, error) { return f.fromPeer(port).frame(routerMAC, uplinkMAC) }
	}
	b.add(foreignVXLAN, b.clients(one), tunnel(portVXLAN), b.nothing, ours)
	b.add(foreignGeneve, b.clients(one), tunnel(portGeneve), b.nothing, ours)
}

func (b *builder) addAway() {
	f := b.family
	away := b.ours(rig.XDPTX, f.tagged(f.encapsulated(0)))
	bare := subject{bareStage1, b.floors.BareStage1, rig.XDPTX, f.encapsulated(0)}
	lru := subject{lruIPIP, b.floors.LruIpip, rig.XDPTX, longer(f, int(f.ipHeader()))}
	midstream := incoming(f.fromClient(f.vip, portAway, false))
	b.add(awayOne, b.clients(one), midstream,
		b.nothing, subject{lookupTX, b.floors.LookupTx, rig.XDPTX, longer(f, 0)},
		subject{parseEncapsulate, b.floors.ParseEncapsulate, rig.XDPTX, longer(f, f.overhead)},
		bare, lru, away)
	b.add(awayMany, b.clients(many), midstream, b.nothing, bare, lru, away)
	b.add(awaySYN, b.clients(random), incoming(f.fromClient(f.vip, portAway, true)),
		b.nothing, bare, away)
	b.beside(awaySYN, midstream)
	if options := f.fromClient(f.vip, portAway, false); options.to.Addr().Is4() {
		t := b.clients(one)
		options.noOps, options.length, t.fields.port = 40, options.length+40, t.fields.port+40
		b.add(optionsOne, t, incoming(options), subject{empty, b.floors.Empty, rig.XDPPass, anything}, b.ours(rig.XDPTX, longer(f, 40+f.overhead)))
	}
	for _, m := range markedCases {
		from := f
		if m.others {
			from.client = f.otherClient
		}
		ours := away
		if m.port == portMany && !m.others {
			ours.check = f.tagged(f.encapsulated(f.owner))
		}
		b.add(m.name, b.clients(m.flows), incoming(from.fromClient(f.vip, m.port, m.flows == random)),
			b.nothing, bare, lru, ours)
		if b.err == nil && b.names.MatchString(m.name) {
			b.all[len(b.all)-1].port = m.port
		}
	}
}

func (b *builder) addHere() {
	f := b.family
	here := b.ours(rig.XDPPass, f.delivered(0))
	bare := subject{bareStage2, b.floors.BareStage2, rig.XDPPass, f.delivered(0)}
	midstream := incoming(f.fromClient(f.vip, portHere, false))
	b.add(hereOne, b.clients(one), midstream, b.nothing, bare, here)
	b.add(hereMany, b.clients(many), midstream, b.nothing, bare, here)
	b.add(hereIdle, b.clients(many), midstream, b.nothing, here)
	b.add(hereSYN, b.clients(random), incoming(f.fromClient(f.vip, portHere, true)),
		b.nothing, bare, here)
	b.beside(hereSYN, midstream)

	packed := func() ([]byte, error) { return b.encapsulated(f) }
	fields := f.clientFields(uint32(ethernetLength + f.overhead))
	nothing := subject{empty, b.floors.Empty, rig.XDPPass, anything}
	bare = subject{bareDecap, b.floors.BareDecap, rig.XDPPass, f.delivered(f.overhead)}
	fromTunnel := b.ours(rig.XDPPass, f.delivered(f.overhead))
	b.add(tunnelOne, traffic{fields: fields, flows: one}, packed, nothing, bare, fromTunnel)
	b.add(tunnelMany, traffic{fields: fields, flows: many}, packed, nothing, bare, fromTunnel)
}

func (b *builder) addReplies() {
	f := b.family
	nothing := subject{empty, b.floors.EmptyEgress, rig.TCXNext, anything}
	answer := func() ([]byte, error) { return f.fromEndpoint(false).frame(uplinkMAC, routerMAC) }
	other := func() ([]byte, error) { return f.fromUntrusted().frame(uplinkMAC, routerMAC) }
	replies := func(flows uint32) traffic {
		return traffic{fields: f.replyFields(), flows: flows, egress: true}
	}
	ours := subject{datapath, b.Egress, rig.TCXNext, f.replied}
	b.add(egressOther, replies(one), other, nothing, subject{datapath, b.Egress, rig.TCXNext, unchanged})
	tunnel := func(port uint16) frame {
		return func() ([]byte, error) { return f.toPeer(port).frame(uplinkMAC, routerMAC) }
	}
	passes := subject{datapath, b.Egress, rig.TCXNext, unchanged}
	// The destination port is at the offset of a reply's client port.
	peers := traffic{fields: fields{f.replyFields().address, f.clientFields(ethernetLength).port}, flows: one, egress: true}
	b.add(egressVXLAN, peers, tunnel(portVXLAN), nothing, passes)
	b.add(egressGeneve, peers, tunnel(portGeneve), nothing, passes)
	bare := subject{bareEgress, b.floors.BareEgress, rig.TCXNext, f.replied}
	b.add(reverseOne, replies(one), answer, nothing, bare, ours)
	b.add(reverseMany, replies(many), answer, nothing, bare, ours)
}

// markedCases are stage 1 with rows in transition and frontends with further features; SYNs have random sources.
var markedCases = []struct {
	name  string
	port  uint16
	flows uint32
	// others are flows without overrides, in rows with overrides.
	others bool
}{
	{movedOne, portMoved, 1, false}, {movedMany, portMoved, flowCount, false},
	{affineOne, portAffinity, 1, false}, {affineMany, portAffinity, flowCount, false},
	{rangesOne, portRanges, 1, false}, {rangesMany, portRanges, flowCount, false},
	{fewOne, portFew, 1, true}, {fewMany, portFew, flowCount, true}, {fewSYN, portFew, 0, true},
	{besideOne, portMany, 1, true}, {besideMany, portMany, flowCount, true}, {besideSYN, portMany, 0, true},
	{overriddenOne, portMany, 1, false}, {overriddenMany, portMany, flowCount, false},
}

func (w *world) newCase(name string, f family, t traffic, subjects []subject) (*benchCase, error) {
	s, err := newStream(t, w.Uplink.Index)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", name, f.name, err)
	}
	// Short measurements are cheap, and some of many are undisturbed.
	c := &benchCase{name: name, family: f, stream: s, subjects: subjects, count: measurements, turns: 4}
	if t.flows != 1 {
		c.count, c.turns = flowCount, 1
	}
	if name == hereIdle {
		c.idle = idleTime
	}
	return c, nil
}

func (c *benchCase) close() error {
	if c.alive != nil {
		return errors.Join(c.stream.close(), c.alive.close())
	}
	return c.stream.close()
}

// encapsulated returns the first flow's frame as encapsulated by another node's program.
func (w *world) encapsulated(f family) ([]byte, error) {
	inner := f
	// The frame's length must be a multiple of 8.
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
	if err := errors.Join(w.Become(there, nextHopMAC), w.Plane.SetTunnelKeys(tunnelKeys(blindKey))); err != nil {
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
	return sent.Frame, errors.Join(w.Become(here, nextHopMAC), w.Plane.SetTunnelKeys(tunnelKeys(ownKey)))
}
