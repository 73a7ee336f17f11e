// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cutover"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/frrk8s"
)

// Cutover is a cluster whose nodes move from MetalLB's speakers, or back.
type Cutover struct {
	explain         func(context.Context, error) error
	reader          client.Reader
	clients         kubernetes.Interface
	configurations  dynamic.NamespaceableResourceInterface
	run             func(context.Context, containerCommand) ([]byte, error)
	namespace, name string
}

// NewCutover returns the cluster with the speakers' DaemonSet, NAMESPACE/NAME.
func NewCutover(config Config, speaker string) (*Cutover, error) {
	namespace, name, found := strings.Cut(speaker, "/")
	if !found || namespace == "" || name == "" {
		return nil, fmt.Errorf("--speaker=%s: want NAMESPACE/NAME of the DaemonSet of MetalLB's speakers", speaker)
	}
	restConfig, clients, err := config.clients()
	if err != nil {
		return nil, err
	}
	_, reader, err := config.client()
	if err != nil {
		return nil, err
	}
	others, err := dynamic.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("create client for %s: %w", restConfig.Host, err)
	}
	return &Cutover{
		explain: func(ctx context.Context, err error) error { return config.explainServer(ctx, restConfig.Host, err) },
		reader:  reader, clients: clients, configurations: others.Resource(frrk8s.Resource),
		namespace: namespace, name: name,
		run: func(ctx context.Context, what containerCommand) ([]byte, error) {
			var out bytes.Buffer
			complaints, err := runCommand(ctx, restConfig, what, &out)
			if err != nil && complaints != "" {
				err = fmt.Errorf("%w: %s", err, complaints)
			}
			return out.Bytes(), err
		},
	}, nil
}

// ExcludeMigrated excludes nodes with LabelAnnouncer from the speakers' DaemonSet, and sets the update
// strategy OnDelete, so that no pod restarts because of the change.
func (h *Cutover) ExcludeMigrated(ctx context.Context) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		set, err := h.speakers(ctx)
		if err != nil || !excludeMigrated(&set.Spec) {
			return err
		}
		_, err = h.clients.AppsV1().DaemonSets(h.namespace).Update(ctx, set, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("keep DaemonSet %s/%s off nodes that Millrace has: %w", h.namespace, h.name, h.explain(ctx, err))
	}
	return nil
}

func (h *Cutover) speakers(ctx context.Context) (*appsv1.DaemonSet, error) {
	set, err := h.clients.AppsV1().DaemonSets(h.namespace).Get(ctx, h.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read DaemonSet %s/%s; --speaker names another: %w", h.namespace, h.name, h.explain(ctx, err))
	}
	return set, nil
}

func excludeMigrated(spec *appsv1.DaemonSetSpec) bool {
	ours := corev1.NodeSelectorRequirement{Key: millracev1beta1.LabelAnnouncer, Operator: corev1.NodeSelectorOpDoesNotExist}
	pod := &spec.Template.Spec
	if pod.Affinity == nil {
		pod.Affinity = &corev1.Affinity{}
	}
	if pod.Affinity.NodeAffinity == nil {
		pod.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	affinity := pod.Affinity.NodeAffinity
	if affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}
	changed := false
	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		has := slices.ContainsFunc(terms[i].MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == ours.Key && r.Operator == ours.Operator
		})
		if !has {
			terms[i].MatchExpressions = append(terms[i].MatchExpressions, ours)
			changed = true
		}
	}
	if changed {
		spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	}
	return changed
}

// Unclaimed returns the addresses that MetalLB assigned and for which Millrace has no VIP.
func (h *Cutover) Unclaimed(ctx context.Context) ([]string, error) {
	var vips millracev1beta1.VIPList
	var services corev1.ServiceList
	if err := list(ctx, h.reader, []client.ObjectList{&vips, &services}); err != nil {
		return nil, h.explain(ctx, err)
	}
	return cutover.Unclaimed(services.Items, vips.Items), nil
}

// Nodes returns the names of the nodes with an LBNode.
func (h *Cutover) Nodes(ctx context.Context) ([]string, error) {
	var nodes millracev1beta1.LBNodeList
	if err := h.reader.List(ctx, &nodes); err != nil {
		return nil, h.explain(ctx, err)
	}
	names := make([]string, 0, len(nodes.Items))
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	slices.Sort(names)
	return names, nil
}

