// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

type verdict uint32

const (
	xdpDrop     verdict = 1
	xdpPass     verdict = 2
	xdpTX       verdict = 3
	xdpRedirect verdict = 4
)

func (v verdict) String() string {
	return [...]string{"XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX", "XDP_REDIRECT"}[v]
}

type xdpContext struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

type result struct {
	verdict verdict
	frame   []byte
	note    []byte
}

func (w *world) ingress(t testing.TB, frame []byte) result {
	t.Helper()
	return w.runIngress(t, w.Ingress, frame)
}

func (w *world) runIngress(t testing.TB, program *ebpf.Program, frame []byte) result {
	t.Helper()
	out := make([]byte, len(frame)+256)
	context := xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(w.uplink)}
	run := &ebpf.RunOptions{Data: frame, DataOut: out, Context: context, ContextOut: &context}
	code, err := program.Run(run)
	if err != nil {
		t.Fatalf("run ingress: %v", err)
	}
	return result{verdict: verdict(code), note: run.DataOut[:context.Data], frame: run.DataOut[context.Data:]}
}

// skbContext is struct __sk_buff, as far as test runs accept it.
type skbContext struct {
	_       [40]byte
	Ifindex uint32
	_       [148]byte
}

const (
	tcxNext = -1
	tcxDrop = 2
)

func (w *world) egress(t testing.TB, frame []byte) []byte {
	t.Helper()
	verdict, out := w.runEgress(t, frame)
	if verdict != tcxNext {
		t.Fatalf("egress: verdict %d, want TCX_NEXT", verdict)
	}
	return out
}

func (w *world) runEgress(t testing.TB, frame []byte) (verdict int32, out []byte) {
	t.Helper()
	run := &ebpf.RunOptions{
		Data: frame, DataOut: make([]byte, len(frame)+256), Context: skbContext{Ifindex: uint32(w.uplink)},
	}
	code, err := w.Egress.Run(run)
	if err != nil {
		t.Fatalf("run egress: %v", err)
	}
	return int32(code), run.DataOut
}

type tally map[string]uint64

func (w *world) tally(t testing.TB) tally {
	t.Helper()
	counts := tally{}
	for i := range uint32(bpf.DatapathDropReasonDROP_REASONS) {
		counts.add(fmt.Sprintf("drop %d", i), sum(t, w.DropCounts, i))
	}
	for i := range uint32(bpf.DatapathEventEVENTS) {
		if allOverQuota && i == uint32(bpf.DatapathEventEVENT_OVER_QUOTA) {
			continue
		}
		counts.add(fmt.Sprintf("event %d", i), sum(t, w.EventCounts, i))
	}
	for _, f := range families {
		for port := portCluster; port <= portClusterTwin; port++ {
			var perCPU []bpf.DatapathFrontendCounter
			if err := w.FrontendCounts.Lookup(f.frontendID(port), &perCPU); err != nil {
				t.Fatal(err)
			}
			for _, c := range perCPU {
				name := fmt.Sprintf("%s port %d ", f.name, port)
				counts.add(name+"packets", c.Packets)
				counts.add(name+"bytes", c.Bytes)
				counts.add(name+"connections", c.Connections)
			}
		}
	}
	return counts
}

func (c tally) add(name string, n uint64) {
	if n != 0 {
		c[name] += n
	}
}

func (c tally) since(earlier tally) tally {
	difference := maps.Clone(c)
	for name, n := range earlier {
		if difference[name] -= n; difference[name] == 0 {
			delete(difference, name)
		}
	}
	return difference
}

func (w *world) answers(t testing.TB) uint64 {
	t.Helper()
	events := sums(t, w.EventCounts, int(bpf.DatapathEventEVENTS))
	return events[bpf.DatapathEventEVENT_ECHO_REPLY_SENT] + events[bpf.DatapathEventEVENT_REJECT_SENT] +
		events[bpf.DatapathEventEVENT_TOO_BIG_SENT]
}

func (w *world) drops(t testing.TB) (total uint64) {
	t.Helper()
	for _, n := range sums(t, w.DropCounts, int(bpf.DatapathDropReasonDROP_REASONS)) {
		total += n
	}
	return total
}

