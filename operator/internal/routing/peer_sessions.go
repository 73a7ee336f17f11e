// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

// countReconciler writes the numbers of sessions to the statuses of LBPeers.
type countReconciler struct {
	client client.Client
	now    func() time.Time
	// backoffs are by LBPeer. Only one worker uses them.
	backoffs map[string]*control.Backoff
}

func setupCounts(mgr ctrl.Manager) error {
	return control.New(mgr, "session-count", 1).
		Watches(&millracev1beta1.LBPeer{}, control.CoalescedHandler(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.Node{}, control.CoalescedHandler(), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		Watches(&millracev1beta1.LBNodeReport{}, control.CoalescedHandler(), builder.WithPredicates(countsChanged())).
		Complete(&countReconciler{client: mgr.GetClient(), now: time.Now, backoffs: map[string]*control.Backoff{}})
}

func countsChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*millracev1beta1.LBNodeReport)
		after, ok2 := e.ObjectNew.(*millracev1beta1.LBNodeReport)
		return ok1 && ok2 && !maps.Equal(sessionsOf(before), sessionsOf(after))
	}}
}

// Reconcile writes the counts that changed, unless their LBPeer's status was written shortly before.
func (r *countReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	peers, nodes, reports := &millracev1beta1.LBPeerList{}, &corev1.NodeList{}, &millracev1beta1.LBNodeReportList{}
	for _, list := range []client.ObjectList{peers, nodes, reports} {
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return ctrl.Result{}, fmt.Errorf("list %T: %w", list, err)
		}
	}
	counted := counts(peers.Items, nodes.Items, reports.Items)
	now := r.now()
	var again time.Duration
	var failed []error
	backoffs := map[string]*control.Backoff{}
	for i := range peers.Items {
		base := &peers.Items[i]
		backoff := r.backoffs[base.Name]
		if backoff == nil {
			backoff = &control.Backoff{}
		}
		backoffs[base.Name] = backoff
		if base.Status.Sessions != nil && *base.Status.Sessions == counted[i] {
			continue
		}
		if wait := backoff.Wait(now); wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		peer := base.DeepCopy()
		peer.Status.Sessions = &counted[i]
		err := control.PatchStatus(ctx, r.client, base, peer, func(p *millracev1beta1.LBPeer) any { return p.Status })
		if failed = append(failed, client.IgnoreNotFound(err)); err == nil {
			backoff.RecordWrite(now)
		}
	}
	r.backoffs = backoffs
	return ctrl.Result{RequeueAfter: again}, errors.Join(failed...)
}

// A peerSessions counts the sessions of an LBPeer on a node. A router of a range has its own.
type peerSessions struct{ established, all int32 }

// sessionsOf counts a node's sessions by LBPeer. Sessions of a node that is not ready are not established.
func sessionsOf(report *millracev1beta1.LBNodeReport) map[string]peerSessions {
	sessions := map[string]peerSessions{}
	notReady := meta.FindStatusCondition(report.Status.Conditions, millracev1beta1.ConditionNodeReady) != nil
	for i := range report.Status.Sessions {
		session := &report.Status.Sessions[i]
		name, _, _ := strings.Cut(session.Peer, "/")
		count := sessions[name]
		count.all++
		if session.State == millracev1beta1.SessionEstablished && !notReady {
			count.established++
		}
		sessions[name] = count
	}
	return sessions
}

// counts returns the numbers of sessions of each LBPeer. An invalid one wants no session.
func counts(
	peers []millracev1beta1.LBPeer, nodes []corev1.Node, reports []millracev1beta1.LBNodeReport,
) []millracev1beta1.SessionCounts {
	labelsOf := make(map[string]labels.Set, len(nodes))
	for i := range nodes {
		labelsOf[nodes[i].Name] = nodes[i].Labels
	}
	counted := make([]millracev1beta1.SessionCounts, len(peers))
	selectors := make([]desired.Peer, len(peers))
	for i := range peers {
		if peer, problems := desired.ParsePeer(&peers[i]); len(problems) == 0 {
			selectors[i] = peer
		}
	}
	for i := range reports {
		node, exists := labelsOf[reports[i].Name]
		if !exists {
			continue
		}
		sessions := sessionsOf(&reports[i])
		for n := range peers {
			count := sessions[peers[n].Name]
			counted[n].Established += count.established
			switch peer := &selectors[n]; {
			case peer.Nodes == nil || !peer.Nodes.Matches(node):
			case peer.Range.IsValid():
				counted[n].Desired += count.all
			default:
				counted[n].Desired++
			}
		}
	}
	return counted
}
