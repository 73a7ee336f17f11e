// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/rig"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

var (
	packets = flag.Int("packets", 60_000, "how many packets the differential test sends")
	seedOf  = flag.Uint64("seed", 0, "seed of the packets; zero draws one")
)

const (
	// batch is how many packets are sent between two looks at the counters.
	batch = 2000
	// stretch is how many are sent between two lines about the progress.
	stretch = 1_000_000
)

// TestDifferential holds the programs of four nodes to the model: by whatever way, every
// packet ends where and as the model says, and replies leave with the address of the VIP.
func TestDifferential(t *testing.T) {
	first := *seedOf
	if first == 0 {
		first = rand.Uint64()
	}
	workers := runtime.GOMAXPROCS(0)
	clusters := make([]*differential, workers)
	for i := range workers {
		random := rand.New(rand.NewPCG(first, uint64(i)))
		clusters[i] = &differential{cluster: newCluster(t, i, random), random: random, expected: map[string]uint64{}, reasons: map[string]uint64{}}
	}
	t.Logf("seed %d, %d workers", first, workers)
	var group sync.WaitGroup
	var all atomic.Int64
	for _, d := range clusters {
		group.Go(func() {
			for sent := 0; sent < *packets/workers && !t.Failed(); sent += batch {
				d.batch(t)
				if n := all.Add(batch); n%stretch == 0 {
					t.Logf("%d packets", n)
				}
			}
		})
	}
	group.Wait()
	report(t, clusters)
}

// foreseen are reasons for which the model knows packets to be dropped.
var foreseen = []string{"malformed", "no_frontend", "pool_unassigned", "source_range", "no_endpoint"}

// report tells what became of the packets, and that there were some of each kind.
func report(t *testing.T, clusters []*differential) {
	t.Helper()
	total := map[string]int{}
	for _, d := range clusters {
		for kind, n := range d.kinds {
			total[fateNames[kind]] += n
		}
		for reason, n := range d.reasons {
			total[reason] += int(n)
		}
		total["answered"] += d.answered
	}
	t.Logf("packets: %v", total)
	for _, name := range slices.Concat(fateNames, foreseen, []string{"answered"}) {
		if total[name] == 0 {
			t.Errorf("no packet was %s: the test has lost its sense", name)
		}
	}
}

var fateNames = []string{"unmodelled", "untouched", "dropped", "refused", "delivered"}

type differential struct {
	cluster *testCluster
	random  *rand.Rand
	kinds   [5]int
	// expected are the drops that the model foresaw, others how many it did not. Unclear are
	// packets of which it says nothing and that were answered, perhaps as refused ones.
	expected        map[string]uint64
	others, unclear uint64
	// answered are refused packets whose client was told.
	answered int
	// reasons are all foreseen drops by reason.
	reasons map[string]uint64
}

func (d *differential) batch(t *testing.T) {
	for _, n := range d.cluster.nodes {
		if err := n.Plane.Vouch(); err != nil {
			t.Error(err)
			return
		}
	}
	before := d.cluster.tally(t)
	clear(d.expected)
	d.others, d.unclear = 0, 0
	for range batch {
		at := program.NodeID(1 + d.random.IntN(nodeCount))
		frame := d.frame(at)
		if err := d.check(at, bytes.Clone(frame)); err != nil {
			t.Errorf("node %d, frame %s: %v", at, hex.EncodeToString(frame), err)
			return
		}
	}
	for reason, n := range d.expected {
		d.reasons[reason] += n
	}
	var surplus uint64
	for reason, n := range d.cluster.tally(t) {
		counted := n - before[reason]
		if counted < d.expected[reason] {
			t.Errorf("%d packets dropped for %s, counted %d", d.expected[reason], reason, counted)
		}
		surplus += counted - min(counted, d.expected[reason])
	}
	if surplus < d.others || surplus > d.others+d.unclear {
		t.Errorf("%d more drops were counted than seen as such, want %d: each dropped packet under one reason, no other under any", surplus, d.others)
	}
}

