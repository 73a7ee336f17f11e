// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/bpf"
)

// place returns the table with the flow of a client's packet: established, half-open or none.
func (w *world) place(t testing.TB, p packet) string {
	t.Helper()
	var key any = bpf.DatapathConnectionKey6{
		Client: address(p.from.Addr()), ClientPort: network16(p.from.Port()),
		Vip: address(p.to.Addr()), VipPort: network16(p.to.Port()), Protocol: uint8(p.protocol),
	}
	key6 := key
	connections, datagrams := w.Connections6, w.Datagrams6
	if p.is4() {
		key = bpf.DatapathConnectionKey4{
			Client: ipv4(p.from.Addr()), ClientPort: network16(p.from.Port()),
			Vip: ipv4(p.to.Addr()), VipPort: network16(p.to.Port()), Protocol: uint8(p.protocol),
		}
		connections, datagrams = w.Connections4, w.Datagrams4
	}
	places := []string{"none"}
	for _, table := range []struct {
		name string
		m    *ebpf.Map
		key  any
	}{
		{"established", connections, key}, {"established", w.OverflowConn, key6},
		{"answered", datagrams, key}, {"answered", w.OverflowData, key6},
	} {
		var value bpf.DatapathConnection
		err := table.m.Lookup(table.key, &value)
		if err == nil {
			places = append(places, table.name)
		} else if !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
	}
	halfOpen, err := w.halfOpen().Find(p.from, p.to, uint8(p.protocol))
	must(err)
	if halfOpen != nil {
		places = append(places, "half-open")
	}
	if len(places) > 2 {
		t.Errorf("the flow is in several tables: %v", places[1:])
	}
	return places[len(places)-1]
}

// A flow is established once its client has acknowledged the endpoint's sequence numbers.
func TestValidation(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		pod := f.pods[0]
		syn, ack, rst, udp := f.tcp(portCluster, "S"), f.tcp(portCluster, "A"), f.tcp(portCluster, "R"), f.udp(portCluster)
		acking := func(number uint32) packet { return ack.with(func(p *packet) { p.acknowledged = number }) }
		at := func(number uint32, p packet) packet { return p.with(func(p *packet) { p.sequence = number }) }
		synAck, data, reset := answer(syn, pod, "SA"), answer(syn, pod, "A"), answer(syn, pod, "R")
		const claimed = 1 << 30
		for _, test := range []struct {
			name    string
			packets []packet
			want    string
		}{
			{"SYN", []packet{syn}, "half-open"},
			{"repeated SYNs", []packet{syn, syn, syn}, "half-open"},
			{"handshake", []packet{syn, synAck, ack}, "established"},
			{"handshake with the last packet lost", []packet{syn, synAck, synAck, ack}, "established"},
			{"handshake with data right after the SYN-ACK", []packet{syn, synAck, data, acking(2000 + 14600)}, "established"},
			{"second SYN-ACK with another number, as with SYN cookies",
				[]packet{syn, synAck, at(1<<31, synAck), acking(1<<31 + 1)}, "established"},
			{"SYN and ACK without a SYN-ACK", []packet{syn, ack, ack}, "half-open"},
			{"SYN and a blind ACK", []packet{syn, synAck, acking(claimed), reset, acking(claimed)}, "half-open"},
			{"SYN and an invalid ACK", []packet{syn, synAck, acking(1999)}, "half-open"},
			{"SYN and a blind ACK that the endpoint challenges", []packet{syn, synAck, acking(claimed), data, acking(claimed)}, "half-open"},
			{"SYN and FIN", []packet{syn, f.tcp(portCluster, "FA").with(func(p *packet) { p.acknowledged = claimed })}, "half-open"},
			{"ACK alone", []packet{ack}, "half-open"},
			{"ACKs alone", []packet{ack, ack, ack}, "half-open"},
			{"ACK of a previous connection, then a handshake", []packet{acking(claimed), syn, synAck, ack}, "established"},
			{"ACK answered by RST", []packet{ack, reset, ack}, "half-open"},
			{"ACK and a handshake", []packet{acking(claimed), syn, synAck, ack}, "established"},
			{"ACK answered by data", []packet{ack, data, ack}, "established"},
			{"ACK far behind data in flight", []packet{ack, at(2000+1<<21, data), ack}, "established"},
			{"ACK answered by a retransmission", []packet{ack, at(2000-1448, data), ack}, "established"},
			{"ACK that does not match the data of the endpoint", []packet{acking(claimed), data, acking(claimed)}, "half-open"},
			{"ACK of data outside of the window", []packet{at(claimed, ack), data, at(claimed, ack)}, "half-open"},
			{"ACK of data in flight far ahead of the endpoint", []packet{at(1000+1<<21, ack), data, ack}, "established"},
			{"ACK far behind the endpoint", []packet{ack, data.with(func(p *packet) { p.acknowledged = 1000 + 1<<21 }), ack}, "established"},
			{"ACK far behind, later valid", []packet{acking(claimed), data, ack, data, ack}, "established"},
			{"RST of an unknown connection", []packet{rst, rst}, "half-open"},
			{"datagram", []packet{udp}, "half-open"},
			{"datagrams without a reply", []packet{udp, udp, udp}, "half-open"},
			{"query and reply", []packet{udp, answer(udp, pod, "")}, "half-open"},
			{"queries and a reply", []packet{udp, answer(udp, pod, ""), udp}, "answered"},
		} {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				w.play(t, test.packets...)
				if got := w.place(t, test.packets[0]); got != test.want {
					t.Errorf("%s, want %s", got, test.want)
				}
			})
		}
	}
}

