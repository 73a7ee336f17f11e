// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

func (w *world) tracer(t testing.TB) *ebpf.Program {
	t.Helper()
	if w.tracing != nil {
		return w.tracing
	}
	spec, err := bpf.LoadDatapath()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables[bpf.DatapathVarTracing].Set(uint32(1)); err != nil {
		t.Fatal(err)
	}
	setVariables(t, spec, w.ticks(t))
	var programs struct {
		Ingress *ebpf.Program `ebpf:"ingress"`
	}
	replacements := w.allMaps()
	for name, m := range replacements {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	if err := spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: replacements}); err != nil {
		t.Fatalf("load the tracing copy: %+v", err)
	}
	w.tracing = programs.Ingress
	return w.tracing
}

func (w *world) allMaps() map[string]*ebpf.Map {
	all := map[string]*ebpf.Map{}
	fields := reflect.ValueOf(&w.DatapathMaps).Elem()
	for i := range fields.NumField() {
		if m, found := fields.Field(i).Interface().(*ebpf.Map); found {
			all[fields.Type().Field(i).Tag.Get("ebpf")] = m
		}
	}
	return all
}

// entry is an entry of a hash map by its key, or all values of an array.
type entry struct{ name, key string }

// contents are the maps written by programs. Large arrays are excluded, because only the agent writes them.
func (w *world) contents(t testing.TB) map[entry]string {
	t.Helper()
	contents := map[entry]string{}
	for name, m := range w.allMaps() {
		switch {
		case name == bpf.DatapathMapTraceRecord, name == bpf.DatapathMapPacketSlots, m.Type() == ebpf.RingBuf:
		case m.Type() == ebpf.Array && m.MaxEntries() > 1024:
		case m.Type() == ebpf.Array:
			contents[entry{name: name}] = arrayContents(t, name, m, 1)
		case m.Type() == ebpf.PerCPUArray:
			contents[entry{name: name}] = arrayContents(t, name, m, ebpf.MustPossibleCPU())
		default:
			hashContents(t, name, m, contents)
		}
	}
	return contents
}

// arrayContents reads all values, valuesEach per index, in one call.
func arrayContents(t testing.TB, name string, m *ebpf.Map, valuesEach int) string {
	t.Helper()
	keys := make([]uint32, m.MaxEntries())
	size := int(m.ValueSize())
	values := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(size, reflect.TypeFor[byte]())), len(keys)*valuesEach, len(keys)*valuesEach)
	_, err := m.BatchLookup(new(ebpf.MapBatchCursor), keys, values.Interface(), nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatalf("map %s: %v", name, err)
	}
	return string(unsafe.Slice((*byte)(values.UnsafePointer()), values.Len()*size))
}

// firstChange returns up to 64 bytes of both values from the first difference.
func firstChange(before, after string) string {
	at := 0
	for at < min(len(before), len(after)) && before[at] == after[at] {
		at++
	}
	return fmt.Sprintf("%x, then %x, from octet %d on", before[at:min(at+64, len(before))], after[at:min(at+64, len(after))], at)
}

func hashContents(t testing.TB, name string, m *ebpf.Map, contents map[entry]string) {
	t.Helper()
	var key any
	for {
		next, err := m.NextKeyBytes(key)
		if err != nil {
			t.Fatalf("map %s: %v", name, err)
		}
		if next == nil {
			return
		}
		value, err := m.LookupBytes(next)
		if err != nil {
			t.Fatalf("map %s: %v", name, err)
		}
		contents[entry{name, string(next)}] = string(value)
		key = next
	}
}

func (w *world) trace(t testing.TB, frame []byte) (result, bpf.DatapathTrace) {
	t.Helper()
	put(t, w.TraceRecord, uint32(0), bpf.DatapathTrace{})
	got := w.runIngress(t, w.tracer(t), frame)
	var trace bpf.DatapathTrace
	if err := w.TraceRecord.Lookup(uint32(0), &trace); err != nil {
		t.Fatal(err)
	}
	return got, trace
}

