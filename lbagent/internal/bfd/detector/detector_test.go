// SPDX-License-Identifier: Apache-2.0

package detector

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type saying struct {
	report control.Report
	err    error
	wanted control.Want
}

func (s *saying) Set(want control.Want)           { s.wanted = want }
func (s *saying) Report() (control.Report, error) { return s.report, s.err }

func TestDetectorResetsSessions(t *testing.T) {
	process := &saying{}
	var down []string
	d := New(process, func(peer, reason string) {
		down = append(down, peer+": "+reason)
	}, logr.Discard())
	for _, step := range []struct {
		name     string
		sessions []control.Session
		err      error
		want     []string
	}{
		{"losses before the agent started", []control.Session{{Peer: "a", State: bfd.Up, Losses: 3}}, nil, nil},
		{"no new loss", []control.Session{{Peer: "a", State: bfd.Up, Losses: 3}}, nil, nil},
		{"a loss", []control.Session{{Peer: "a", State: bfd.Down, Losses: 4, Message: "control detection time expired"}}, nil,
			[]string{"a: BFD session lost: control detection time expired"}},
		{"loss reported once", []control.Session{{Peer: "a", State: bfd.Down, Losses: 4}}, nil, nil},
		{"the administrator", []control.Session{{Peer: "a", State: bfd.Down, PeerState: bfd.AdminDown, Losses: 4}}, nil, nil},
		{"lost and up again since the previous pass", []control.Session{{Peer: "a", State: bfd.Up, Losses: 6}}, nil, []string{"a: BFD session lost"}},
		{"no process", nil, errors.New("gone"), nil},
		{"restarted process", []control.Session{{Peer: "a", State: bfd.Down}, {Peer: "b", State: bfd.Down}}, nil, nil},
		{"different peer", []control.Session{{Peer: "a", State: bfd.Up}, {Peer: "b", Losses: 1}}, nil, []string{"b: BFD session lost"}},
		{"removed peer", []control.Session{{Peer: "a", State: bfd.Up}}, nil, nil},
		{"peer added again", []control.Session{{Peer: "a", State: bfd.Up}, {Peer: "b", Losses: 1}}, nil, nil},
	} {
		down = nil
		process.report, process.err = control.Report{Sessions: step.sessions}, step.err
		d.check()
		if !slices.Equal(down, step.want) {
			t.Errorf("%s: Down was called for %q, want %q", step.name, down, step.want)
		}
	}
}

func TestDetectorConfiguresAndObserves(t *testing.T) {
	const ms = time.Millisecond
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	process := &saying{}
	d := New(process, nil, logr.Discard())
	address := netip.MustParseAddr("198.51.100.1")
	m := &model.Model{
		Peers: []model.Peer{{Name: "a", Address: address}, {Name: "b", Address: netip.MustParseAddr("198.51.100.9")}},
		BFD:   map[string]desired.BFD{"a": {Enabled: true, TransmitInterval: 50 * ms, ReceiveInterval: 70 * ms, DetectMultiplier: 4, Multihop: true, MinimumTTL: 250}},
	}
	d.SetPeers(m)
	want := control.Peer{
		Name: "a", Address: address, Multihop: true, MinimumTTL: 250,
		Parameters: bfd.Parameters{TransmitInterval: 50 * ms, ReceiveInterval: 70 * ms, DetectMultiplier: 4},
	}
	if !slices.Equal(process.wanted.Peers, []control.Peer{want}) {
		t.Errorf("wanted peers = %+v", process.wanted)
	}
	m.Peers[0].Source = netip.MustParseAddr("198.51.100.5")
	d.SetPeers(m)
	if want.Source = m.Peers[0].Source; !slices.Equal(process.wanted.Peers, []control.Peer{want}) {
		t.Errorf("with a source address: wanted peers = %+v", process.wanted)
	}
	m.Peers[0].Source, m.Peers[0].SourceInterface = netip.Addr{}, "absent0"
	if d.SetPeers(m); !slices.Equal(process.wanted.Peers, []control.Peer{want}) {
		t.Errorf("with a removed source interface: wanted peers = %+v, want the previous address", process.wanted)
	}
	observe := func() *millracev1beta1.BFDStatus {
		sessions := []millracev1beta1.SessionStatus{{Peer: "a"}, {Peer: "b"}}
		d.Observe(m, sessions)
		if sessions[1].BFD != nil {
			t.Errorf("peer without BFD: status %+v", sessions[1].BFD)
		}
		return sessions[0].BFD
	}
	if status := observe(); status.State != millracev1beta1.BFDUnknown || status.Message == "" {
		t.Errorf("before the session exists: %+v", status)
	}
	process.report = control.Report{Problem: "late", Sessions: []control.Session{{Peer: "a", State: bfd.Up, Since: start, DetectionTime: 280 * ms}}}
	if status := observe(); status.State != "Up" || status.Message != "late" || status.DetectionTime.Duration != 280*ms || !status.Since.Time.Equal(start) {
		t.Errorf("up: %+v", status)
	}
	process.report.Sessions[0].State, process.report.Sessions[0].Message = bfd.Down, "why"
	if status := observe(); status.State != "Down" || status.Message != "why" || status.DetectionTime != nil {
		t.Errorf("down: %+v", status)
	}
	process.err = errors.New("gone")
	if status := observe(); status.State != millracev1beta1.BFDUnknown || status.Message != "gone" {
		t.Errorf("no process: %+v", status)
	}
}

// The session with the shortest detection time determines when the router was last received.
func TestLastReceived(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	up := func(detection time.Duration) control.Session {
		return control.Session{State: bfd.Up, DetectionTime: detection}
	}
	lost := control.Session{State: bfd.Down, DetectionTime: time.Millisecond}
	for name, test := range map[string]struct {
		sessions []control.Session
		err      error
		want     time.Time
	}{
		"none":           {},
		"down":           {sessions: []control.Session{lost}},
		"up":             {sessions: []control.Session{lost, up(300 * time.Millisecond)}, want: now.Add(-300*time.Millisecond - reportDelay)},
		"two":            {sessions: []control.Session{up(3 * time.Second), up(time.Second)}, want: now.Add(-time.Second - reportDelay)},
		"process exited": {sessions: []control.Session{up(time.Second)}, err: errors.New("gone")},
	} {
		d := New(&saying{report: control.Report{Sessions: test.sessions}, err: test.err}, nil, logr.Discard())
		if got := d.LastReceived(now); !got.Equal(test.want) {
			t.Errorf("%s: received after %s, want %s", name, got, test.want)
		}
	}
}
