// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// up is FRR 8.4's packet in state Up with 100 ms x 3, encoded by hand from RFC 5880, section 4.1.
const up = "20c8031800000007000000090001 86a0000186a000000000"

func wire(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(text), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecode(t *testing.T) {
	got, err := Decode(wire(t, up))
	want := Packet{
		State: Up, Independent: true, DetectMultiplier: 3, MyDiscriminator: 7, YourDiscriminator: 9,
		DesiredMinTx: 100 * time.Millisecond, RequiredMinRx: 100 * time.Millisecond,
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	if back := want.Append(nil); !bytes.Equal(back, wire(t, up)) {
		t.Errorf("encoded %x, want %s", back, up)
	}
}

func TestDecodeRefuses(t *testing.T) {
	change := func(at int, value byte) []byte {
		b := wire(t, up)
		b[at] = value
		return b
	}
	zero := func(from, to int) []byte {
		b := wire(t, up)
		clear(b[from:to])
		return b
	}
	for name, test := range map[string]struct {
		payload []byte
		want    error
	}{
		"empty":                           {nil, ErrLength},
		"truncated":                       {wire(t, up)[:23], ErrLength},
		"length too small":                {change(3, 23), ErrLength},
		"length above the packet size":    {change(3, 25), ErrLength},
		"version 0":                       {change(0, 0x00), ErrVersion},
		"version 2":                       {change(0, 0x40), ErrVersion},
		"multiplier":                      {change(2, 0), ErrMultiplier},
		"multipoint":                      {change(1, 0xc1), ErrMultipoint},
		"authentication":                  {change(1, 0xc4), ErrAuthentication},
		"poll and final":                  {change(1, 0xf0), ErrPollAndFinal},
		"my discriminator":                {zero(4, 8), ErrDiscriminator},
		"Up without your discriminator":   {zero(8, 12), ErrNoSession},
		"Init without your discriminator": {append(append(wire(t, "20880318 00000007"), 0, 0, 0, 0), make([]byte, 12)...), ErrNoSession},
	} {
		if p, err := Decode(test.payload); !errors.Is(err, test.want) || p != (Packet{}) {
			t.Errorf("%s: %+v, %v; want %v", name, p, err, test.want)
		}
	}
}

func TestDecodeIgnoresTrailingData(t *testing.T) {
	want, err := Decode(wire(t, up))
	got, errLonger := Decode(append(wire(t, up), 1, 2, 3))
	if err != nil || errLonger != nil || got != want {
		t.Errorf("%+v, %v; %+v, %v", want, err, got, errLonger)
	}
}

// Encoding and decoding are inverse for every packet.
func TestPacketRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawPacket(t)
		got, err := Decode(want.Append(nil))
		if err != nil || got != want {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
	})
}

func drawPacket(t *rapid.T) Packet {
	interval := func(label string) time.Duration {
		return time.Duration(rapid.Uint32().Draw(t, label)) * time.Microsecond
	}
	p := Packet{
		Diagnostic: Diagnostic(rapid.Uint8Max(31).Draw(t, "diagnostic")), State: State(rapid.Uint8Max(3).Draw(t, "state")),
		Poll: rapid.Bool().Draw(t, "poll"), Independent: rapid.Bool().Draw(t, "c"), Demand: rapid.Bool().Draw(t, "demand"),
		DetectMultiplier:  rapid.Uint8Min(1).Draw(t, "multiplier"),
		MyDiscriminator:   rapid.Uint32Min(1).Draw(t, "my"),
		YourDiscriminator: rapid.Uint32Min(1).Draw(t, "your"),
		DesiredMinTx:      interval("tx"), RequiredMinRx: interval("rx"), MinEchoRx: interval("echo"),
	}
	p.Final = !p.Poll && rapid.Bool().Draw(t, "final")
	return p
}

// A datagram is rejected, or equal to its decoded packet's encoding.
func FuzzDecode(f *testing.F) {
	f.Add(wire(f, up))
	f.Add(wire(f, up)[:20])
	f.Add(append(wire(f, up), 9))
	f.Add(wire(f, "20400318 00000001 00000000 000f4240 000f4240 00000000"))
	f.Fuzz(func(t *testing.T, payload []byte) {
		p, err := Decode(payload)
		if err != nil {
			if p != (Packet{}) {
				t.Fatalf("rejected, but returned %+v", p)
			}
			return
		}
		again := p.Append(nil)
		// The length may include further bytes.
		again[3] = payload[3]
		if !bytes.Equal(again, payload[:packetLength]) {
			t.Fatalf("%x is %+v, which is %x", payload, p, again)
		}
	})
}
