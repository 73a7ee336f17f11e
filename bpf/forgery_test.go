// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"math/rand/v2"
	"testing"
)

// A host off the path knows a connection's addresses and ports, but not its numbers. Neither
// its FINs nor its resets close the connection, so that its SYN could move it later.
func TestForgedEndMovesNothing(t *testing.T) {
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
					// Also some inside of every window, but not at its start.
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

// Two frontends lead to one endpoint. A spoofed SYN to one of them keeps the client from none:
// the last SYN gets the endpoint's answer, and the client sends its own again.
func TestForgedSYNLocksNobodyOut(t *testing.T) {
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