// checkTrace checks that tracing modifies nothing and returns the result of the packet's processing.
func (w *world) checkTrace(t *testing.T, fixture fixture) bpf.DatapathTrace {
	t.Helper()
	before := w.contents(t)
	got, trace := w.trace(t, fixture.in)
	after := w.contents(t)
	if !maps.Equal(before, after) {
		for entry := range maps.Keys(join2(before, after)) {
			if before[entry] != after[entry] {
				t.Errorf("tracing changed %s %x: %s", entry.name, entry.key, firstChange(before[entry], after[entry]))
			}
		}
	}
	if got.verdict != fixture.verdict {
		t.Errorf("traced: verdict %v, want %v", got.verdict, fixture.verdict)
	}
	want := fixture.out
	if want == nil {
		want = fixture.in
	}
	if got.verdict != xdpDrop && (!bytes.Equal(got.frame, want) || !bytes.Equal(got.note, fixture.note)) {
		t.Errorf("traced: frame\n%s\nmetadata %x, want\n%s\nmetadata %x", show(got.frame), got.note, show(want), fixture.note)
	}
	answered := trace.Steps&uint32(bpf.DatapathTraceStepTRACE_REPLIED) != 0
	dropped := trace.Reason != 0 && !answered
	if dropped != (got.verdict == xdpDrop) {
		t.Errorf("traced: reason %d, verdict %v", trace.Reason, got.verdict)
	}
	if dropped && fixture.counts[fmt.Sprintf("drop %d", trace.Reason)] != 1 {
		t.Errorf("traced: reason %d, want one of the drop counters %v", trace.Reason, fixture.counts)
	}
	return trace
}

