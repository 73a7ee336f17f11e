// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"testing"
)

type untrusted struct {
	name string
	send func(t *testing.T)
	// makesEntries is true if each packet belongs to a new flow or datagram.
	makesEntries bool
}

func untrustedHosts(w *world, f family) []untrusted {
	const fin, rst, ack = 0x01, 0x04, 0x10
	tcp := func(name, flags string, bits byte) untrusted {
		s := newSpoofer(w, f.tcp(portCluster, flags))
		return untrusted{name: name, makesEntries: true, send: func(t *testing.T) {
			s.newSource()
			if bits != 0 {
				s.tcp(bits)
			}
			s.send(t)
		}}
	}
	udp, fragment := newSpoofer(w, f.udp(portCluster)), newSpoofer(w, f.udp(portCluster).with(part(0, true, 7)))
	report := newSpoofer(w, f.reported(f.errorKinds()[0], vipSent(f.tcp(portCluster, "A")), 128))
	forged := newSpoofer(w, f.tcp(portCluster, "S"))
	forged.replace(f.tcp(portCluster, "S").arrived(f, selfID).frame())
	return []untrusted{
		tcp("SYN", "S", 0), tcp("ACK", "A", ack), tcp("RST", "R", rst), tcp("FIN", "FA", fin|ack),
		{name: "UDP", makesEntries: true, send: func(t *testing.T) { udp.newSource(); udp.send(t) }},
		{name: "answered datagrams", makesEntries: true, send: func(t *testing.T) {
			udp.newSource()
			udp.send(t)
			udp.answered(t, f.pods[1], 0)
			udp.send(t)
		}},
		{name: "fragments", makesEntries: true, send: func(t *testing.T) { fragment.newFragment(); fragment.send(t) }},
		{name: "ICMP errors", send: func(t *testing.T) { report.newError(); report.send(t) }},
		{name: "forged tunnel", send: func(t *testing.T) {
			forged.newSource()
			if got := forged.send(t); got != xdpDrop {
				t.Fatalf("verdict %v for a forged packet of a node", got)
			}
		}},
	}
}

func (s *spoofer) replace(frame []byte) {
	s.run.Data, s.run.DataOut = frame, make([]byte, len(frame)+256)
	s.run.Context = xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(s.w.uplink)}
}

// newFragment chooses a random source and identification of a first fragment.
func (s *spoofer) newFragment() {
	source, id := s.run.Data[14+12:], s.run.Data[14+4:]
	if !s.ipv4 {
		// The last words of the address and of the identification.
		source, id = s.run.Data[14+8+12:], s.run.Data[14+40+6:]
	}
	binary.BigEndian.PutUint32(source, 1<<24+s.random.Uint32N(126<<24))
	binary.BigEndian.PutUint16(id, uint16(s.random.Uint32()))
}

// newError chooses a random source of an ICMP error, and client of its quoted packet.
func (s *spoofer) newError() {
	source, client, port := s.run.Data[14+12:], s.run.Data[14+28+16:], s.run.Data[14+28+20+2:]
	if !s.ipv4 {
		source, client, port = s.run.Data[14+8+12:], s.run.Data[14+48+24+12:], s.run.Data[14+48+40+2:]
	}
	binary.BigEndian.PutUint32(source, 1<<24+s.random.Uint32N(126<<24))
	binary.BigEndian.PutUint32(client, 1<<24+s.random.Uint32N(126<<24))
	binary.BigEndian.PutUint16(port, uint16(s.random.Uint32()))
}