// check sends one packet, and the endpoint's reply to it.
func (d *differential) check(at program.NodeID, frame []byte) error {
	want := d.cluster.Forecast(at, frame, d.cluster.knows)
	d.kinds[want.Fate]++
	if want.Fate == Delivered {
		d.cluster.last[want.Flow] = time.Now()
	}
	got, err := d.cluster.carry(at, frame)
	if err != nil {
		return err
	}
	dropped := got.Verdict == rig.XDPDrop
	if dropped && want.Fate != Dropped && want.Fate != Refused {
		d.others++
	}
	switch want.Fate {
	case Unmodelled:
		if !dropped && got.Verdict != rig.XDPPass && got.Verdict != rig.XDPTX {
			return fmt.Errorf("verdict %d", got.Verdict)
		}
		if got.Verdict == rig.XDPTX {
			d.unclear++
		}
		return nil
	case Untouched:
		if got.Verdict != rig.XDPPass || got.at != at || len(got.Note) > 0 || !bytes.Equal(got.Frame, frame) {
			return fmt.Errorf("verdict %d at node %d, frame %x; want it to go on as it is", got.Verdict, got.at, got.Frame)
		}
		return nil
	case Dropped:
		d.expected[want.Reason]++
		if by := want.Targets[0].Node; !dropped || got.at != by {
			return fmt.Errorf("verdict %d at node %d, want a drop at node %d: %s", got.Verdict, got.at, by, want.Reason)
		}
		return nil
	case Refused:
		d.expected[want.Reason]++
		return d.checkRefused(want, frame, got)
	default:
		return d.checkDelivered(want, frame, got)
	}
}

// checkRefused allows that the limit of answers is reached.
func (d *differential) checkRefused(want Forecast, frame []byte, got arrival) error {
	if by := want.Targets[0].Node; got.at != by {
		return fmt.Errorf("%v came to node %d, want it to be refused at node %d", want.Flow, got.at, by)
	}
	switch got.Verdict {
	case rig.XDPDrop:
		return nil
	case rig.XDPTX:
		d.answered++
		return CheckRefusal(frame, got.Frame)
	default:
		return fmt.Errorf("%v: verdict %d, want it to be refused", want.Flow, got.Verdict)
	}
}

func (d *differential) checkDelivered(want Forecast, frame []byte, got arrival) error {
	if got.Verdict != rig.XDPPass || len(got.Note) > 0 {
		return fmt.Errorf("%v: verdict %d at node %d after %d hops, want one of %v", want.Flow, got.Verdict, got.at, got.hops, want.Targets)
	}
	for _, target := range want.Targets {
		endpoint := d.cluster.Cluster[target.Node].State.Endpoints[target.Endpoint]
		to := netip.AddrPortFrom(endpoint.Address, endpoint.Port)
		if target.Node != got.at {
			continue
		}
		if err := CheckTranslated(frame, got.Frame, false, to); err != nil {
			return fmt.Errorf("%v at node %d: %w: %x", want.Flow, got.at, err, got.Frame)
		}
		if known, ok := d.cluster.knows(got.at, want.Flow); !ok || known.Endpoint != target.Endpoint {
			return fmt.Errorf("%v: node %d has it with endpoint %d (%v), want %d", want.Flow, got.at, known.Endpoint, ok, target.Endpoint)
		}
		p, _ := parse(frame)
		return d.checkReply(got.at, want.Flow, to, !p.midstream())
	}
	return fmt.Errorf("%v came to node %d after %d hops, want one of %v", want.Flow, got.at, got.hops, want.Targets)
}

// checkReply lets the endpoint answer half of the packets.
func (d *differential) checkReply(at program.NodeID, flow Flow, endpoint netip.AddrPort, opening bool) error {
	if d.random.IntN(2) == 0 {
		return nil
	}
	flags := []byte{flagACK, flagSYN | flagACK}[d.random.IntN(2)]
	reply := build(endpoint, flow.Client, flow.Protocol, flags, d.random.IntN(64))
	copy(reply, append(append([]byte{}, routerMAC...), d.cluster.Cluster[at].MAC...))
	got, err := d.cluster.nodes[at].Send(reply)
	if err != nil {
		return err
	}
	if got.Verdict != rig.TCXNext {
		return fmt.Errorf("reply of %v: verdict %d", flow, got.Verdict)
	}
	// What does not fit a connection that is not proved yet may be of another one between
	// the two: it stays as it is. A SYN-ACK that answers a SYN fits.
	answer := opening && flags&flagSYN != 0
	if flow.Protocol == TCP && !answer && bytes.Equal(got.Frame, reply) {
		return nil
	}
	if err := CheckTranslated(reply, got.Frame, true, flow.VIP); err != nil {
		return fmt.Errorf("reply of %v: %w: %x", flow, err, got.Frame)
	}
	return nil
}