// A spoofed packet to the VIP does not capture replies of a direct connection between client and endpoint:
// they stay unchanged until the VIP's flow is validated.
func TestDirectConnectionKeepsReplies(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		pod := f.pods[0]
		syn, ack := f.tcp(portCluster, "S"), f.tcp(portCluster, "A")
		data := answer(syn, pod, "A")
		forged := ack.with(func(p *packet) { p.acknowledged = 1 << 30 })
		for name, before := range map[string][]packet{
			"SYN": {syn}, "SYNs": {syn, syn}, "ACK": {forged}, "ACKs": {forged, forged},
			"SYN and ACK": {syn, forged}, "reset": {f.tcp(portCluster, "R").with(func(p *packet) { p.acknowledged = 1 << 30 })},
		} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				w.forget(t)
				w.pointTo(t, f, 0)
				w.play(t, before...)
				checkFrame(t, w.egress(t, data.frame()), data.frame())
			})
		}
	}
}

// An endpoint with a previous connection in TIME-WAIT answers the SYN of the next one from the same port with
// an ACK, which must reach the client from the VIP, so that it resets the previous one.
func TestChallengeComesFromTheVIP(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			pod, syn := f.pods[0], f.tcp(portCluster, "S")
			with := func(p packet, flags string) packet {
				return p.with(func(p *packet) { p.flags, p.payload = flags, "" })
			}
			data := answer(syn, pod, "A")
			challenge := with(data, "A")
			translated := challenge.with(func(p *packet) { p.from = syn.to })
			w.forget(t)
			w.pointTo(t, f, 0)
			w.play(t, syn)
			checkFrame(t, w.egress(t, challenge.frame()), challenge.frame())
			w.play(t, answer(syn, pod, "SA"), f.tcp(portCluster, "A"), with(data, "FA"), f.tcp(portCluster, "FA"))
			for range 2 {
				w.play(t, syn)
				checkFrame(t, w.egress(t, challenge.frame()), translated.frame())
			}
			w.play(t, f.tcp(portCluster, "R"), syn, answer(syn, pod, "SA"), f.tcp(portCluster, "A"))
			if got := w.place(t, syn); got != "established" {
				t.Errorf("the next connection is %s, want established", got)
			}
		})
	}
}

// A client uses one port for two frontends with the same endpoints in turn: the state of one connection does
// not affect replies of the other.
func TestPortIsUsedForTwoFrontendsInTurn(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			pod := f.pods[0]
			syn, other := f.tcp(portCluster, "S"), f.tcp(portClusterTwin, "S")
			w.forget(t)
			w.pointTo(t, f, 0)
			w.play(t, syn, answer(syn, pod, "SA"), f.tcp(portCluster, "A"), answer(syn, pod, "FA"), f.tcp(portCluster, "FA"),
				other, answer(other, pod, "A"), f.tcp(portClusterTwin, "R"))
			w.play(t, syn)
			synAck := answer(syn, pod, "SA")
			checkFrame(t, w.egress(t, synAck.frame()), synAck.with(func(p *packet) { p.from = syn.to }).frame())
		})
	}
}
