// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestBFD(t *testing.T) {
	type spec = millracev1beta1.BFD
	const ms = time.Millisecond
	yes, no, ttl, tooMuch := true, false, int32(254), int32(255)
	interval := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	standard := BFD{Enabled: true, TransmitInterval: 100 * ms, ReceiveInterval: 100 * ms, DetectMultiplier: 3}
	with := func(change func(*BFD)) BFD {
		bfd := standard
		change(&bfd)
		return bfd
	}
	for name, test := range map[string]struct {
		hops     int32
		spec     *spec
		want     BFD
		problems []string
	}{
		"absent":   {1, nil, BFD{}, nil},
		"off":      {1, &spec{Enabled: &no, TransmitInterval: interval(0)}, BFD{}, nil},
		"defaults": {1, &spec{}, standard, nil},
		"everything": {1, &spec{
			Enabled: &yes, TransmitInterval: interval(50 * ms), ReceiveInterval: interval(time.Second), DetectMultiplier: 5,
			Multihop: &yes, MinimumTTL: &ttl,
		}, BFD{
			Enabled: true, TransmitInterval: 50 * ms, ReceiveInterval: time.Second, DetectMultiplier: 5, Multihop: true, MinimumTTL: 254,
		}, nil},
		"a router that is far away":    {3, &spec{}, with(func(b *BFD) { b.Multihop = true }), nil},
		"not so in spite of its hops":  {3, &spec{Multihop: &no}, standard, nil},
		"intervals":                    {1, &spec{TransmitInterval: interval(ms), ReceiveInterval: interval(time.Minute + 1)}, BFD{}, []string{"p Invalid spec.bfd.transmitInterval: 1ms is not between 10ms and 1m0s", "p Invalid spec.bfd.receiveInterval: "}},
		"multiplier":                   {1, &spec{DetectMultiplier: 256}, BFD{}, []string{"p Invalid spec.bfd.detectMultiplier: 256 is not between 1 and 255"}},
		"TTL":                          {2, &spec{MinimumTTL: &tooMuch}, BFD{}, []string{"p Invalid spec.bfd.minimumTTL: 255 is not between 1 and 254"}},
		"TTL of a connected neighbour": {1, &spec{MinimumTTL: &ttl}, BFD{}, []string{"p Invalid spec.bfd.minimumTTL: requires a multihop session"}},
	} {
		t.Run(name, func(t *testing.T) {
			object := peerAged("p", 0, func(s *millracev1beta1.LBPeerSpec) { s.MultihopTTL, s.BFD = &test.hops, test.spec })
			peer, problems := ParsePeer(&object)
			checkProblems(t, problems, test.problems)
			if len(problems) == 0 && peer.BFD != test.want {
				t.Errorf("got %+v\nwant %+v", peer.BFD, test.want)
			}
		})
	}
}
