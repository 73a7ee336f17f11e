// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// conflicts returns the advertisements that yield, reading VIPs and Nodes only if there are several.
func (r *reconciler) conflicts(
	ctx context.Context,
	advertisements []millracev1beta1.VIPAdvertisement,
	peers []millracev1beta1.LBPeer,
) (map[string]desired.Conflict, error) {
	valid := parsed(advertisements, desired.ParseAdvertisement)
	slices.SortFunc(valid, func(a, b desired.Advertisement) int { return cmp.Compare(a.Name, b.Name) })
	if len(valid) < 2 {
		return nil, nil
	}
	validPeers := parsed(peers, desired.ParsePeer)
	slices.SortFunc(validPeers, func(a, b desired.Peer) int { return cmp.Compare(a.Name, b.Name) })
	nodes, vips := &corev1.NodeList{}, &millracev1beta1.VIPList{}
	for _, list := range []client.ObjectList{nodes, vips} {
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	nodeLabels := make([]labels.Set, 0, len(nodes.Items))
	for i := range nodes.Items {
		nodeLabels = append(nodeLabels, nodes.Items[i].Labels)
	}
	slices.SortFunc(vips.Items, func(a, b millracev1beta1.VIP) int { return cmp.Compare(a.Name, b.Name) })
	return desired.Conflicts(valid, validPeers, nodeLabels, r.advertised(ctx, vips.Items)), nil
}

func parsed[O, T any](objects []O, parse func(*O) (T, []desired.Problem)) []T {
	valid := make([]T, 0, len(objects))
	for i := range objects {
		if one, problems := parse(&objects[i]); len(problems) == 0 {
			valid = append(valid, one)
		}
	}
	return valid
}

func (r *reconciler) advertised(ctx context.Context, vips []millracev1beta1.VIP) iter.Seq[desired.AdvertisedVIP] {
	return func(yield func(desired.AdvertisedVIP) bool) {
		for i := range vips {
			address, err := netip.ParseAddr(vips[i].Spec.Address)
			if err != nil {
				continue
			}
			vip := desired.AdvertisedVIP{Address: address, Pool: vips[i].Spec.Pool}
			for _, claim := range vips[i].Spec.Claims {
				service := &corev1.Service{}
				key := client.ObjectKey{Namespace: claim.Namespace, Name: claim.Name}
				if err := r.client.Get(ctx, key, service, client.UnsafeDisableDeepCopy); err == nil && string(service.UID) == claim.UID {
					vip.Services = append(vip.Services, service.Labels)
				}
			}
			if len(vip.Services) > 0 && !yield(vip) {
				return
			}
		}
	}
}

func conflictingCondition(generation int64, conflicts map[string]desired.Conflict, name string) metav1.Condition {
	condition := metav1.Condition{
		Type:               millracev1beta1.ConditionConflicted,
		Status:             metav1.ConditionFalse,
		Reason:             millracev1beta1.ReasonNoConflicts,
		ObservedGeneration: generation,
	}
	if conflict, found := conflicts[name]; found {
		condition.Status = metav1.ConditionTrue
		condition.Reason = millracev1beta1.ReasonAttributeConflict
		condition.Message = conflict.Message()
	}
	return condition
}