// sums adds the per-CPU values of the first n keys, in one call.
func sums(t testing.TB, m *ebpf.Map, n int) []uint64 {
	t.Helper()
	cpus := ebpf.MustPossibleCPU()
	keys, perCPU := make([]uint32, n), make([]uint64, n*cpus)
	if _, err := m.BatchLookup(new(ebpf.MapBatchCursor), keys, perCPU, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	totals := make([]uint64, n)
	for i, count := range perCPU {
		totals[keys[i/cpus]] += count
	}
	return totals
}

func sum(t testing.TB, m *ebpf.Map, key any) (total uint64) {
	t.Helper()
	var perCPU []uint64
	if err := m.Lookup(key, &perCPU); err != nil {
		t.Fatal(err)
	}
	for _, n := range perCPU {
		total += n
	}
	return total
}

// wipe empties the tables of flows, but not the records of evicted ones.
func (w *world) wipe(t testing.TB) {
	t.Helper()
	for _, m := range w.flowMaps() {
		clearMap(t, m)
	}
	w.forgetAffinities(t)
	must(w.halfOpen().Clear())
}

func (w *world) halfOpen() *rig.HalfOpen {
	return &rig.HalfOpen{Table: w.HalfOpenFlows, Key: w.FingerprintKey}
}

func (w *world) forgetFlowDigests(t testing.TB) {
	t.Helper()
	keys, values := make([]uint32, evictedBuckets), make([]bpf.DatapathFlowDigestBucket, evictedBuckets)
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := w.FlowDigests.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
}

func (w *world) forgetAffinities(t testing.TB) {
	t.Helper()
	keys, values := make([]uint32, 2*affinityBuckets), make([]bpf.DatapathAffinityBucket, 2*affinityBuckets)
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := w.Affinities.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
}

// forgetUnknowns resets the limits of lookups at other nodes.
func (w *world) forgetUnknowns(t testing.TB) {
	t.Helper()
	size := w.MissRates.MaxEntries()
	keys := make([]uint32, size)
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := w.MissRates.BatchUpdate(keys, make([]bpf.DatapathMissRate, size), nil); err != nil {
		t.Fatal(err)
	}
}

func (w *world) forgetQuotas(t testing.TB) {
	t.Helper()
	size := w.VipQuotas.MaxEntries()
	keys := make([]uint32, size)
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := w.VipQuotas.BatchUpdate(keys, make([]bpf.DatapathQuotas, size), nil); err != nil {
		t.Fatal(err)
	}
}

// forget empties the tables and records of flows, and the frontends' drop counters.
func (w *world) forget(t testing.TB) {
	t.Helper()
	w.wipe(t)
	w.forgetFlowDigests(t)
	w.forgetUnknowns(t)
	w.forgetQuotas(t)
	clearMap(t, w.FrontendDrops)
	clearSampling(t, w)
}

// flowMaps are the tables of flows, except half-open ones.
func (w *world) flowMaps() []*ebpf.Map {
	return []*ebpf.Map{
		w.Connections4, w.Connections6, w.Datagrams4, w.Datagrams6,
		w.Reverse4, w.Reverse6, w.DatagramsRev4, w.DatagramsRev6,
		w.OverflowConn, w.OverflowConnRev, w.OverflowData, w.OverflowDataRev,
		w.Fragments, w.OverflowFragments,
	}
}

func clearMap(t testing.TB, m *ebpf.Map) {
	t.Helper()
	var key any
	for {
		next, err := m.NextKeyBytes(key)
		if err != nil {
			t.Fatal(err)
		}
		if key != nil {
			if err := m.Delete(key); err != nil {
				t.Fatal(err)
			}
		}
		if next == nil {
			return
		}
		key = next
	}
}

func show(frame []byte) string {
	if frame == nil {
		return "nothing"
	}
	return gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).Dump()
}

func checkFrame(t testing.TB, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("frame\n%s\nwant\n%s", show(got), show(want))
	}
}

// wayBack requests transmission by the ingress interface.
const wayBack = 0

func handoverNote(ifindex int) []byte {
	note := binary.NativeEndian.AppendUint32(nil, 0x4d4c5248)
	return binary.NativeEndian.AppendUint32(note, uint32(ifindex))
}

func (w *world) evictReverse(t testing.TB) {
	t.Helper()
	for _, m := range []*ebpf.Map{
		w.Reverse4, w.Reverse6, w.DatagramsRev4, w.DatagramsRev6,
		w.OverflowConnRev, w.OverflowDataRev,
	} {
		clearMap(t, m)
	}
	must(w.halfOpen().EvictAnswers())
}

func (w *world) ticks(t testing.TB) (perSecond uint32) {
	t.Helper()
	if err := w.TicksPerSecond.Get(&perSecond); err != nil {
		t.Fatal(err)
	}
	return perSecond
}

// age ages all flows and affinity records by seconds.
func (w *world) age(t testing.TB, seconds uint32) {
	t.Helper()
	ticks := seconds * w.ticks(t)
	for _, m := range []*ebpf.Map{w.Connections4, w.Datagrams4} {
		change[bpf.DatapathConnectionKey4](t, m, func(c *bpf.DatapathConnection) { c.Seen -= ticks })
	}
	for _, m := range []*ebpf.Map{w.Connections6, w.Datagrams6, w.OverflowConn, w.OverflowData} {
		change[bpf.DatapathConnectionKey6](t, m, func(c *bpf.DatapathConnection) { c.Seen -= ticks })
	}
	must(w.halfOpen().Age(ticks))
	w.ageAffinities(t, seconds)
}

func (w *world) ageAffinities(t testing.TB, seconds uint32) {
	t.Helper()
	ticks := seconds * w.ticks(t)
	change[uint32](t, w.Affinities, func(b *bpf.DatapathAffinityBucket) {
		for i := range b.Record {
			b.Record[i].Affinity.Seen -= ticks
		}
	})
}

func change[K, V any](t testing.TB, m *ebpf.Map, with func(*V)) {
	t.Helper()
	for key, value := range entries[K, V](t, m) {
		with(&value)
		if err := m.Update(key, value, ebpf.UpdateExist); err != nil {
			t.Fatal(err)
		}
	}
}

func entries[K, V any](t testing.TB, m *ebpf.Map) iter.Seq2[K, V] {
	t.Helper()
	return func(yield func(K, V) bool) {
		var key K
		var value V
		all := m.Iterate()
		for all.Next(&key, &value) {
			if !yield(key, value) {
				return
			}
		}
		if err := all.Err(); err != nil {
			t.Fatal(err)
		}
	}
}