// frame is a packet of one of a few thousand flows, now and then damaged.
func (d *differential) frame(at program.NodeID) []byte {
	r := d.random
	family := r.IntN(len(vips))
	service := services[r.IntN(len(services))]
	client := address("198.19.0.%d", 1+r.IntN(64))
	if family == 1 {
		client = address("2001:db8:1::%x", 1+r.IntN(64))
	}
	to := netip.AddrPortFrom(vips[family], service.port)
	switch r.IntN(40) {
	case 0:
		to = netip.AddrPortFrom(to.Addr(), uint16(r.Uint32()))
	case 1:
		to = netip.AddrPortFrom(to.Addr().Next(), to.Port())
	case 2:
		to = netip.AddrPortFrom(to.Addr().Next().Next(), to.Port())
	}
	flags := []byte{flagSYN, flagACK, flagACK, flagACK | 8, flagACK | 1, 4, flagSYN | flagACK, byte(r.Uint32())}[r.IntN(8)]
	from := netip.AddrPortFrom(client, uint16(1024+r.IntN(32)))
	frame := build(from, to, service.protocol, flags, r.IntN(200))
	copy(frame, append(append([]byte{}, d.cluster.Cluster[at].MAC...), routerMAC...))
	return d.damage(frame)
}

// damage changes bytes of the headers, cuts the frame off, or makes it longer.
func (d *differential) damage(frame []byte) []byte {
	r := d.random
	switch r.IntN(16) {
	case 0:
		for range 1 + r.IntN(3) {
			frame[r.IntN(min(len(frame), 90))] ^= byte(1 << r.IntN(8))
		}
	case 1:
		return frame[:ethernetLength+r.IntN(len(frame)-ethernetLength)]
	case 2:
		return append(frame, make([]byte, r.IntN(40))...)
	}
	return frame
}

// build makes a frame with right checksums; the Ethernet addresses are left open.
func build(from, to netip.AddrPort, protocol uint8, flags byte, payload int) []byte {
	l4 := make([]byte, tcpLength+payload)
	if protocol == UDP {
		l4 = l4[:udpLength+payload]
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	} else {
		l4[12], l4[13] = tcpLength/4<<4, flags
	}
	for i := len(l4) - payload; i < len(l4); i++ {
		l4[i] = byte(i * 7)
	}
	binary.BigEndian.PutUint16(l4, from.Port())
	binary.BigEndian.PutUint16(l4[2:], to.Port())
	frame := make([]byte, ethernetLength)
	if to.Addr().Is4() {
		binary.BigEndian.PutUint16(frame[12:], etherTypeIPv4)
		ip := make([]byte, ipv4Length)
		ip[0], ip[8], ip[9] = 0x45, 64, protocol
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
		copy(ip[12:], from.Addr().AsSlice())
		copy(ip[16:], to.Addr().AsSlice())
		binary.BigEndian.PutUint16(ip[10:], uint16(0xffff-residue(ip)))
		frame = append(frame, ip...)
	} else {
		binary.BigEndian.PutUint16(frame[12:], etherTypeIPv6)
		ip := make([]byte, ipv6Length)
		ip[0], ip[6], ip[7] = 0x60, protocol, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
		copy(ip[8:], from.Addr().AsSlice())
		copy(ip[24:], to.Addr().AsSlice())
		frame = append(frame, ip...)
	}
	p := packet{Flow: Flow{Protocol: protocol}}
	pseudo := append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), 0, protocol)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(l4)))
	binary.BigEndian.PutUint16(l4[p.checksumAt():], uint16(0xffff-residue(append(pseudo, l4...))))
	return append(frame, l4...)
}
