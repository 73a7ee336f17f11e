// SPDX-License-Identifier: Apache-2.0

package cutover

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// node is a cluster of one node, whose speaker and agent follow its label, with injected faults.
type node struct {
	label               string
	speakerStays        bool
	agentHasNoSession   bool
	speakerHasNoSession bool
	limited             bool
	// kept is true if frr-k8s keeps the sessions until they are withdrawn, stays if even then.
	kept, stays bool
	overlap     bool
}

func (n *node) SetAnnouncer(ctx context.Context, _, value string) error {
	n.label = value
	return ctx.Err()
}

func (n *node) Speaker(ctx context.Context, _ string) (Speaker, error) {
	deadline, is := ctx.Deadline()
	switch {
	case is && n.limited && time.Until(deadline) < time.Second:
		return Speaker{}, errors.New("the rate limiter would exceed the deadline")
	case n.label != "" && !n.speakerStays:
		return Speaker{}, nil
	case n.speakerHasNoSession:
		return Speaker{Pod: "speaker-x", Sessions: 2, Established: 1}, nil
	}
	return Speaker{Pod: "speaker-x", Sessions: 2, Established: 2}, nil
}

func (n *node) Withdraw(ctx context.Context, _ string) error {
	n.kept = n.stays
	return ctx.Err()
}

func (n *node) RemainingSession(context.Context, string) (string, error) {
	if n.kept {
		return "frr-k8s still has router 198.51.100.1", nil
	}
	return "", nil
}

func (n *node) MovingPeers(context.Context) (map[string]bool, error) {
	return map[string]bool{"router": true}, nil
}

func (n *node) Report(context.Context, string) (*millracev1beta1.LBNodeReport, error) {
	report := &millracev1beta1.LBNodeReport{}
	// It does not move.
	report.Status.Sessions = []millracev1beta1.SessionStatus{{Peer: "router-v6", State: millracev1beta1.SessionEstablished}}
	report.Status.VIPs.Announced = 20
	if n.label != millracev1beta1.AnnouncerMillrace {
		return report, nil
	}
	n.overlap = n.overlap || n.speakerStays || n.kept
	session := millracev1beta1.SessionStatus{Peer: "router", State: millracev1beta1.SessionEstablished}
	if n.agentHasNoSession {
		session.State, session.Message = millracev1beta1.SessionActive, "connection refused"
	}
	report.Status.Sessions = append(report.Status.Sessions, session)
	return report, nil
}

func mover(n *node) *Migrator {
	return &Migrator{Cluster: n, Timeout: time.Minute, Log: func(string) {}}
}

func TestMove(t *testing.T) {
	for name, test := range map[string]struct {
		node           node
		back           bool
		label, failure string
	}{
		"to Millrace":                  {node{}, false, millracev1beta1.AnnouncerMillrace, ""},
		"and back":                     {node{label: millracev1beta1.AnnouncerMillrace}, true, "", ""},
		"the speaker stays":            {node{speakerStays: true}, false, "", "MetalLB's pod speaker-x still runs"},
		"frr-k8s keeps sessions":       {node{kept: true}, false, millracev1beta1.AnnouncerMillrace, ""},
		"and does not let them go":     {node{kept: true, stays: true}, false, "", "frr-k8s still has router 198.51.100.1"},
		"the router refuses Millrace":  {node{agentHasNoSession: true}, false, "", "the session of LBPeer router is Active: connection refused"},
		"the router refuses MetalLB":   {node{label: millracev1beta1.AnnouncerMillrace, speakerHasNoSession: true}, true, millracev1beta1.AnnouncerMillrace, "of 2 sessions of MetalLB's pod speaker-x 1 are established"},
		"again, where it was given up": {node{label: millracev1beta1.AnnouncerNone}, false, millracev1beta1.AnnouncerMillrace, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, step := test.node, (*Migrator).Move
				if test.back {
					step = (*Migrator).MoveBack
				}
				err := step(mover(&n), t.Context(), "node1")
				if n.label != test.label || n.overlap {
					t.Errorf("the label is %q, want %q; both had sessions at once: %t", n.label, test.label, n.overlap)
				}
				if (err == nil) != (test.failure == "") || (err != nil && (!strings.Contains(err.Error(), test.failure) || !errors.Is(err, ErrMovedBack))) {
					t.Errorf("error %v, want %q", err, test.failure)
				}
			})
		})
	}
}

func TestMoveIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n := &node{agentHasNoSession: true}
		if err := mover(n).Move(ctx, "node1"); !errors.Is(err, context.DeadlineExceeded) || n.label != "" {
			t.Errorf("error %v, label %q", err, n.label)
		}
	})
}

func TestMoveLogsMissingState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{label: millracev1beta1.AnnouncerMillrace, speakerHasNoSession: true, limited: true}
		err := mover(n).MoveBack(t.Context(), "node1")
		for _, want := range []string{"of 2 sessions of MetalLB's pod speaker-x 1 are established", "the rate limiter would exceed"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
	})
}

func TestMoveBackFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{agentHasNoSession: true, speakerHasNoSession: true}
		err := mover(n).Move(t.Context(), "node1")
		if err == nil || errors.Is(err, ErrMovedBack) || !strings.Contains(err.Error(), "move node node1 back: it may announce no VIP") {
			t.Errorf("error %v", err)
		}
	})
}

func TestSilence(t *testing.T) {
	established := []millracev1beta1.SessionStatus{{Peer: "router", State: millracev1beta1.SessionEstablished}}
	for want, status := range map[string]millracev1beta1.LBNodeReportStatus{
		"no LBPeer selects it":    {},
		"no VIP is announced":     {Sessions: established},
		"VIP 203.0.113.1 is not ": {Sessions: established, Exceptions: []millracev1beta1.VIPException{{Address: "203.0.113.1", Message: "x"}}},
	} {
		if got := missingAnnouncement(&status); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestUnclaimed(t *testing.T) {
	service := func(name, address string, change func(*corev1.Service)) corev1.Service {
		s := corev1.Service{}
		s.Namespace, s.Name = "shop", name
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		if change != nil {
			change(&s)
		}
		return s
	}
	vip := func(address string, services ...string) millracev1beta1.VIP {
		v := millracev1beta1.VIP{Spec: millracev1beta1.VIPSpec{Address: address}}
		for _, name := range services {
			v.Spec.Claims = append(v.Spec.Claims, millracev1beta1.VIPClaim{Namespace: "shop", Name: name})
		}
		return v
	}
	class := "other"
	got := Unclaimed([]corev1.Service{
		service("a", "203.0.113.1", nil), service("b", "203.0.113.1", nil), service("c", "203.0.113.2", nil),
		service("others", "203.0.113.3", func(s *corev1.Service) { s.Spec.LoadBalancerClass = &class }),
		service("internal", "203.0.113.4", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }),
	}, []millracev1beta1.VIP{vip("203.0.113.1", "a"), vip("203.0.113.2", "c")})
	if want := []string{"shop/b 203.0.113.1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
