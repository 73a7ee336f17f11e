// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/rotation"
)

// lagReportDelay is how long a phase lasts before nodes that do not follow are reported.
const lagReportDelay = 5 * time.Minute

// reportLag updates TunnelKeyCurrent of all reports and returns the delay until the next call, or 0.
func (r *tunnelKeyReconciler) reportLag(
	ctx context.Context, state *tunnelkey.State, nodes []rotation.Node,
	reports map[string]*millracev1beta1.LBNodeReport, now time.Time,
) (again time.Duration, err error) {
	lagging := sets.New(rotation.Lagging(state, nodes)...)
	if wait := state.Since.Add(lagReportDelay).Sub(now); wait > 0 && len(lagging) > 0 {
		again = wait
		for name := range lagging {
			if reports[name] == nil || KeyCurrent(reports[name].Status.Conditions) == nil {
				lagging.Delete(name)
			}
		}
	}
	message := r.lagMessage(state)
	var writes []func() error
	for name, report := range reports {
		var want *metav1.Condition
		if lagging.Has(name) {
			want = &metav1.Condition{
				Type: millracev1beta1.ConditionTunnelKeyCurrent, Status: metav1.ConditionFalse,
				Reason: millracev1beta1.ReasonKeyNotConfirmed, Message: message,
			}
		}
		if !sameKeyCurrent(KeyCurrent(report.Status.Conditions), want) {
			writes = append(writes, func() error { return r.updateCondition(ctx, report, want) })
		}
	}
	return again, allOf(writes)
}

func allOf(writes []func() error) error {
	var group errgroup.Group
	group.SetLimit(workers)
	failed := make([]error, len(writes))
	for i, write := range writes {
		group.Go(func() error {
			failed[i] = write()
			return nil
		})
	}
	return errors.Join(group.Wait(), errors.Join(failed...))
}

func (r *tunnelKeyReconciler) lagMessage(state *tunnelkey.State) string {
	newest := state.Newest().Generation
	until := state.Since.Add(r.settings.NodeTimeout).UTC().Format(time.RFC3339)
	switch {
	case !state.Required && state.Phase == tunnelkey.Publishing && state.Sending == 0:
		return fmt.Sprintf("the agent has not confirmed that it accepts key %d, so no node sends with it yet: check that the agent has the operator's version", newest)
	case !state.Required && state.Phase == tunnelkey.Steady:
		return fmt.Sprintf("the agent has not confirmed that it sends with key %d: packets without a tag are accepted until then", newest)
	case state.Phase == tunnelkey.Publishing:
		return fmt.Sprintf("the agent has not confirmed that it accepts key %d: the other nodes wait until %s, and then send with it", newest, until)
	case state.Phase == tunnelkey.Switching:
		return fmt.Sprintf("the agent has not confirmed that it sends with key %d: the other nodes wait until %s, and then drop its packets", newest, until)
	}
	return fmt.Sprintf("the agent has not confirmed that it sends with key %d: the other nodes drop its packets until then", newest)
}

func (r *tunnelKeyReconciler) updateCondition(
	ctx context.Context, cached *millracev1beta1.LBNodeReport, want *metav1.Condition,
) error {
	report := &millracev1beta1.LBNodeReport{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(cached), report); err != nil {
		return client.IgnoreNotFound(err)
	}
	base := report.DeepCopy()
	if want == nil {
		meta.RemoveStatusCondition(&report.Status.Conditions, millracev1beta1.ConditionTunnelKeyCurrent)
	} else {
		current := *want
		current.ObservedGeneration = report.Generation
		meta.SetStatusCondition(&report.Status.Conditions, current)
	}
	// The patch replaces all conditions, so the report must be current.
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, report, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of LBNodeReport %s: %w", report.Name, err))
	}
	return nil
}

func earlierDelay(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