func join2(a, b map[entry]string) map[entry]string {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

type traceCase struct {
	name   string
	before []packet
	frame  []byte
	want   bpf.DatapathTrace
}

func traceCases(f family, uplink uint32) []traceCase {
	const (
		vip       = uint32(bpf.DatapathTraceStepTRACE_VIP)
		fromNode  = uint32(bpf.DatapathTraceStepTRACE_FROM_NODE)
		row       = uint32(bpf.DatapathTraceStepTRACE_ROW)
		stage2    = uint32(bpf.DatapathTraceStepTRACE_STAGE2)
		chosen    = uint32(bpf.DatapathTraceStepTRACE_SELECTED)
		halfOpen  = uint32(bpf.DatapathTraceStepTRACE_HALF_OPEN)
		known     = uint32(bpf.DatapathTraceStepTRACE_ESTABLISHED)
		second    = uint32(bpf.DatapathTraceStepTRACE_LOOKUP_FORWARDED)
		returned  = uint32(bpf.DatapathTraceStepTRACE_LOOKUP_RETURNED)
		toNode    = uint32(bpf.DatapathTraceStepTRACE_TO_NODE)
		delivered = uint32(bpf.DatapathTraceStepTRACE_DELIVERED)
		other     = uint32(bpf.DatapathTraceStepTRACE_OTHER_STATION)
		notifies  = uint32(bpf.DatapathTraceStepTRACE_REDIRECT_SENT)
		notified  = uint32(bpf.DatapathTraceStepTRACE_REDIRECT_RECEIVED)
	)
	pod := 2*(f.endpointSlot-1) + 1
	reason := func(r bpf.DatapathDropReason) uint32 { return uint32(r) }
	owners := func(port uint16) bpf.DatapathRow { return tables[port].row() }
	rowOf := func(p packet) uint32 { node, _ := flowHash(p); return node >> 20 }
	podRow := func(p packet) uint32 { _, endpoint := flowHash(p); return endpoint >> 23 }
	syn, ack := f.tcp(portCluster, "S"), f.tcp(portCluster, "A")
	local, away, chain := f.tcp(portLocal, "S"), f.tcp(portNode2, "S"), f.tcp(portChain, "A")
	stray := syn.with(func(p *packet) { p.destination = node2MAC })
	redirect := withFlags(ack.arrived(f, 2), flagRedirect).with(func(t *tunnel) { t.ingress = selfID })
	return []traceCase{
		{"no VIP", nil, syn.with(func(p *packet) { p.to = f.pods[0] }).frame(), bpf.DatapathTrace{}},
		{"other station", nil, stray.frame(), bpf.DatapathTrace{Steps: vip | other}},
		{"unused port", nil, f.tcp(9, "S").frame(), bpf.DatapathTrace{
			Steps: vip, Reason: reason(bpf.DatapathDropReasonDROP_NO_FRONTEND),
		}},
		{"new connection", nil, syn.frame(), bpf.DatapathTrace{
			Steps: vip | row | stage2 | chosen | delivered, Frontend: f.frontendID(portCluster),
			Row: rowOf(syn), Owners: owners(portCluster), Endpoint: pod, EndpointRow: podRow(syn),
		}},
		{"second packet", []packet{syn}, ack.frame(), bpf.DatapathTrace{
			Steps: vip | row | stage2 | halfOpen | delivered, Frontend: f.frontendID(portCluster),
			Row: rowOf(syn), Owners: owners(portCluster), Endpoint: pod,
		}},
		{"established", []packet{syn, answer(syn, f.pods[0], "SA"), ack}, ack.frame(), bpf.DatapathTrace{
			Steps: vip | row | stage2 | known | delivered, Frontend: f.frontendID(portCluster),
			Row: rowOf(syn), Owners: owners(portCluster), Endpoint: pod,
		}},
		{"policy Local", nil, local.frame(), bpf.DatapathTrace{
			Steps: vip | stage2 | chosen | delivered, Frontend: f.frontendID(portLocal), Endpoint: pod, EndpointRow: podRow(local),
		}},
		{"port of another node", nil, away.frame(), bpf.DatapathTrace{
			Steps: vip | row | toNode, Frontend: f.frontendID(portNode2),
			Row: rowOf(away), Owners: owners(portNode2), Node: uint32(nodeID(2)), Ifindex: uplink,
		}},
		{"unknown connection", nil, chain.frame(), bpf.DatapathTrace{
			Steps: vip | row | stage2 | second | toNode, Frontend: f.frontendID(portChain),
			Row: rowOf(chain), Owners: owners(portChain), Node: uint32(nodeID(2)), Ifindex: uplink,
		}},
		{"lookup by another node", nil, chain.arrived(f, 2).frame(), bpf.DatapathTrace{
			Steps: fromNode | stage2 | returned | toNode, Frontend: f.frontendID(portChain), Node: uint32(nodeID(2)), Ifindex: uplink,
		}},
		{"lookup for a connection on this node", []packet{syn, answer(syn, f.pods[0], "SA"), ack}, ack.arrived(f, 3).frame(), bpf.DatapathTrace{
			Steps: fromNode | stage2 | known | notifies | toNode, Frontend: f.frontendID(portCluster), Endpoint: pod, Node: uint32(nodeID(2)), Ifindex: uplink,
		}},
		{"redirect from the owner", nil, redirect.frame(), bpf.DatapathTrace{
			Steps: fromNode | notified | toNode, Frontend: f.frontendID(portCluster), Node: uint32(nodeID(2)), Ifindex: uplink,
		}},
		{"no endpoint anywhere", nil, f.tcp(portNoTable, "S").frame(), bpf.DatapathTrace{
			Steps: vip, Frontend: f.frontendID(portNoTable), Reason: reason(bpf.DatapathDropReasonDROP_NO_ENDPOINT),
		}},
	}
}

func TestTrace(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, test := range traceCases(f, uint32(w.uplink)) {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				w.play(t, test.before...)
				if _, got := w.trace(t, test.frame); got != test.want {
					t.Errorf("trace = %+v, want %+v", got, test.want)
				}
			})
		}
	}
}
