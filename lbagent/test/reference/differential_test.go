// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"bytes"
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

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

var (
	packets = flag.Int("packets", 30_000, "how many packets the differential test sends")
	seedOf  = flag.Uint64("seed", 0, "seed of the packets; zero draws one")
)

const (
	batch = 2000
	// forgivable is the number of unknown packets of a source within the limit.
	forgivable = 16
	renewed    = 100
	stretch    = 1_000_000
	// share is the minimum number of packets for a cluster; fewer would find too few moved flows.
	share = 30_000
)

// TestDifferential compares the programs of four nodes with the model: each packet must have the predicted
// result, regardless of its path, and replies must have the address of the VIP.
func TestDifferential(t *testing.T) {
	first := *seedOf
	if first == 0 {
		first = rand.Uint64()
	}
	workers := max(1, min(runtime.GOMAXPROCS(0), *packets/share))
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

var foreseen = []string{"malformed", "no_frontend", "pool_unassigned", "aggregate_unassigned", "source_range", "no_endpoint", "source_route", "ipv6_extension", "backend_invalid"}

// report logs the results and verifies that each kind of packet occurred.
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
		total["learned"] += d.learned
		total["kept"] += d.kept
	}
	t.Logf("packets: %v", total)
	for _, name := range slices.Concat(fateNames, foreseen, []string{"answered", "learned", "kept"}) {
		if total[name] == 0 && *packets >= share {
			t.Errorf("no packet with outcome %s: the test no longer covers it", name)
		}
	}
}

var fateNames = []string{"unmodelled", "untouched", "dropped", "refused", "delivered"}

type differential struct {
	cluster *testCluster
	random  *rand.Rand
	kinds   [5]int
	// expected are the predicted drops, others is the number of other drops. unclear are answered packets
	// outside of the model, which may have been refused.
	expected        map[string]uint64
	others, unclear uint64
	answered        int
	// learned are packets of flows with an override before or after them.
	learned int
	// kept are flows that created their client's record of session affinity.
	kept    int
	reasons map[string]uint64
}

func (d *differential) batch(t *testing.T) {
	if d.random.IntN(2) == 0 {
		if err := d.cluster.change(d.random); err != nil {
			t.Error(err)
			return
		}
	}
	before := d.cluster.tally(t)
	clear(d.expected)
	d.others, d.unclear = 0, 0
	for i := range batch {
		if i%forgivable == 0 {
			d.cluster.forgive(t)
		}
		if i%renewed == 0 {
			if err := d.cluster.renewLeases(); err != nil {
				t.Error(err)
				return
			}
		}
		at := forwarding.NodeID(1 + d.random.IntN(nodeCount))
		frame := d.frame(at)
		if err := d.check(at, bytes.Clone(frame)); err != nil {
			t.Errorf("node %d, frame %s: %v; %s", at, hex.EncodeToString(frame), err, d.describe(at, frame))
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
			t.Errorf("%d packets dropped with reason %s, counter increased by %d", d.expected[reason], reason, counted)
		}
		surplus += counted - min(counted, d.expected[reason])
	}
	if surplus < d.others || surplus > d.others+d.unclear {
		t.Errorf("%d more drops were counted than observed, want %d: each dropped packet counts for exactly one reason", surplus, d.others)
	}
}

// describe returns the frontend, the row and each node's entry and override of a frame's flow.
func (d *differential) describe(at forwarding.NodeID, frame []byte) string {
	p, _ := parse(frame)
	state := d.cluster.Cluster[at].State
	frontend := state.Frontends[forwarding.FrontendKey{VIP: p.VIP.Addr(), Port: p.VIP.Port(), Protocol: p.Protocol}]
	text := fmt.Sprintf("frontend %+v", frontend)
	if table := state.NodeTables[frontend.Table]; table != nil {
		hash, _ := p.hash(frontend)
		text += fmt.Sprintf(", row %+v", (*table)[frontend.Table.Row(hash)])
	}
	for id := range d.cluster.nodes {
		entry, known := d.cluster.Knows(id, p.Flow)
		owner, learned := d.cluster.Learned(id, p.Flow)
		text += fmt.Sprintf("; node %d: entry %+v (%v), override %d (%v)", id, entry, known, owner, learned)
	}
	return text
}

