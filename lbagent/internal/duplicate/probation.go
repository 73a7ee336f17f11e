// SPDX-License-Identifier: Apache-2.0

// Package duplicate detects hosts on the node's links that use the address of a VIP, and delays the first
// announcement of such a VIP. It probes as in RFC 5227 and RFC 4862. A VIP is assigned to no interface, so
// any host that answers is a duplicate.
package duplicate

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

const (
	// youth is the age up to which a VIP that this node does not announce counts as unused. It allows for
	// clock skew.
	youth = 10 * time.Minute
	// patience is how long a VIP waits for an answer before it is announced regardless.
	patience = 10 * time.Second
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

// Unproven reports whether the VIP is not known to be in use: it is new or already waited under a previous
// agent.
func (v *VIP) Unproven(now time.Time) bool {
	return v.Waits || !v.Announced && now.Sub(v.Created) < youth
}

// Question is a probe for an address on a link.
type Question struct {
	Interface string
	Address   netip.Addr
}

// Answer is the latest answer to a Question. HardwareAddr is empty if no host has the address.
type Answer struct {
	HardwareAddr net.HardwareAddr
	Trusted      bool
}

// Holder is a host that uses the address of a VIP.
type Holder struct {
	Question
	HardwareAddr net.HardwareAddr
	Withheld     bool
}

// Probation tracks the VIPs that wait for probes. The zero value is ready to use.
type Probation struct {
	known map[netip.Addr]trial
}

type trial struct {
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

// Judge computes which VIPs wait. An unproven VIP waits until no host has its address. A VIP in use is
// never withheld: a host that takes the address later, possibly maliciously, is only reported.
func (p *Probation) Judge(vips []VIP, questions map[netip.Addr][]Question, answers map[Question]Answer, now time.Time) Verdict {
	known := make(map[netip.Addr]trial, len(questions))
	verdict := Verdict{Checking: map[netip.Addr]bool{}}
	for i := range vips {
		vip := &vips[i]
		asked := questions[vip.Address]
		if len(asked) == 0 {
			continue
		}
		trial, found := p.known[vip.Address]
		if !found || !trial.created.Equal(vip.Created) {
			trial.created, trial.since, trial.waits = vip.Created, now, vip.Unproven(now)
		}
		holder, answered := holderOf(asked, answers)
		left := trial.since.Add(patience).Sub(now)
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

func holderOf(asked []Question, answers map[Question]Answer) (holder *Holder, answered bool) {
	answered = true
	for _, question := range asked {
		answer, found := answers[question]
		if found && len(answer.HardwareAddr) > 0 {
			return &Holder{Question: question, HardwareAddr: answer.HardwareAddr}, true
		}
		answered = answered && found
	}
	return nil, answered
}
