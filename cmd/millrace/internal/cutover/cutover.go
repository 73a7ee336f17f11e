// SPDX-License-Identifier: Apache-2.0

// Package cutover moves routers' sessions from MetalLB's speakers to agents and back, node by node. A
// router accepts one session from a node's address, so the old speaker stops first.
package cutover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// interval is the polling interval of conditions.
const interval = 500 * time.Millisecond

// Speaker is the state of MetalLB's speaker on a node.
type Speaker struct {
	Pod                   string
	Established, Sessions int
}

// Cluster is the interface to the cluster.
type Cluster interface {
	// SetAnnouncer labels a Node with millracev1beta1.LabelAnnouncer; an empty value removes it.
	SetAnnouncer(ctx context.Context, node, value string) error
	Speaker(ctx context.Context, node string) (Speaker, error)
	// Withdraw removes the frr-k8s configuration that a stopped speaker left, with its sessions.
	Withdraw(ctx context.Context, node string) error
	// RemainingSession describes a session of frr-k8s with a router that Millrace needs, or is empty.
	RemainingSession(ctx context.Context, node string) (string, error)
	// MovingPeers are the LBPeers that select nodes by this label.
	MovingPeers(ctx context.Context) (map[string]bool, error)
	Report(ctx context.Context, node string) (*millracev1beta1.LBNodeReport, error)
}

// Migrator moves nodes.
type Migrator struct {
	Cluster Cluster
	Timeout time.Duration
	Log     func(line string)
}

// ErrMovedBack is returned when a node could not be moved and was restored.
var ErrMovedBack = errors.New("the node was moved back")

// Move moves the node's sessions to Millrace or, after a failure, back.
func (m *Migrator) Move(ctx context.Context, node string) error {
	return m.runOrUndo(ctx, node, m.toMillrace, m.toMetalLB)
}

// MoveBack moves the node's sessions to MetalLB or, after a failure, back.
func (m *Migrator) MoveBack(ctx context.Context, node string) error {
	return m.runOrUndo(ctx, node, m.toMetalLB, m.toMillrace)
}

func (m *Migrator) runOrUndo(ctx context.Context, node string, step, undo func(context.Context, string) error) error {
	failed := step(ctx, node)
	if failed == nil {
		return nil
	}
	m.Log(fmt.Sprintf("%s: moving back: %v", node, failed))
	if err := undo(context.WithoutCancel(ctx), node); err != nil {
		return errors.Join(failed, fmt.Errorf("move node %s back: it may announce no VIP: %w", node, err))
	}
	return fmt.Errorf("%w: %w", ErrMovedBack, failed)
}

func (m *Migrator) toMillrace(ctx context.Context, node string) error {
	if err := m.Cluster.SetAnnouncer(ctx, node, millracev1beta1.AnnouncerNone); err != nil {
		return err
	}
	if err := m.waitFor(ctx, node, m.speakerStopped); err != nil {
		return err
	}
	if err := m.Cluster.Withdraw(ctx, node); err != nil {
		return err
	}
	if err := m.waitFor(ctx, node, m.Cluster.RemainingSession); err != nil {
		return err
	}
	m.Log(node + ": MetalLB's speaker has left")
	if err := m.Cluster.SetAnnouncer(ctx, node, millracev1beta1.AnnouncerMillrace); err != nil {
		return err
	}
	if err := m.waitFor(ctx, node, m.agentAnnounces); err != nil {
		return err
	}
	m.Log(node + ": Millrace announces")
	return nil
}

func (m *Migrator) toMetalLB(ctx context.Context, node string) error {
	if err := m.Cluster.SetAnnouncer(ctx, node, millracev1beta1.AnnouncerNone); err != nil {
		return err
	}
	if err := m.waitFor(ctx, node, m.agentStopped); err != nil {
		return err
	}
	m.Log(node + ": Millrace has left")
	if err := m.Cluster.SetAnnouncer(ctx, node, ""); err != nil {
		return err
	}
	if err := m.waitFor(ctx, node, m.speakerAnnounces); err != nil {
		return err
	}
	m.Log(node + ": MetalLB's speaker announces")
	return nil
}

// waitFor polls a condition, which returns the missing fact or "".
func (m *Migrator) waitFor(ctx context.Context, node string, condition func(context.Context, string) (missing string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	last, failed := "the API server has not answered", ""
	for {
		missing, err := condition(ctx, node)
		switch {
		case err == nil && missing == "":
			return nil
		case err == nil:
			last, failed = missing, ""
		case ctx.Err() == nil:
			// The error may be caused by the expired context.
			failed = "; last error: " + err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s: no success within %s: %s%s: %w", node, m.Timeout, last, failed, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func (m *Migrator) speakerStopped(ctx context.Context, node string) (string, error) {
	speaker, err := m.Cluster.Speaker(ctx, node)
	if err != nil || speaker.Pod == "" {
		return "", err
	}
	return fmt.Sprintf("MetalLB's pod %s still runs", speaker.Pod), nil
}

func (m *Migrator) speakerAnnounces(ctx context.Context, node string) (string, error) {
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

// agentStopped ignores LBPeers that do not move, such as IPv6 sessions besides MetalLB's over IPv4.
func (m *Migrator) agentStopped(ctx context.Context, node string) (string, error) {
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
			return fmt.Sprintf("Millrace still has a session of LBPeer %s", session.Peer), nil
		}
	}
	return "", nil
}

func (m *Migrator) agentAnnounces(ctx context.Context, node string) (string, error) {
	report, err := m.Cluster.Report(ctx, node)
	if err != nil {
		return "", err
	}
	return missingAnnouncement(&report.Status), nil
}

// missingAnnouncement returns why a node announces less than it should, or "".
func missingAnnouncement(status *millracev1beta1.LBNodeReportStatus) string {
	if len(status.Sessions) == 0 {
		return fmt.Sprintf("no LBPeer selects it: give one the nodeSelector {matchLabels: {%s: %s}}",
			millracev1beta1.LabelAnnouncer, millracev1beta1.AnnouncerMillrace)
	}
	for _, session := range status.Sessions {
		if session.State != millracev1beta1.SessionEstablished {
			return strings.TrimSuffix(fmt.Sprintf("the session of LBPeer %s is %s: %s", session.Peer, session.State, session.Message), ": ")
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

// Unclaimed returns the addresses that MetalLB assigned and for which Millrace has no VIP, with their
// Services.
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