func (d *differential) check(at forwarding.NodeID, frame []byte) error {
	want := d.cluster.Forecast(at, frame, d.cluster)
	d.kinds[want.Fate]++
	before := d.holdings(want)
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
		if got.Verdict == rig.XDPTX || len(got.Note) > 0 {
			d.unclear++
		}
		return nil
	case Untouched:
		if got.Verdict != rig.XDPPass || got.at != at || len(got.Note) > 0 || !bytes.Equal(got.Frame, frame) {
			return fmt.Errorf("verdict %d at node %d, frame %x; want XDP_PASS with the frame unchanged", got.Verdict, got.at, got.Frame)
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
		if err := d.checkDelivered(want, frame, got); err != nil {
			return fmt.Errorf("%w; previous entry: %+v", err, before)
		}
		now := time.Now()
		d.cluster.arrived[flowAt{at, want.Flow}], d.cluster.delivered[flowAt{got.at, want.Flow}] = now, now
		if !got.delivered() {
			return nil
		}
		if err := d.checkKept(want, got, before); err != nil {
			return err
		}
		return d.checkLearned(at, want, got, before)
	}
}

// checkRefused allows for the rate limit of answers. A packet from another node is answered through the kernel.
func (d *differential) checkRefused(want Forecast, frame []byte, got arrival) error {
	if by := want.Targets[0].Node; got.at != by {
		return fmt.Errorf("%v reached node %d (verdict %d, %d hops), want a refusal at node %d", want.Flow, got.at, got.Verdict, got.hops, by)
	}
	direct := got.hops == 0
	switch {
	case got.Verdict == rig.XDPDrop:
		return nil
	case direct && got.Verdict == rig.XDPTX, !direct && got.Verdict == rig.XDPPass && len(got.Note) > 0:
		d.answered++
		return CheckRefusal(frame, got.Frame, direct)
	default:
		return fmt.Errorf("%v: verdict %d, want a refusal", want.Flow, got.Verdict)
	}
}

func (d *differential) checkDelivered(want Forecast, frame []byte, got arrival) error {
	mayDrop := slices.ContainsFunc(want.Targets, func(t Target) bool { return t.Node == got.at && (t.Endpoint == 0 || t.refuses()) })
	if mayDrop && !got.delivered() {
		if want.Refuses && got.Verdict != rig.XDPDrop {
			d.unclear++
			return CheckRefusal(frame, got.Frame, got.hops == 0)
		}
		if got.Verdict == rig.XDPDrop {
			return nil
		}
	}
	if !got.delivered() {
		return fmt.Errorf("%v: verdict %d at node %d after %d hops, want one of %v", want.Flow, got.Verdict, got.at, got.hops, want.Targets)
	}
	came, _ := parse(got.Frame)
	for _, target := range want.Targets {
		endpoint := d.cluster.Cluster[target.Node].State.Endpoints[target.Endpoint]
		to := netip.AddrPortFrom(endpoint.Address, endpoint.Port)
		if target.Node != got.at || to != came.VIP {
			continue
		}
		if err := CheckTranslated(frame, got.Frame, false, to); err != nil {
			return fmt.Errorf("%v at node %d: %w: %x", want.Flow, got.at, err, got.Frame)
		}
		if err := checkTags(frame, got); err != nil {
			return err
		}
		if known, ok := d.cluster.Knows(got.at, want.Flow); !ok || known.Endpoint != target.Endpoint {
			return fmt.Errorf("%v: node %d has endpoint %d (%v), want %d", want.Flow, got.at, known.Endpoint, ok, target.Endpoint)
		}
		p, _ := parse(frame)
		return d.checkReply(got.at, want.Flow, to, !p.midstream())
	}
	return fmt.Errorf("%v reached %s at node %d after %d hops, want one of %v", want.Flow, came.VIP, got.at, got.hops, want.Targets)
}

// checkTags checks that a packet that stays on the node retains its VLAN tags, and that a forwarded packet has
// no tags.
func checkTags(frame []byte, got arrival) error {
	was, _ := parse(frame)
	is, _ := parse(got.Frame)
	want := frame[12:was.l3]
	if got.hops > 0 {
		want = frame[was.l3-2 : was.l3]
	}
	if !bytes.Equal(got.Frame[12:is.l3], want) {
		return fmt.Errorf("reached node %d after %d hops with tags and type %x, want %x", got.at, got.hops, got.Frame[12:is.l3], want)
	}
	return nil
}

