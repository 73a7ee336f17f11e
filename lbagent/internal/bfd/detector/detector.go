// SPDX-License-Identifier: Apache-2.0

// Package detector resets BGP sessions whose BFD sessions are lost, as reported by the BFD process.
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
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

// Process is the client of the BFD process.
type Process interface {
	Set(want control.Want)
	Report() (control.Report, error)
}

// Detector resets BGP sessions at once, without waiting for a pass, which may take seconds.
type Detector struct {
	process Process
	down    func(peer, reason string)
	logger  logr.Logger
	// sources are the last known source addresses by peer. Only SetPeers uses them.
	sources map[string]netip.Addr

	mu sync.Mutex
	// wanted is true if any session is configured.
	wanted bool
	losses map[string]uint64
}

// New returns a detector that calls down for the peers of lost sessions of process.
func New(process Process, down func(peer, reason string), logger logr.Logger) *Detector {
	return &Detector{process: process, down: down, logger: logger, losses: map[string]uint64{}, sources: map[string]netip.Addr{}}
}

// Run processes each report until ctx is done, and calls looked afterwards.
func (d *Detector) Run(ctx context.Context, reports <-chan struct{}, looked func()) error {
	return notify.Forward(ctx, reports, func() {
		d.check()
		looked()
	})
}

// check resets sessions with new losses. Administrative shutdowns do not count (RFC 5882, section 3.2), nor
// losses in the first report.
func (d *Detector) check() {
	report, err := d.process.Report()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		if d.wanted {
			d.logger.Error(err, "The state of BFD sessions is unknown; BGP sessions are kept")
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
		d.down(session.Peer, reason)
	}
	d.losses = present
}

// Report returns the state of the BFD process.
func (d *Detector) Report() (control.Report, error) { return d.process.Report() }

// reportDelay bounds the delay of a report about a lost session.
const reportDelay = 250 * time.Millisecond

// LastReceived returns a time after which a router's packet arrived: an established session received one
// within its detection time. It returns zero if no session is up.
func (d *Detector) LastReceived(now time.Time) (after time.Time) {
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

// SetPeers configures the sessions of the model.
func (d *Detector) SetPeers(m *model.Model) {
	want := control.Want{Peers: []control.Peer{}}
	for i := range m.Peers {
		peer := &m.Peers[i]
		if wanted, ok := m.BFD[peer.Name]; ok {
			// If the source interface has no address, the BGP session reports it.
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

// Observe adds the state of BFD sessions to the status of BGP sessions.
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
			sessions[i].BFD = &millracev1beta1.BFDStatus{State: millracev1beta1.BFDUnknown, Message: "the session is not created yet"}
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
		// Rounded, because sessions negotiate in microseconds.
		status.DetectionTime = &metav1.Duration{Duration: session.DetectionTime.Round(time.Millisecond)}
	}
	return status
}

// NoProcess is the Process if none is configured.
type NoProcess struct{}

// Set implements Process.
func (NoProcess) Set(control.Want) {}

// Report implements Process. It always returns an error.
func (NoProcess) Report() (control.Report, error) {
	return control.Report{}, fmt.Errorf("no BFD process: --bfd-socket is empty")
}
