// SPDX-License-Identifier: Apache-2.0

// Package duplicate finds hosts on the node's links that have the address of a VIP, and keeps a VIP
// from its first announcement meanwhile. It asks as RFC 5227 and RFC 4862 do; since a VIP is on no
// interface, a host that answers is another one.
package duplicate

import (
	"net"
	"net/netip"
	"slices"
	"time"
)

const (
	// youth is how long after its creation a VIP that this node does not announce yet is taken for
	// one that nobody uses. It allows for clocks that differ.
	youth = 10 * time.Minute
	// patience is how long a VIP waits for an answer: where there is none at all, it is announced.
	patience = 10 * time.Second
)

// VIP is what matters of a VIP that has a Service.
type VIP struct {
	Address netip.Addr
	// Created is when the object was.
	Created time.Time
	// Waits is true where a host was found before the VIP was used first, by this or another node.
	Waits bool
	// Announced is true where routers may know the VIP by this node.
	Announced bool
}

// Unproven reports whether nobody is known to use the VIP yet: it is new, or waited when another
// agent was here.
func (v *VIP) Unproven(now time.Time) bool {
	return v.Waits || !v.Announced && now.Sub(v.Created) < youth
}

// Question is whether a host on a link has an address.
type Question struct {
	// Interface is the name of the link.
	Interface string
	Address   netip.Addr
}

// Answer is the last one to a Question. It has no hardware address where no host has the address.
type Answer struct {
	HardwareAddr net.HardwareAddr
	// Trusted is true of a node or a router, which may answer for VIPs.
	Trusted bool
}

// Holder is a host that has the address of a VIP.
type Holder struct {
	Question
	HardwareAddr net.HardwareAddr
	// Withheld is true where the VIP waits for that.
	Withheld bool
}

// Probation says which VIPs wait. The zero value knows of none.
type Probation struct {
	// known are the VIPs with a network on a link, from when that was seen; waits is true of those
	// that are not known to be free.
	known map[netip.Addr]trial
}

type trial struct {
	// created is when the VIP was.
	created, since time.Time
	waits          bool
}

// Verdict is what is known of the VIPs.
type Verdict struct {
	// Checking are VIPs that wait for answers.
	Checking map[netip.Addr]bool
	// Holders are hosts that have the address of a VIP, sorted by address: the first of each VIP.
	Holders []Holder
	// Again is after how long a VIP waits no longer; 0: none does.
	Again time.Duration
}

// Judge says which VIPs wait. questions has those of each VIP that is in a network of a link.
//
// A VIP waits that is unproven when it is first seen, until no host has its address. One that is in use does not: a host that comes later, be it to do harm, is told, and
// takes nothing away.
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

// holderOf is the first host that has the address, and whether all questions are answered.
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
