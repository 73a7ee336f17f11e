// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
)

// floodPackets is the number of packets of each kind, many times the size of the tables. A variable overrides
// it (make flood: ten million).
func floodPackets(t *testing.T) int {
	text := os.Getenv("MILLRACE_FLOOD")
	if text == "" {
		return 3 * flowEntries
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("MILLRACE_FLOOD: %v", err)
	}
	return n
}

// spoofer runs the program on packets with random sources, by in-place changes of one frame with wrong
// checksums.
type spoofer struct {
	w      *world
	random *rand.Rand
	run    ebpf.RunOptions
	ipv4   bool
}

func newSpoofer(w *world, p packet) *spoofer {
	frame := p.frame()
	return &spoofer{
		w: w, ipv4: p.is4(), random: rand.New(rand.NewPCG(3, 4)),
		run: ebpf.RunOptions{
			Data: frame, DataOut: make([]byte, len(frame)+256),
			Context: xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(w.uplink)},
		},
	}
}

func (s *spoofer) l4() []byte {
	if s.ipv4 {
		return s.run.Data[14+20:]
	}
	return s.run.Data[14+40:]
}

// newSource chooses a random source below the loopback block.
func (s *spoofer) newSource() {
	source := s.run.Data[14+12 : 14+16]
	if !s.ipv4 {
		source = s.run.Data[14+8+12 : 14+8+16]
	}
	binary.BigEndian.PutUint32(source, 1<<24+s.random.Uint32N(126<<24))
	binary.BigEndian.PutUint16(s.l4(), uint16(s.random.Uint32()))
}

func (s *spoofer) tcp(flags byte) {
	binary.BigEndian.PutUint64(s.l4()[4:], s.random.Uint64())
	s.l4()[13] = flags
}

func (s *spoofer) send(t *testing.T) verdict {
	s.run.DataOut = s.run.DataOut[:cap(s.run.DataOut)]
	code, err := s.w.Ingress.Run(&s.run)
	if err != nil {
		t.Fatal(err)
	}
	return verdict(code)
}

// answered runs the egress program on the endpoint's reply to the last packet, and returns the reply's
// sequence number.
func (s *spoofer) answered(t *testing.T, pod netip.AddrPort, flags byte) (number uint32) {
	t.Helper()
	out := append([]byte{}, s.run.DataOut...)
	l4, addresses, protocol := out[14+20:], out[14+12:14+20], out[14+9]
	if !s.ipv4 {
		l4, addresses, protocol = out[14+40:], out[14+8:14+40], out[14+6]
	}
	swap(addresses)
	swap(l4[:4])
	if got := binary.BigEndian.Uint16(l4); got != pod.Port() {
		t.Fatalf("delivered to port %d, want %d", got, pod.Port())
	}
	if protocol == 6 {
		binary.BigEndian.PutUint64(l4[4:], s.random.Uint64())
		l4[13] = flags
		number = binary.BigEndian.Uint32(l4[4:])
	}
	s.w.egress(t, out)
	return number
}

// prove establishes a flow: a SYN, the pod's SYN-ACK and an ACK with its number, or two datagrams of which
// the first is answered.
func (s *spoofer) prove(t *testing.T, pod netip.AddrPort) {
	t.Helper()
	const syn, ack = 0x02, 0x10
	if protocol := map[bool]int{true: 14 + 9, false: 14 + 6}[s.ipv4]; s.run.Data[protocol] != 6 {
		s.send(t)
		s.answered(t, pod, 0)
		s.send(t)
		return
	}
	s.tcp(syn)
	s.send(t)
	number := s.answered(t, pod, syn|ack)
	s.tcp(ack)
	binary.BigEndian.PutUint32(s.l4()[8:], number+1)
	s.send(t)
}

func swap(b []byte) {
	half := len(b) / 2
	first := append([]byte{}, b[:half]...)
	copy(b, b[half:])
	copy(b[half:], first)
}

// No spoofed flood evicts an established connection, of any length: SYNs, ACKs, SYNs with blind ACKs that the
// endpoint answers, or answered datagrams.
func TestFlood(t *testing.T) {
	w := newWorld(t)
	const (
		syn, ack, rst = 0x02, 0x10, 0x04
		established   = flowEntries * 9 / 10
	)
	for _, f := range families {
		floods := map[string]func(t *testing.T, n int){
			"SYN": func(t *testing.T, n int) {
				s := newSpoofer(w, f.tcp(portCluster, "S"))
				for range n {
					s.newSource()
					s.send(t)
				}
			},
			"ACK": func(t *testing.T, n int) {
				s := newSpoofer(w, f.tcp(portCluster, "A"))
				for range n / 2 {
					s.newSource()
					for range 2 {
						s.tcp(ack)
						s.send(t)
					}
				}
			},
			"SYN and blind ACK": func(t *testing.T, n int) {
				s := newSpoofer(w, f.tcp(portCluster, "S"))
				for range n / 3 {
					s.newSource()
					s.tcp(syn)
					s.send(t)
					s.answered(t, f.pods[1], syn|ack)
					for range 2 {
						s.tcp(ack)
						s.send(t)
						s.answered(t, f.pods[1], rst)
					}
				}
			},
			"answered datagrams": func(t *testing.T, n int) {
				s := newSpoofer(w, f.udp(portCluster))
				for range n / 2 {
					s.newSource()
					s.send(t)
					s.answered(t, f.pods[1], 0)
					s.send(t)
				}
			},
		}
		connection := func(i int) packet {
			client := f.client.Addr().AsSlice()
			client[len(client)-1] = byte(i >> 12)
			address, _ := netip.AddrFromSlice(client)
			return f.tcp(portCluster, "A").with(func(p *packet) {
				p.from = netip.AddrPortFrom(address, uint16(10000+i&0xfff))
			})
		}
		w.forget(t)
		w.pointTo(t, f, 0)
		for i := range established {
			w.establish(t, connection(i), f.pods[0])
		}
		w.pointTo(t, f, 1)
		for name, flood := range floods {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				flood(t, floodPackets(t))
				lost := 0
				for i := range established {
					p := connection(i)
					if w.place(t, p) != "established" {
						lost++
					} else if i%64 == 0 {
						checkFrame(t, w.ingress(t, p.frame()).frame, delivered(p, f.pods[0]))
					}
				}
				if lost != 0 {
					t.Errorf("%d of %d established connections were evicted", lost, established)
				}
			})
		}
	}
}

// A flood evicts half-open flows, but a handshake shorter than the time to fill their table succeeds.
func TestHandshakeInFlood(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.forget(t)
			w.pointTo(t, f, 0)
			s := newSpoofer(w, f.tcp(portCluster, "S"))
			for i := range 20 {
				p := f.tcp(portCluster, "S").with(func(p *packet) {
					p.from = netip.AddrPortFrom(p.from.Addr(), uint16(20000+i))
				})
				w.play(t, p)
				for range flowEntries / 4 {
					s.newSource()
					s.send(t)
				}
				w.play(t, answer(p, f.pods[0], "SA"), p.with(func(p *packet) { p.flags = "A" }))
				if got := w.place(t, p); got != "established" {
					t.Fatalf("connection %d: %s", i, got)
				}
			}
		})
	}
}
