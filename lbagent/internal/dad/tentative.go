// SPDX-License-Identifier: Apache-2.0

// Package dad detects hosts on the node's links that use the address of a VIP, and delays the first
// announcement of such a VIP. It probes as in RFC 5227 and RFC 4862. A VIP is assigned to no interface, so
// any host that answers is a duplicate.
package dad

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

const (
	// maxUnusedAge is the maximum age of a VIP that this node does not announce and that counts as unused.
	// It allows for clock skew.
	maxUnusedAge = 10 * time.Minute
	// answerTimeout is how long a VIP waits for an answer before it is announced regardless.
	answerTimeout = 10 * time.Second
)

// VIP is a VIP that has a Service.
type VIP struct {
	Address netip.Addr
	Created time.Time
	// Waits is true if any node found a duplicate before the VIP was first announced.
	Waits bool
	// Announced is true if routers may have a route to the VIP through this node.
	Announced bool
}

// IsTentative reports whether the VIP is not known to be in use: it is new or already waited under a previous
// agent.
func (v *VIP) IsTentative(now time.Time) bool {
	return v.Waits || !v.Announced && now.Sub(v.Created) < maxUnusedAge
}

// Probe is a probe for an address on a link.
type Probe struct {
	Interface string
	Address   netip.Addr
}

// Answer is the latest answer to a Probe. HardwareAddr is empty if no host has the address.
type Answer struct {
	HardwareAddr net.HardwareAddr
	Trusted      bool
}

// Holder is a host that uses the address of a VIP.
type Holder struct {
	Probe
	HardwareAddr net.HardwareAddr
	Withheld     bool
}

// Tentative tracks the VIPs that wait for probes. The zero value is ready to use.
type Tentative struct {
	known map[netip.Addr]candidate
}

type candidate struct {
	created, since time.Time
	waits          bool
}

// Verdict is the state of all VIPs.
type Verdict struct {
	Checking map[netip.Addr]bool
	// Holders has the first host per VIP, sorted by address.
	Holders []Holder
	// Again is the duration until the next VIP stops waiting, or 0.
	Again time.Duration
}

// Evaluate computes which VIPs wait. An unproven VIP waits until no host has its address. A VIP in use is
// never withheld: a host that takes the address later, possibly maliciously, is only reported.
func (p *Tentative) Evaluate(vips []VIP, probes map[netip.Addr][]Probe, answers map[Probe]Answer, now time.Time) Verdict {
	known := make(map[netip.Addr]candidate, len(probes))
	verdict := Verdict{Checking: map[netip.Addr]bool{}}
	for i := range vips {
		vip := &vips[i]
		sent := probes[vip.Address]
		if len(sent) == 0 {
			continue
		}
		trial, found := p.known[vip.Address]
		if !found || !trial.created.Equal(vip.Created) {
			trial.created, trial.since, trial.waits = vip.Created, now, vip.IsTentative(now)
		}
		holder, answered := findHolder(sent, answers)
		left := trial.since.Add(answerTimeout).Sub(now)
		switch {
		case holder != nil:
			holder.Withheld = trial.waits
			verdict.Holders = append(verdict.Holders, *holder)
		case answered || left <= 0:
			trial.waits = false
		case trial.waits && !vip.Announced:
			verdict.Checking[vip.Address] = true
			if verdict.Again == 0 || left < verdict.Again {
				verdict.Again = left
			}
		}
		known[vip.Address] = trial
	}
	p.known = known
	slices.SortFunc(verdict.Holders, func(a, b Holder) int { return a.Address.Compare(b.Address) })
	return verdict
}

func findHolder(sent []Probe, answers map[Probe]Answer) (holder *Holder, answered bool) {
	answered = true
	for _, probe := range sent {
		answer, found := answers[probe]
		if found && len(answer.HardwareAddr) > 0 {
			return &Holder{Probe: probe, HardwareAddr: answer.HardwareAddr}, true
		}
		answered = answered && found
	}
	return nil, answered
}
