// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

// bfdProcess is the process that holds the node's BFD sessions.
type bfdProcess interface {
	Set(want control.Want)
	Report() (control.Report, error)
}

// detector takes a BGP session down as soon as its BFD session is lost. It does not wait for
// a pass, which may take seconds.
type detector struct {
	process bfdProcess
	// down takes the session with a peer down, for a reason.
	down   func(peer, reason string) error
	logger logr.Logger
	// sources are the node's addresses of the sessions, as they were last known, by the name
	// of the peer. Only want uses them.
	sources map[string]netip.Addr

	mu sync.Mutex
	// wanted is true where there should be a session.
	wanted bool
	// losses are those that were seen of each session.
	losses map[string]uint64
}

func newDetector(process bfdProcess, down func(peer, reason string) error, logger logr.Logger) *detector {
	return &detector{process: process, down: down, logger: logger, losses: map[string]uint64{}, sources: map[string]netip.Addr{}}
}

// run looks at each report until ctx is done, and calls looked after each.
func (d *detector) run(ctx context.Context, reports <-chan struct{}, looked func()) error {
	return wake.Forward(ctx, reports, func() {
		d.look()
		looked()
	})
}

// look takes down what was lost since the last time. What an administrator took down is not
// lost (RFC 5882, section 3.2), nor what the process says when it is first asked.
func (d *detector) look() {
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

// reportDelay bounds how long it takes to hear from the process that a session is lost.
const reportDelay = 250 * time.Millisecond

// heard returns a moment after which a router was heard: a session that is up has heard one within
// its detection time. It is zero where none is up.
func (d *detector) heard(now time.Time) (after time.Time) {
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

// want tells the process which sessions there should be.
func (d *detector) want(m *model.Model) {
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

// observe adds the state of the BFD sessions to that of the BGP sessions.
func (d *detector) observe(m *model.Model, sessions []millracev1alpha1.SessionStatus) {
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
			sessions[i].BFD = &millracev1alpha1.BFDStatus{State: millracev1alpha1.BFDUnknown, Message: err.Error()}
		case session == nil:
			sessions[i].BFD = &millracev1alpha1.BFDStatus{State: millracev1alpha1.BFDUnknown, Message: "the session is not made yet"}
		default:
			sessions[i].BFD = bfdStatus(session, report.Problem)
		}
	}
}

func bfdStatus(session *control.Session, problem string) *millracev1alpha1.BFDStatus {
	since := metav1.NewTime(session.Since).Rfc3339Copy()
	status := &millracev1alpha1.BFDStatus{
		State: millracev1alpha1.BFDState(session.State.String()), Since: &since, Message: session.Message,
	}
	if session.State == bfd.Up {
		status.Message = problem
		// Sessions negotiate in microseconds; nobody reads those.
		status.DetectionTime = &metav1.Duration{Duration: session.DetectionTime.Round(time.Millisecond)}
	}
	return status
}

// noProcess stands in for the process where none is configured.
type noProcess struct{}

func (noProcess) Set(control.Want) {}
func (noProcess) Report() (control.Report, error) {
	return control.Report{}, fmt.Errorf("no BFD process: --bfd-socket is empty")
}
