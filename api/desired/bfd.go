// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"math"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Defaults and bounds of LBPeer.spec.bfd. They equal those of its schema.
const (
	defaultBFDInterval   = 100 * time.Millisecond
	defaultBFDMultiplier = 3
	shortestBFDInterval  = 10 * time.Millisecond
	longestBFDInterval   = 60 * time.Second
)

// BFD configures a node's BFD session with a router.
type BFD struct {
	Enabled                           bool
	TransmitInterval, ReceiveInterval time.Duration
	DetectMultiplier                  uint8
	Multihop                          bool
	// MinimumTTL is the minimum TTL of received packets; 0 accepts any.
	MinimumTTL uint8
}

func (p *problems) bfd(session *Session, spec *millracev1beta1.BFD) BFD {
	if spec == nil || spec.Enabled != nil && !*spec.Enabled {
		return BFD{}
	}
	bfd := BFD{Enabled: true, Multihop: session.MultiHopTTL > 1}
	bfd.TransmitInterval = p.duration("spec.bfd.transmitInterval", spec.TransmitInterval,
		defaultBFDInterval, shortestBFDInterval, longestBFDInterval)
	bfd.ReceiveInterval = p.duration("spec.bfd.receiveInterval", spec.ReceiveInterval,
		defaultBFDInterval, shortestBFDInterval, longestBFDInterval)
	bfd.DetectMultiplier = uint8(p.within("spec.bfd.detectMultiplier",
		int64(cmp.Or(spec.DetectMultiplier, defaultBFDMultiplier)), 1, math.MaxUint8))
	if spec.Multihop != nil {
		bfd.Multihop = *spec.Multihop
	}
	if spec.MinimumTTL != nil {
		bfd.MinimumTTL = uint8(p.within("spec.bfd.minimumTTL", int64(*spec.MinimumTTL), 1, math.MaxUint8-1))
		if !bfd.Multihop {
			p.invalid("spec.bfd.minimumTTL", "requires a multihop session: packets of a directly connected router must have TTL 255")
		}
	}
	return bfd
}
