// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"math/rand/v2"
	"testing"
)

// An off-path host knows the addresses and ports of a connection but no sequence numbers. Its FINs and RSTs
// do not close the connection, which would allow its SYN to move it.
func TestForgedFINIsIgnored(t *testing.T) {
	w := newWorld(t)
	random := rand.New(rand.NewPCG(9, 9))
	for _, f := range families {
		for _, flags := range []string{"F", "FA", "R", "RA"} {
			t.Run(f.name+"/"+flags, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				defer w.pointTo(t, f, 0)
				ack, forged := f.tcp(portCluster, "A"), f.tcp(portCluster, flags)
				w.establish(t, ack, f.pods[0])
				w.play(t, ack, answer(ack, f.pods[0], "A"))
				for range 1000 {
					forged.sequence, forged.acknowledged = random.Uint32(), random.Uint32()
					// Some are inside the window, but not at its start.
					if forged.sequence%4 == 0 {
						forged.sequence = 1001 + forged.sequence>>2%(1<<22)
					}
					w.play(t, forged)
				}
				w.pointTo(t, f, 1)
				w.age(t, 300)
				w.play(t, f.tcp(portCluster, "S"))
				checkFrame(t, w.ingress(t, ack.frame()).frame, delivered(ack, f.pods[0]))
			})
		}
	}
}

// With two frontends of one endpoint, a spoofed SYN to one of them blocks no client: the last SYN gets the
// endpoint's reply, and the client retransmits its own.
func TestForgedSYNBlocksNoClient(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, flags := range []string{"S", "A", "F", "R"} {
			t.Run(f.name+"/"+flags, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				forged, syn := f.tcp(portClusterTwin, flags), f.tcp(portCluster, "S")
				for range 2 {
					w.play(t, forged)
					checkFrame(t, w.ingress(t, syn.frame()).frame, delivered(syn, f.pods[0]))
				}
				synAck := answer(syn, f.pods[0], "SA")
				translated := synAck
				translated.from = syn.to
				checkFrame(t, w.egress(t, synAck.frame()), translated.frame())
				w.play(t, f.tcp(portCluster, "A"))
				if got := w.place(t, syn); got != "established" {
					t.Errorf("the client's connection is %s, want established", got)
				}
				w.play(t, forged)
				data := answer(syn, f.pods[0], "A")
				translated = data
				translated.from = syn.to
				checkFrame(t, w.egress(t, data.frame()), translated.frame())
			})
		}
	}
}

// With two frontends of one endpoint, spoofed packets to one of them during the client's handshake through
// the other take neither connection nor replies: the client that acknowledges the endpoint's number has them.
func TestForgedPacketsDoNotHijackHandshake(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		pod, syn, ack := f.pods[0], f.tcp(portCluster, "S"), f.tcp(portCluster, "A")
		twin := func(flags string) packet {
			return f.tcp(portClusterTwin, flags).with(func(p *packet) { p.sequence, p.acknowledged = 1<<29, 1<<30 })
		}
		again := syn.with(func(p *packet) { p.sequence = 1 << 28 })
		synAck, challenge := answer(syn, pod, "SA"), answer(syn, pod, "A").with(func(p *packet) { p.payload = "" })
		for _, test := range []struct {
			name   string
			forged []packet
		}{
			{"a SYN", []packet{twin("S")}},
			{"SYN that the endpoint challenges", []packet{twin("S"), challenge}},
			{"SYN and repeated SYN-ACK", []packet{twin("S"), synAck}},
			{"SYNs", []packet{twin("S"), twin("S")}},
			{"SYN and an ACK", []packet{twin("S"), twin("A")}},
			{"SYN and RST", []packet{twin("S"), twin("R")}},
			{"alternating SYNs to both frontends", []packet{twin("S"), again, twin("S"), again, twin("S")}},
			{"an ACK", []packet{twin("A")}},
			{"ACK and SYNs to both frontends", []packet{twin("A"), again, twin("A"), twin("S")}},
			{"a FIN", []packet{twin("FA")}},
			{"a reset", []packet{twin("R")}},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				w.play(t, syn, synAck)
				w.play(t, test.forged...)
				checkFrame(t, w.ingress(t, ack.frame()).frame, delivered(ack, pod))
				data := answer(syn, pod, "A")
				translated := data.with(func(p *packet) { p.from = syn.to })
				checkFrame(t, w.egress(t, data.frame()), translated.frame())
				if got := w.place(t, syn); got != "established" {
					t.Errorf("the client's connection is %s, want established", got)
				}
				// The client's host resets replies of the other frontend.
				for _, flags := range []string{"R", "S", "A"} {
					if got := w.ingress(t, twin(flags).frame()); got.verdict != xdpDrop {
						t.Errorf("the endpoint received the %s of the other frontend", flags)
					}
				}
				checkFrame(t, w.egress(t, data.frame()), translated.frame())
			})
		}
	}
}

// A client connects through two frontends from one port, and the endpoint, which forgot the first SYN,
// replies to the second: the handshake belongs to the second.
func TestLaterHandshakeReplacesEntry(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			pod, first := f.pods[0], f.tcp(portCluster, "S")
			later, ack := f.tcp(portClusterTwin, "S"), f.tcp(portClusterTwin, "A").with(func(p *packet) { p.acknowledged = 1<<30 + 1 })
			w.play(t, first, answer(first, pod, "SA"), later)
			synAck := answer(later, pod, "SA").with(func(p *packet) { p.sequence = 1 << 30 })
			checkFrame(t, w.egress(t, synAck.frame()), synAck.with(func(p *packet) { p.from = later.to }).frame())
			w.play(t, f.tcp(portCluster, "A"), ack)
			if got := w.place(t, later); got != "established" {
				t.Errorf("the later connection is %s, want established", got)
			}
			data := answer(later, pod, "A")
			checkFrame(t, w.egress(t, data.frame()), data.with(func(p *packet) { p.from = later.to }).frame())
		})
	}
}
