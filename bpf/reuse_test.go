// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"
)

// A client asks through two frontends with the same endpoints, from one port. Each answer
// comes from where its question went, whichever of the two asked last.
func TestQuestionsThroughTwoFrontends(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			first, twin := f.udp(portCluster), f.udp(portClusterTwin)
			ask := func(question packet, pod netip.AddrPort) {
				t.Helper()
				got := w.ingress(t, question.frame())
				checkFrame(t, got.frame, delivered(question, pod))
				reply := answer(question, pod, "")
				translated := reply
				translated.from = question.to
				checkFrame(t, w.egress(t, reply.frame()), translated.frame())
			}
			ask(first, f.pods[0])
			w.age(t, 11)
			ask(twin, f.pods[0])

			// The endpoint is the other frontend's now, and its question a moment old. The next
			// 62 rows are the same one's.
			_, hash := flowHash(first)
			w.putEndpointRows(t, f, func(row int) int { return (row - int(hash>>23) + 512) % 512 / 63 % 2 })
			ask(first, f.pods[1])
			ask(twin, f.pods[0])

			// Where there is no other endpoint, it has to be older.
			w.forget(t)
			w.pointTo(t, f, 0)
			ask(first, f.pods[0])
			w.age(t, 11)
			ask(twin, f.pods[0])
			w.age(t, 11)
			ask(first, f.pods[0])
			w.age(t, 11)
			ask(twin, f.pods[0])
		})
	}
}

// A packet of a connection that never was proved comes after its client's port serves another
// frontend's connection with the same endpoint. It gives no proof by that one's.
func TestProofIsOfOneFrontend(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			late, twin := f.tcp(portCluster, "A"), f.tcp(portClusterTwin, "A")
			w.play(t, f.tcp(portCluster, "S"))
			w.age(t, 61)
			w.establish(t, twin, f.pods[0])
			w.play(t, late)
			if got := w.place(t, late); got != "half-open" {
				t.Errorf("the connection is %s, want half-open", got)
			}
			if got := w.place(t, twin); got != "established" {
				t.Errorf("the twin's connection is %s, want established", got)
			}
			reply := answer(twin, f.pods[0], "A")
			translated := reply
			translated.from = twin.to
			checkFrame(t, w.egress(t, reply.frame()), translated.frame())
		})
	}
}

// A client's connection has ended, and its endpoint may keep remains of it for a minute. Another
// frontend's new connection from the same port takes another endpoint meanwhile, if there is one.
func TestRemainsAreAvoided(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, test := range []struct {
			name string
			// pods are those that the rows have, in turns.
			pods int
			age  uint32
			// twin asks through the other frontend, else the same one does again.
			twin bool
			want int
		}{
			{name: "at once", pods: 2, twin: true, want: 1},
			{name: "no other endpoint", pods: 1, twin: true, want: 0},
			{name: "after a minute", pods: 2, age: 66, twin: true, want: 0},
			{name: "the same frontend", pods: 2, want: 0},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				first := f.tcp(portCluster, "S")
				next := first
				if test.twin {
					next.to = f.to(portClusterTwin)
				}
				// Both frontends have the first pod in the rows that their flows begin with.
				w.pointTo(t, f, 0)
				w.establish(t, first, f.pods[0])
				fin := f.tcp(portCluster, "FA")
				w.play(t, fin, answer(first, f.pods[0], "FA").taking(fin))
				_, hash := flowHash(next)
				w.putEndpointRows(t, f, func(row int) int { return (row - int(hash>>23) + 512) % 512 / 63 % test.pods })
				w.age(t, test.age)
				checkFrame(t, w.ingress(t, next.frame()).frame, delivered(next, f.pods[test.want]))
				reply := answer(next, f.pods[test.want], "SA")
				translated := reply
				translated.from = next.to
				checkFrame(t, w.egress(t, reply.frame()), translated.frame())
			})
		}
	}
}
