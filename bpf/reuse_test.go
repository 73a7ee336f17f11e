// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"
)

// A client sends requests through two frontends with the same endpoints from one port. Each reply has the
// source address of the frontend that received the request.
func TestQueriesThroughTwoFrontends(t *testing.T) {
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

			// The endpoint belongs to the other frontend now, with a recent request. The next 62 rows have
			// the same endpoint.
			_, hash := flowHash(first)
			w.putEndpointRows(t, f, func(row int) int { return (row - int(hash>>23) + 512) % 512 / 63 % 2 })
			ask(first, f.pods[1])
			ask(twin, f.pods[0])

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

// A late packet of an unvalidated connection, whose client port now serves another frontend's connection with
// the same endpoint, is not validated by that connection.
func TestValidationIsPerFrontend(t *testing.T) {
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
				t.Errorf("the twin connection is %s, want established", got)
			}
			reply := answer(twin, f.pods[0], "A")
			translated := reply
			translated.from = twin.to
			checkFrame(t, w.egress(t, reply.frame()), translated.frame())
		})
	}
}

// The SYN-ACK of a flow that another frontend's SYN contests can be acknowledged until the flow expires.
func TestContestedFlowExpires(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, test := range []struct {
			name string
			next uint16
			age  uint32
			want string
		}{
			{name: "within a minute", next: portClusterTwin, age: 50, want: "established"},
			{name: "after a minute", next: portClusterTwin, age: 61, want: "half-open"},
			{name: "the same frontend after a minute", next: portCluster, age: 61, want: "half-open"},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				first, next := f.tcp(portCluster, "S"), f.tcp(test.next, "S")
				w.play(t, first, answer(first, f.pods[0], "SA"))
				w.age(t, test.age)
				w.play(t, next, f.tcp(test.next, "A"))
				if got := w.place(t, next); got != test.want {
					t.Errorf("after the ACK of the previous SYN-ACK, the flow is %s, want %s", got, test.want)
				}
			})
		}
	}
}

// The endpoint of a closed connection may keep its state for a minute. A connection of another frontend
// from the same port gets another endpoint, if one exists.
func TestClosingConnectionsAreAvoided(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		for _, test := range []struct {
			name string
			pods int
			age  uint32
			twin bool
			want int
		}{
			{name: "immediately", pods: 2, twin: true, want: 1},
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
				// The first rows of both frontends' flows have the first pod.
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