func (d *differential) holdings(want Forecast) map[forwarding.NodeID]Entry {
	held := map[forwarding.NodeID]Entry{}
	for _, target := range want.Targets {
		if entry, ok := d.cluster.Knows(target.Node, want.Flow); ok && want.Fate == Delivered {
			held[target.Node] = entry
		}
	}
	return held
}

func (d *differential) checkKept(want Forecast, got arrival, before map[forwarding.NodeID]Entry) error {
	key := forwarding.FrontendKey{VIP: want.Flow.VIP.Addr(), Port: want.Flow.VIP.Port(), Protocol: want.Flow.Protocol}
	frontend := d.cluster.Cluster[got.at].State.Frontends[key]
	entry, ok := d.cluster.Knows(got.at, want.Flow)
	if frontend.Affinity == 0 || frontend.Endpoints == 0 || !ok || !entry.Established || before[got.at].Established {
		return nil
	}
	kept, _ := d.cluster.Keeps(got.at, frontend.Endpoints, want.Flow)
	if kept != entry.Endpoint {
		return fmt.Errorf("%v is established with endpoint %d, but the affinity record has endpoint %d", want.Flow, entry.Endpoint, kept)
	}
	d.kept++
	return nil
}

// checkLearned checks the override on the ingress node of an established flow: it must exist, and be correct,
// exactly if the row's primary does not hold the flow.
func (d *differential) checkLearned(at forwarding.NodeID, want Forecast, got arrival, before map[forwarding.NodeID]Entry) error {
	state := d.cluster.Cluster[at].State
	frontend := state.Frontends[forwarding.FrontendKey{VIP: want.Flow.VIP.Addr(), Port: want.Flow.VIP.Port(), Protocol: want.Flow.Protocol}]
	if frontend.Local {
		return nil
	}
	owner, learned := d.cluster.Learned(at, want.Flow)
	if learned != No && owner != got.at {
		return fmt.Errorf("%v reached node %d, but the override of node %d selects node %d", want.Flow, got.at, at, owner)
	}
	hash, _ := want.Flow.hash(frontend)
	primary := (*state.NodeTables[frontend.Table])[frontend.Table.Row(hash)].Primary
	if got.at == primary && learned != No {
		return fmt.Errorf("%v is on the primary of its row, node %d, but node %d still has an override", want.Flow, primary, at)
	}
	if entry := before[got.at]; got.at == primary || !entry.Established || entry.Yields {
		return nil
	}
	if learned == No {
		return fmt.Errorf("%v is on node %d instead of node %d, but node %d has no override", want.Flow, got.at, primary, at)
	}
	d.learned++
	return nil
}

// checkReply sends the endpoint's reply to half of the packets.
func (d *differential) checkReply(at forwarding.NodeID, flow Flow, endpoint netip.AddrPort, opening bool) error {
	if d.random.IntN(2) == 0 {
		return nil
	}
	flags := []byte{flagACK, flagACK, flagACK, flagSYN | flagACK}[d.random.IntN(4)]
	if opening {
		flags |= flagSYN
	}
	reply := build(endpoint, flow.Client, flow.Protocol, flags, d.random.IntN(64))
	copy(reply, append(append([]byte{}, routerMAC...), d.cluster.Cluster[at].MAC...))
	got, err := d.cluster.nodes[at].Send(reply)
	if err != nil {
		return err
	}
	if got.Verdict != rig.TCXNext {
		return fmt.Errorf("reply of %v: verdict %d", flow, got.Verdict)
	}
	// Before the validation, an unexpected reply may belong to another connection of the pair and is not rewritten. A
	// SYN-ACK for a SYN is expected.
	answer := opening && flags&flagSYN != 0
	if flow.Protocol == TCP && !answer && bytes.Equal(got.Frame, reply) {
		return nil
	}
	if err := CheckTranslated(reply, got.Frame, true, flow.VIP); err != nil {
		return fmt.Errorf("reply of %v: %w: %x", flow, err, got.Frame)
	}
	return nil
}
