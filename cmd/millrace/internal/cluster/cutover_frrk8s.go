// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cutover"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/frrk8s"
)

// isBGPDelegated reports whether MetalLB is in mode frr-k8s, whose sessions outlive the speakers.
func isBGPDelegated(pod *corev1.PodSpec) bool {
	for i := range pod.Containers {
		for _, variable := range pod.Containers[i].Env {
			if variable.Name == "METALLB_BGP_TYPE" && strings.HasPrefix(variable.Value, "frr-k8s") {
				return true
			}
		}
	}
	return false
}

func (h *Cutover) byFRRK8s(ctx context.Context, node string, speaker cutover.Speaker) (cutover.Speaker, error) {
	all, err := h.frrConfigurations(ctx)
	if err != nil {
		return speaker, err
	}
	pod, err := h.frrPod(ctx, node)
	if err != nil {
		return speaker, err
	}
	if pod == nil {
		return speaker, fmt.Errorf("node %s has no running pod of frr-k8s", node)
	}
	sessions, err := h.sessions(ctx, pod)
	for i := range all {
		if bySpeakerOf(&all[i], node) {
			peers := all[i].Peers()
			speaker.Established, speaker.Sessions = sessions.Established(peers), len(peers)
		}
	}
	return speaker, err
}

func bySpeakerOf(configuration *frrk8s.Configuration, node string) bool {
	return configuration.BySpeaker() && configuration.Metadata.Name == frrk8s.NameFor(node)
}

// Withdraw deletes the FRRConfiguration that a stopped speaker leaves in mode frr-k8s, and thereby its
// sessions. A started speaker recreates it.
func (h *Cutover) Withdraw(ctx context.Context, node string) error {
	set, err := h.speakers(ctx)
	if err != nil || !isBGPDelegated(&set.Spec.Template.Spec) {
		return err
	}
	all, err := h.frrConfigurations(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if !bySpeakerOf(&all[i], node) {
			continue
		}
		err := h.configurations.Namespace(all[i].Metadata.Namespace).Delete(ctx, all[i].Metadata.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s, which the speaker of node %s left: %w", all[i].Name(), node, err)
		}
	}
	return nil
}

// RemainingSession implements cutover.Cluster.
func (h *Cutover) RemainingSession(ctx context.Context, node string) (string, error) {
	set, err := h.speakers(ctx)
	if err != nil || !isBGPDelegated(&set.Spec.Template.Spec) {
		return "", err
	}
	pod, err := h.frrPod(ctx, node)
	if err != nil || pod == nil {
		return "", err
	}
	sessions, err := h.sessions(ctx, pod)
	if err != nil {
		return "", err
	}
	wanted, err := h.wantedPeers(ctx)
	if err != nil {
		return "", err
	}
	for _, peer := range sessions.Peers() {
		if wanted[peer] != "" {
			return fmt.Sprintf("frr-k8s, pod %s, still has router %s", pod.Name, peer), nil
		}
	}
	return "", nil
}

// OtherUsers describes FRRConfigurations that no speaker wrote, in mode frr-k8s. It returns an error if
// one of them has a session that Millrace needs on a node.
func (h *Cutover) OtherUsers(ctx context.Context, nodes []string) ([]string, error) {
	set, err := h.speakers(ctx)
	if err != nil || !isBGPDelegated(&set.Spec.Template.Spec) {
		return nil, err
	}
	all, err := h.frrConfigurations(ctx)
	if err != nil {
		return nil, err
	}
	others := slices.DeleteFunc(all, func(c frrk8s.Configuration) bool { return c.BySpeaker() })
	wanted, err := h.wantedPeers(ctx)
	if err != nil || len(others) == 0 {
		return nil, err
	}
	var lines []string
	for i := range others {
		lines = append(lines, others[i].Name()+": frr-k8s keeps it")
		if others[i].Spec.Raw.Config != "" {
			lines = append(lines, others[i].Name()+": its rawConfig is not evaluated: verify that it has no session with Millrace's routers")
		}
	}
	for _, name := range nodes {
		node, err := h.clients.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, h.explain(ctx, err)
		}
		if err := conflict(others, wanted, node); err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// conflict returns an error if one of others has a session that Millrace needs on a node.
func conflict(others []frrk8s.Configuration, wanted map[frrk8s.Peer]string, node *corev1.Node) error {
	for i := range others {
		if !others[i].Selects(node.Labels) {
			continue
		}
		for _, peer := range others[i].Peers() {
			if wanted[peer] != "" {
				return fmt.Errorf("%s keeps the session of frr-k8s on node %s with router %s, which accepts one session per address: "+
					"remove the neighbor from it, or set another router.address or a sourceInterface in LBPeer %s "+
					"(docs/platforms.md, A CNI that peers with the router already)",
					others[i].Name(), node.Name, peer, wanted[peer])
			}
		}
	}
	return nil
}

// wantedPeers maps routers to the moving LBPeers that connect to them from the node's address.
func (h *Cutover) wantedPeers(ctx context.Context) (map[frrk8s.Peer]string, error) {
	peers, err := h.movingPeers(ctx)
	if err != nil {
		return nil, err
	}
	wanted := map[frrk8s.Peer]string{}
	for i := range peers {
		spec := &peers[i].Spec
		if spec.Router.Address != "" && spec.SourceAddress == "" && spec.SourceInterface == "" {
			wanted[frrk8s.NewPeer("", spec.Router.Address)] = peers[i].Name
		}
	}
	return wanted, nil
}

func (h *Cutover) frrConfigurations(ctx context.Context) ([]frrk8s.Configuration, error) {
	list, err := h.configurations.List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list FRRConfigurations: %w", err)
	}
	all := make([]frrk8s.Configuration, len(list.Items))
	for i := range list.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &all[i]); err != nil {
			return nil, fmt.Errorf("read FRRConfiguration %s: %w", list.Items[i].GetName(), err)
		}
	}
	return all, nil
}

func (h *Cutover) frrPod(ctx context.Context, node string) (*corev1.Pod, error) {
	pods, err := h.clients.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		daemon := slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return slices.Contains(c.Command, "/frr-k8s") })
		if daemon && hasFRR(pod) && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			return pod, nil
		}
	}
	return nil, nil
}

func hasFRR(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == frrk8s.Container })
}

func (h *Cutover) sessions(ctx context.Context, pod *corev1.Pod) (frrk8s.Sessions, error) {
	printed, err := h.run(ctx, containerCommand{pod: pod, container: frrk8s.Container, command: frrk8s.ShowSessions})
	if errors.Is(err, ErrForbidden) {
		return nil, fmt.Errorf("%w; FRR's sessions are read by its %s", err, frrk8s.ShowSessions[0])
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(frrk8s.ShowSessions, " "), err, printed)
	}
	return frrk8s.ReadSessions(printed)
}

// movingPeers returns the LBPeers that select nodes by LabelAnnouncer.
func (h *Cutover) movingPeers(ctx context.Context) ([]millracev1beta1.LBPeer, error) {
	var peers millracev1beta1.LBPeerList
	if err := h.reader.List(ctx, &peers); err != nil {
		return nil, h.explain(ctx, err)
	}
	return slices.DeleteFunc(peers.Items, func(peer millracev1beta1.LBPeer) bool {
		return peer.Spec.NodeSelector == nil || peer.Spec.NodeSelector.MatchLabels[millracev1beta1.LabelAnnouncer] == ""
	}), nil
}
