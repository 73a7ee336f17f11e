// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/millrace-lb/millrace/api/console"
)

func some(frontends int) *Traffic {
	made := &Traffic{
		Node: "node-a", Cursor: "18f-3", Seconds: 5.25, Drops: map[string]uint64{"NoEndpoint": 300, "Full": 1 << 40},
		Uplinks: []console.Uplink{{Interface: "eth0", Transmit: 7}, {Interface: "bond0", Redirect: 1}},
	}
	for i := range frontends {
		frontend := FrontendTraffic{
			FrontendName: console.FrontendName{
				VIP: netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), Port: 80, Protocol: "TCP", Service: fmt.Sprintf("shop/service-%05d", i/2),
			},
			Packets: uint64(1000 + i), Bytes: uint64(1_000_000 + i), Connections: 17,
		}
		if i%3 == 0 {
			frontend.VIP, frontend.Protocol = netip.MustParseAddr("2001:db8::1"), "QUIC"
			frontend.Drops = map[string]uint64{"NoEndpoint": uint64(i), "Fragment": 2}
		}
		made.Frontends = append(made.Frontends, frontend)
	}
	return made
}

func encoded(t testing.TB, traffic *Traffic) []byte {
	t.Helper()
	body, err := traffic.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestTrafficIsReadAsWritten(t *testing.T) {
	read := &Traffic{}
	for _, want := range []*Traffic{some(500), {Node: "node-b", Cursor: "1"}, some(3), {}} {
		if err := read.UnmarshalBinary(encoded(t, want)); err != nil {
			t.Fatal(err)
		}
		if len(read.Frontends) == 0 {
			read.Frontends = nil
		}
		if !reflect.DeepEqual(read, want) {
			t.Errorf("read %+v, want %+v", read, want)
		}
	}
	if size := len(encoded(t, some(500))); size > 13_000 {
		t.Errorf("500 frontends have %d bytes", size)
	}
}

func TestTrafficIsTruncated(t *testing.T) {
	body := encoded(t, some(5))
	for length := range body {
		if err := new(Traffic).UnmarshalBinary(body[:length]); err == nil {
			t.Errorf("%d of %d bytes are read without an error", length, len(body))
		}
	}
	if err := new(Traffic).UnmarshalBinary(append(body, 0)); err == nil {
		t.Error("an extra byte is decoded without an error")
	}
}

func FuzzTraffic(f *testing.F) {
	f.Add(encoded(f, some(0)))
	f.Add(encoded(f, some(7)))
	f.Fuzz(func(t *testing.T, body []byte) {
		read := &Traffic{}
		if read.UnmarshalBinary(body) != nil || read.Seconds != read.Seconds {
			return
		}
		again := &Traffic{}
		if err := again.UnmarshalBinary(encoded(t, read)); err != nil || !reflect.DeepEqual(read, again) {
			t.Errorf("%v: read %+v, then %+v", err, read, again)
		}
	})
}
