// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

func seeds(w *world) [][]byte {
	var frames [][]byte
	add := func(fixtures []fixture) {
		for _, fixture := range fixtures {
			frames = append(frames, fixture.in)
		}
	}
	for _, f := range families {
		add(notOurs(f))
		add(vipRules(f))
		add(stage1(w, f))
		add(stage2(f))
		add(lookupForwarded(f))
		add(icmpErrors(f))
		add(headers(f))
		add(vlans(f))
		add(answers(f))
		add(unassigned(f))
		add(martians(f))
		add(fragments(f))
		for _, inner := range families {
			add(fromNodes(f, inner))
		}
		for _, fixture := range slices.Concat(replies(f), icmpReplies(f), fragmentReplies(f)) {
			frames = append(frames, fixture.in.frame())
		}
	}
	return frames
}

// The kernel rejects test runs of less than an Ethernet header, and for egress of less than the IP header of
// the EtherType.
const (
	shortest       = 14
	shortestEgress = shortest + 40
)

// For every input, the verdict is valid, a dropped packet is counted for exactly one reason and others for
// none, and a frame that is unchanged or encapsulated is complete.
func FuzzIngress(f *testing.F) {
	w := newWorldWith(f, fastTicks)
	// Otherwise packets from nodes would only have wrong tags.
	w.trust(f, false)
	for _, frame := range seeds(w) {
		f.Add(frame)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < shortest || len(frame) > 3000 {
			return
		}
		drops, answers := w.drops(t), w.answers(t)
		got := w.ingress(t, frame)
		drops, answers = w.drops(t)-drops, w.answers(t)-answers
		if answers == 1 {
			checkAnswered(t, frame, got)
			return
		}
		switch got.verdict {
		case xdpDrop:
			if drops != 1 {
				t.Errorf("dropped, but counted under %d reasons, want 1", drops)
			}
			return
		case xdpPass, xdpTX, xdpRedirect:
			if drops != 0 {
				t.Errorf("verdict %v, but %d drops were counted", got.verdict, drops)
			}
		default:
			t.Errorf("unexpected verdict %v", got.verdict)
		}
		if got.verdict == xdpPass && len(got.note) == 0 && len(got.frame) > len(frame) {
			t.Errorf("a frame of %d bytes passed to the stack has %d bytes", len(frame), len(got.frame))
		}
		if got.verdict == xdpTX || len(got.note) > 0 {
			checkEncapsulated(t, frame, got.frame)
		}
	})
}

// checkAnswered checks that a VIP's reply is no longer than the request or the maximum of an error, and
// returned to the sender.
func checkAnswered(t *testing.T, in []byte, got result) {
	t.Helper()
	if got.verdict != xdpTX && (got.verdict != xdpPass || len(got.note) == 0) {
		t.Errorf("reply: verdict %v, metadata %x", got.verdict, got.note)
	}
	if len(got.frame) > max(len(in), 2*4+shortest+1280) {
		t.Errorf("reply of %d bytes to a frame of %d bytes", len(got.frame), len(in))
	}
	back := bytes.Equal(got.frame[:6], in[6:12]) && bytes.Equal(got.frame[6:12], in[:6])
	if got.verdict == xdpTX && !back {
		t.Errorf("reply to %x was sent to %x", in[:12], got.frame[:12])
	}
}

// checkEncapsulated checks that the output ends with the input, without its previous encapsulation, and the
// outer lengths.
func checkEncapsulated(t *testing.T, in, out []byte) {
	t.Helper()
	overhead := 60
	if out[12] == 0x86 {
		overhead = 80
	}
	tunnel := tunnelLength
	if tag := shortest + overhead - 8 - 1; len(out) > tag && out[tag] == 3 {
		overhead += 4
		tunnel += 4
	}
	if len(out) < shortest+overhead || !bytes.HasSuffix(in, out[shortest+overhead:]) {
		t.Fatalf("encapsulated frame\n%s\nof\n%s", show(out), show(in))
	}
	udp := out[shortest+overhead-tunnel:]
	if length := int(udp[4])<<8 | int(udp[5]); length > len(udp) {
		t.Errorf("UDP length %d exceeds the %d bytes of UDP in the frame", length, len(udp))
	}
}

// For every input, egress preserves length and Ethernet header, unless the frame is truncated within the
// fields to rewrite, which is dropped and counted.
func FuzzEgress(f *testing.F) {
	w := newWorldWith(f, fastTicks)
	for _, frame := range seeds(w) {
		f.Add(frame)
	}
	for _, fam := range families {
		for _, p := range []packet{fam.tcp(portCluster, "S"), fam.tcp(portCluster, "A"), fam.udp(portCluster)} {
			w.ingress(f, p.frame())
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < shortestEgress || len(frame) > 3000 {
			return
		}
		drops := w.drops(t)
		verdict, got := w.runEgress(t, frame)
		drops = w.drops(t) - drops
		if verdict == tcxDrop && drops == 1 {
			return
		}
		if verdict != tcxNext || drops != 0 {
			t.Errorf("verdict %d, %d drops counted", verdict, drops)
		}
		if len(got) != len(frame) || !bytes.Equal(got[:shortest], frame[:shortest]) {
			t.Errorf("frame changed from\n%s\nto\n%s", show(frame), show(got))
		}
	})
}

const udpLength, geneveLength = 8, 8

// Packets with our VNI and any content behind the outer UDP header are dropped as forged or malformed without
// a valid tag.
func FuzzTunnelTag(f *testing.F) {
	w := newWorldWith(f, fastTicks)
	w.trust(f, true, 1)
	heads := map[bool][]byte{}
	for _, outer := range families {
		udp := outer.outerUDP()
		for _, inner := range families {
			forged := newForger(outer, inner, 7)
			for flags := range uint8(16) {
				frame := forged.next(flags)
				heads[outer.vip.Is6()] = bytes.Clone(frame[:udp+udpLength+geneveLength])
				f.Add(outer.vip.Is6(), frame[udp+udpLength:])
			}
		}
	}
	f.Fuzz(func(t *testing.T, ipv6 bool, geneve []byte) {
		if len(geneve) < geneveLength || len(geneve) > 1400 {
			return
		}
		head := heads[ipv6]
		frame := slices.Concat(head[:len(head)-geneveLength], geneve)
		copy(frame[len(head)-4:], head[len(head)-4:])
		length, udp := frame[shortest+2:], len(head)-geneveLength-udpLength
		if ipv6 {
			length = frame[shortest+4:]
		}
		binary.BigEndian.PutUint16(frame[udp+4:], uint16(len(frame)-udp))
		binary.BigEndian.PutUint16(length, uint16(len(frame)-shortest))
		if ipv6 {
			binary.BigEndian.PutUint16(length, uint16(len(frame)-shortest-40))
		}
		before := w.notTaken(t)
		got := w.ingress(t, frame)
		if got.verdict != xdpDrop || w.notTaken(t) != before+1 {
			t.Errorf("verdict %v, %d counted as forged or malformed, for\n%s", got.verdict, w.notTaken(t)-before, show(frame))
		}
	})
}

func (w *world) notTaken(t *testing.T) (n uint64) {
	t.Helper()
	for _, reason := range []bpf.DatapathDropReason{
		bpf.DatapathDropReasonDROP_TUNNEL_TAG, bpf.DatapathDropReasonDROP_TUNNEL_UNTAGGED, bpf.DatapathDropReasonDROP_TUNNEL_MALFORMED,
	} {
		n += sum(t, w.DropCounts, uint32(reason))
	}
	return n
}
