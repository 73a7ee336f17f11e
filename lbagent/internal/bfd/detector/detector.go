// SPDX-License-Identifier: Apache-2.0

// Package detector takes BGP sessions down when their BFD sessions are lost. The sessions of BFD are
// in a process of their own, which it asks (package control).
package detector

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

// Process is the process that holds the node's BFD sessions.
type Process interface {
	Set(want control.Want)
	Report() (control.Report, error)
}

// Detector takes a BGP session down as soon as its BFD session is lost. It does not wait for
// a pass, which may take seconds.
type Detector struct {
	process Process
	// down takes the session with a peer down, for a reason.
	down   func(peer, reason string) error
	logger logr.Logger
	// sources are the node's addresses of the sessions, as they were last known, by the name
	// of the peer. Only Want uses them.
	sources map[string]netip.Addr

	mu sync.Mutex
	// wanted is true where there should be a session.
	wanted bool
	// losses are those that were seen of each session.
	losses map[string]uint64
}

// New returns a detector that asks a process, and takes the session with a peer down by a function.
func New(process Process, down func(peer, reason string) error, logger logr.Logger) *Detector {
	return &Detector{process: process, down: down, logger: logger, losses: map[string]uint64{}, sources: map[string]netip.Addr{}}
}

// Run looks at each report until ctx is done, and calls looked after each.
func (d *Detector) Run(ctx context.Context, reports <-chan struct{}, looked func()) error {
	return wake.Forward(ctx, reports, func() {
		d.look()
		looked()
	})
}

// look takes down what was lost since the last time. What an administrator took down is not
// lost (RFC 5882, section 3.2), nor what the process says when it is first asked.
func (d *Detector) look() {
	report, err := d.process.Report()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		if d.wanted {
			d.logger.Error(err, "BFD sessions are not known; BGP sessions stay")
		}
		return
	}
	present := map[string]uint64{}
	for _, session := range report.Sessions {
		present[session.Peer] = session.Losses
		before, seen := d.losses[session.Peer]
		if !seen || session.Losses <= before {
			continue
		}
		reason := "BFD session lost"
		if session.Message != "" {
			reason += ": " + session.Message
		}
		d.logger.Info("BFD session lost", "peer", session.Peer, "address", session.Address, "reason", session.Message)
		if err := d.down(session.Peer, reason); err != nil {
			d.logger.Error(err, "BGP session not taken down")
		}
	}
	d.losses = present
}

// Report is what the process says of its sessions.
func (d *Detector) Report() (control.Report, error) { return d.process.Report() }

// reportDelay bounds how long it takes to hear from the process that a session is lost.
const reportDelay = 250 * time.Millisecond

// Heard returns a moment after which a router was heard: a session that is up has heard one within
// its detection time. It is zero where none is up.
func (d *Detector) Heard(now time.Time) (after time.Time) {
	report, err := d.process.Report()
	if err != nil {
		return time.Time{}
	}
	for i := range report.Sessions {
		session := &report.Sessions[i]
		if session.State != bfd.Up {
			continue
		}
		if at := now.Add(-session.DetectionTime - reportDelay); at.After(after) {
			after = at
		}
	}
	return after
}

// Want tells the process which sessions there should be.
func (d *Detector) Want(m *model.Model) {
	want := control.Want{Peers: []control.Peer{}}
	for i := range m.Peers {
		peer := &m.Peers[i]
		if wanted, ok := m.BFD[peer.Name]; ok {
			// Where the source interface lost its address, the BGP session says so.
			if source, err := bgp.SourceOf(peer); err == nil {
				d.sources[peer.Name] = source
			}
			want.Peers = append(want.Peers, control.Peer{
				Name: peer.Name, Address: peer.Address, Source: d.sources[peer.Name], Multihop: wanted.Multihop, MinimumTTL: wanted.MinimumTTL,
				Parameters: bfd.Parameters{
					TransmitInterval: wanted.TransmitInterval, ReceiveInterval: wanted.ReceiveInterval,
					DetectMultiplier: wanted.DetectMultiplier,
				},
			})
		}
	}
	d.mu.Lock()
	d.wanted = len(want.Peers) > 0
	d.mu.Unlock()
	d.process.Set(want)
}

// Observe adds the state of the BFD sessions to that of the BGP sessions.
func (d *Detector) Observe(m *model.Model, sessions []millracev1beta1.SessionStatus) {
	report, err := d.process.Report()
	byPeer := map[string]*control.Session{}
	for i := range report.Sessions {
		byPeer[report.Sessions[i].Peer] = &report.Sessions[i]
	}
	for i := range sessions {
		if _, wanted := m.BFD[sessions[i].Peer]; !wanted {
			continue
		}
		session := byPeer[sessions[i].Peer]
		switch {
		case err != nil:
			sessions[i].BFD = &millracev1beta1.BFDStatus{State: millracev1beta1.BFDUnknown, Message: err.Error()}
		case session == nil:
			sessions[i].BFD = &millracev1beta1.BFDStatus{State: millracev1beta1.BFDUnknown, Message: "the session is not made yet"}
		default:
			sessions[i].BFD = bfdStatus(session, report.Problem)
		}
	}
}

func bfdStatus(session *control.Session, problem string) *millracev1beta1.BFDStatus {
	since := metav1.NewTime(session.Since).Rfc3339Copy()
	status := &millracev1beta1.BFDStatus{
		State: millracev1beta1.BFDState(session.State.String()), Since: &since, Message: session.Message,
	}
	if session.State == bfd.Up {
		status.Message = problem
		// Sessions negotiate in microseconds; nobody reads those.
		status.DetectionTime = &metav1.Duration{Duration: session.DetectionTime.Round(time.Millisecond)}
	}
	return status
}

// NoProcess stands in for the process where none is configured.
type NoProcess struct{}

// Set implements Process.
func (NoProcess) Set(control.Want) {}

// Report implements Process: it fails always.
func (NoProcess) Report() (control.Report, error) {
	return control.Report{}, fmt.Errorf("no BFD process: --bfd-socket is empty")
}