// Announcer returns the value of LabelAnnouncer of a Node; empty without the label.
func (h *Cutover) Announcer(ctx context.Context, node string) (string, error) {
	object, err := h.clients.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return "", h.explain(ctx, err)
	}
	return object.Labels[millracev1beta1.LabelAnnouncer], nil
}

// SetAnnouncer implements cutover.Cluster.
func (h *Cutover) SetAnnouncer(ctx context.Context, node, value string) error {
	var label any
	if value != "" {
		label = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{millracev1beta1.LabelAnnouncer: label}}})
	if err != nil {
		return fmt.Errorf("encode the label: %w", err)
	}
	if _, err := h.clients.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label Node %s: %w", node, h.explain(ctx, err))
	}
	return nil
}

// MovingPeers implements cutover.Cluster.
func (h *Cutover) MovingPeers(ctx context.Context) (map[string]bool, error) {
	peers, err := h.movingPeers(ctx)
	moving := map[string]bool{}
	for i := range peers {
		moving[peers[i].Name] = true
	}
	return moving, err
}

// Report implements cutover.Cluster.
func (h *Cutover) Report(ctx context.Context, node string) (*millracev1beta1.LBNodeReport, error) {
	report := &millracev1beta1.LBNodeReport{}
	if err := h.reader.Get(ctx, client.ObjectKey{Name: node}, report); err != nil {
		return nil, h.explain(ctx, err)
	}
	return report, nil
}

// Speaker reads sessions from FRR or else from the metrics of the native speaker.
func (h *Cutover) Speaker(ctx context.Context, node string) (cutover.Speaker, error) {
	set, err := h.speakers(ctx)
	if err != nil {
		return cutover.Speaker{}, err
	}
	pods, err := h.clients.CoreV1().Pods(h.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(set.Spec.Selector), FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return cutover.Speaker{}, fmt.Errorf("list the pods of DaemonSet %s/%s on node %s: %w", h.namespace, h.name, node, h.explain(ctx, err))
	}
	if len(pods.Items) == 0 {
		return cutover.Speaker{}, nil
	}
	pod := &pods.Items[0]
	speaker := cutover.Speaker{Pod: pod.Name}
	if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil {
		return speaker, nil
	}
	switch {
	case isBGPDelegated(&set.Spec.Template.Spec):
		return h.byFRRK8s(ctx, node, speaker)
	case hasFRR(pod):
		sessions, err := h.sessions(ctx, pod)
		speaker.Established, speaker.Sessions = sessions.Established(sessions.Peers()), len(sessions)
		return speaker, err
	}
	// The pod may not answer yet and then has no sessions.
	metrics, err := h.clients.CoreV1().Pods(h.namespace).ProxyGet("http", pod.Name, metricsPort(pod), "metrics", nil).DoRaw(ctx)
	if err == nil {
		speaker.Established, speaker.Sessions = speakerSessions(metrics)
	}
	return speaker, nil
}

// metricsPort returns the port named as in MetalLB's manifests and charts, or the default.
func metricsPort(pod *corev1.Pod) string {
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == "monitoring" || port.Name == "metrics" {
				return strconv.Itoa(int(port.ContainerPort))
			}
		}
	}
	return "7472"
}

var sessionUp = regexp.MustCompile(`(?m)^metallb_bgp_session_up\{(?:.*,)?peer="([^"]*)".*\} ([01])$`)

func speakerSessions(metrics []byte) (established, all int) {
	up := map[string]bool{}
	for _, match := range sessionUp.FindAllSubmatch(metrics, -1) {
		up[string(match[1])] = string(match[2]) == "1"
	}
	for peer, is := range up {
		if isShadow(peer, up) {
			continue
		}
		all++
		if is {
			established++
		}
	}
	return established, all
}

// isShadow reports whether a series is a leftover: native speakers of 0.15 create one by the router's
// address, which they never update, besides the one by address and port.
func isShadow(peer string, all map[string]bool) bool {
	for other := range all {
		if strings.HasPrefix(other, peer+":") {
			return true
		}
	}
	return false
}
