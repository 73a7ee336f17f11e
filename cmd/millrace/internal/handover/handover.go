// SPDX-License-Identifier: Apache-2.0

// Package handover moves the routers' sessions from MetalLB's speakers to Millrace's agents, and back,
// one node after another. A router takes one session from a node's address, so the one leaves before
// the other comes.
package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// interval is how often a condition is looked at.
const interval = 500 * time.Millisecond

// Speaker is the state of MetalLB's speaker on a node.
type Speaker struct {
	// Pod is its name; empty where there is none.
	Pod string
	// Established and Sessions count its BGP sessions.
	Established, Sessions int
}

// Cluster is what a handover reads and writes.
type Cluster interface {
	// SetAnnouncer labels a Node with millracev1beta1.LabelAnnouncer; an empty value removes it.
	SetAnnouncer(ctx context.Context, node, value string) error
	Speaker(ctx context.Context, node string) (Speaker, error)
	// Withdraw has frr-k8s end the sessions that the speaker, which has left, had it hold on a node.
	Withdraw(ctx context.Context, node string) error
	// Kept says which session of a router that Millrace needs frr-k8s still has on a node; empty for none.
	Kept(ctx context.Context, node string) (string, error)
	// MovingPeers are the LBPeers that select the nodes by that label.
	MovingPeers(ctx context.Context) (map[string]bool, error)
	// Report is what the node's agent observes.
	Report(ctx context.Context, node string) (*millracev1beta1.LBNodeReport, error)
}

// Mover moves nodes.
type Mover struct {
	Cluster Cluster
	// Patience is how long one step of one node may take.
	Patience time.Duration
	// Tell takes a line about each step.
	Tell func(line string)
}

// ErrMovedBack says that a node could not be moved, and is as it was before.
var ErrMovedBack = errors.New("the node was given back")

// Move gives the node's sessions to Millrace. Where that fails, MetalLB gets them again.
func (m *Mover) Move(ctx context.Context, node string) error {
	return m.orElse(ctx, node, m.toMillrace, m.toMetalLB)
}

// Return gives the node's sessions to MetalLB. Where that fails, Millrace gets them again.
func (m *Mover) Return(ctx context.Context, node string) error {
	return m.orElse(ctx, node, m.toMetalLB, m.toMillrace)
}

// orElse takes a step, and the other one where it fails, also when the context has ended.
func (m *Mover) orElse(ctx context.Context, node string, step, undo func(context.Context, string) error) error {
	failed := step(ctx, node)
	if failed == nil {
		return nil
	}
	m.Tell(fmt.Sprintf("%s: going back: %v", node, failed))
	if err := undo(context.WithoutCancel(ctx), node); err != nil {
		return errors.Join(failed, fmt.Errorf("going back failed, too, and perhaps nobody announces from node %s: %w", node, err))
	}
	return fmt.Errorf("%w: %w", ErrMovedBack, failed)
}

func (m *Mover) toMillrace(ctx context.Context, node string) error {
	if err := m.Cluster.SetAnnouncer(ctx, node, millracev1beta1.AnnouncerNone); err != nil {
		return err
	}
	if err := m.await(ctx, node, m.speakerLeft); err != nil {
		return err
	}
	if err := m.Cluster.Withdraw(ctx, node); err != nil {
		return err
	}
	if err := m.await(ctx, node, m.Cluster.Kept); err != nil {
		return err
	}
	m.Tell(node + ": MetalLB's speaker has left")
	if err := m.Cluster.SetAnnouncer(ctx, node, millracev1beta1.AnnouncerMillrace); err != nil {
		return err
	}
	if err := m.await(ctx, node, m.agentAnnounces); err != nil {
		return err
	}
	m.Tell(node + ": Millrace announces")
	return nil
}

func (m *Mover) toMetalLB(ctx context.Context, node string) error {
	if err := m.Cluster.SetAnnouncer(ctx, node, millracev1beta1.AnnouncerNone); err != nil {
		return err
	}
	if err := m.await(ctx, node, m.agentLeft); err != nil {
		return err
	}
	m.Tell(node + ": Millrace has left")
	if err := m.Cluster.SetAnnouncer(ctx, node, ""); err != nil {
		return err
	}
	if err := m.await(ctx, node, m.speakerAnnounces); err != nil {
		return err
	}
	m.Tell(node + ": MetalLB's speaker announces")
	return nil
}

// await looks at a condition until it holds. A condition returns what it waits for.
func (m *Mover) await(ctx context.Context, node string, condition func(context.Context, string) (waitsFor string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, m.Patience)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	last, failed := "the API server has not answered", ""
	for {
		waitsFor, err := condition(ctx, node)
		switch {
		case err == nil && waitsFor == "":
			return nil
		case err == nil:
			last, failed = waitsFor, ""
		case ctx.Err() == nil:
			// It may be of the time that is nearly over. So what was waited for is told, too.
			failed = "; lately: " + err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s, after %s: %s%s: %w", node, m.Patience, last, failed, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func (m *Mover) speakerLeft(ctx context.Context, node string) (string, error) {
	speaker, err := m.Cluster.Speaker(ctx, node)
	if err != nil || speaker.Pod == "" {
		return "", err
	}
	return fmt.Sprintf("MetalLB's pod %s still runs", speaker.Pod), nil
}

func (m *Mover) speakerAnnounces(ctx context.Context, node string) (string, error) {
	speaker, err := m.Cluster.Speaker(ctx, node)
	switch {
	case err != nil:
		return "", err
	case speaker.Pod == "":
		return "MetalLB's speaker has no pod", nil
	case speaker.Sessions == 0 || speaker.Established < speaker.Sessions:
		return fmt.Sprintf("of %d sessions of MetalLB's pod %s %d are established", speaker.Sessions, speaker.Pod, speaker.Established), nil
	}
	return "", nil
}

// agentLeft looks at the sessions by LBPeers that move alone: others stay, such as one over IPv6 beside
// MetalLB's over IPv4.
func (m *Mover) agentLeft(ctx context.Context, node string) (string, error) {
	report, err := m.Cluster.Report(ctx, node)
	if err != nil {
		return "", err
	}
	moving, err := m.Cluster.MovingPeers(ctx)
	if err != nil {
		return "", err
	}
	for _, session := range report.Status.Sessions {
		if moving[session.Peer] {
			return fmt.Sprintf("Millrace still has a session by LBPeer %s", session.Peer), nil
		}
	}
	return "", nil
}

func (m *Mover) agentAnnounces(ctx context.Context, node string) (string, error) {
	report, err := m.Cluster.Report(ctx, node)
	if err != nil {
		return "", err
	}
	return silence(&report.Status), nil
}

// silence is why a node announces less than it should; empty where it does not.
func silence(status *millracev1beta1.LBNodeReportStatus) string {
	if len(status.Sessions) == 0 {
		return fmt.Sprintf("no LBPeer selects it: give one the nodeSelector {matchLabels: {%s: %s}}",
			millracev1beta1.LabelAnnouncer, millracev1beta1.AnnouncerMillrace)
	}
	for _, session := range status.Sessions {
		if session.State != millracev1beta1.SessionEstablished {
			return strings.TrimSuffix(fmt.Sprintf("the session by LBPeer %s is %s: %s", session.Peer, session.State, session.Message), ": ")
		}
	}
	if len(status.Exceptions) > 0 {
		return fmt.Sprintf("VIP %s is not announced: %s", status.Exceptions[0].Address, status.Exceptions[0].Message)
	}
	if status.VIPs.Announced == 0 {
		return "no VIP is announced"
	}
	return ""
}

// Unclaimed are the addresses that Services got from MetalLB and Millrace has no VIP of, so that it
// could not announce them, with their Services.
func Unclaimed(services []corev1.Service, vips []millracev1beta1.VIP) []string {
	claimed := map[string]bool{}
	for i := range vips {
		for _, claim := range vips[i].Spec.Claims {
			claimed[claim.Namespace+"/"+claim.Name+" "+vips[i].Spec.Address] = true
		}
	}
	var missing []string
	for i := range services {
		service := &services[i]
		if service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.Spec.LoadBalancerClass != nil {
			continue
		}
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			name := service.Namespace + "/" + service.Name + " " + ingress.IP
			if ingress.IP != "" && !claimed[name] {
				missing = append(missing, name)
			}
		}
	}
	return missing
}
