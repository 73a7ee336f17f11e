// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

// writeGatewayAPI writes statuses. failed contains errors of applying objects by owner.
func (w *Writer) writeGatewayAPI(ctx context.Context, compiled *Compiled, live map[objectKey]client.Object, failed map[string]error) error {
	statuses := &compiled.Result.Statuses
	at, contested, refused := gatewayStates(compiled, live, failed), w.conflicting, readRejections(compiled, live)
	return errors.Join(
		writeAll(ctx, w, statuses.GatewayClasses, func(o *gatewayv1.GatewayClass, wanted gatewayv1.GatewayClassStatus) {
			o.Status.Conditions = mergeConditions(o.Status.Conditions, wanted.Conditions)
			o.Status.SupportedFeatures = wanted.SupportedFeatures
		}),
		writeAll(ctx, w, statuses.Gateways, func(o *gatewayv1.Gateway, wanted gatewayv1.GatewayStatus) {
			if other, is := contested[objectOf(o)]; is && other.GetUID() == o.UID {
				wanted.Conditions = append(slices.Clone(wanted.Conditions), conflictCondition(o.Generation))
			}
			if condition := refused.ofGateway(o); condition != nil {
				wanted.Conditions = append(slices.Clone(wanted.Conditions), *condition)
			}
			mergeGateway(&o.Status, wanted, at[gatewayKey(o.Namespace, o.Name)])
		}),
		writeAll(ctx, w, statuses.ListenerSets, func(o *gatewayv1.ListenerSet, wanted gatewayv1.ListenerSetStatus) {
			parent := o.Spec.ParentRef
			namespace := o.Namespace
			if parent.Namespace != nil {
				namespace = string(*parent.Namespace)
			}
			mergeListenerSet(&o.Status, wanted, at[gatewayKey(namespace, string(parent.Name))])
		}),
		writeAll(ctx, w, statuses.HTTPRoutes, func(o *gatewayv1.HTTPRoute, s gatewayv1.RouteStatus) { w.mergeRoute(&o.Status.RouteStatus, s) }),
		writeAll(ctx, w, statuses.GRPCRoutes, func(o *gatewayv1.GRPCRoute, s gatewayv1.RouteStatus) { w.mergeRoute(&o.Status.RouteStatus, s) }),
		writeAll(ctx, w, statuses.TLSRoutes, func(o *gatewayv1.TLSRoute, s gatewayv1.RouteStatus) { w.mergeRoute(&o.Status.RouteStatus, s) }),
		writeAll(ctx, w, statuses.TCPRoutes, func(o *gatewayv1.TCPRoute, s gatewayv1.RouteStatus) { w.mergeRoute(&o.Status.RouteStatus, s) }),
		writeAll(ctx, w, statuses.UDPRoutes, func(o *gatewayv1.UDPRoute, s gatewayv1.RouteStatus) { w.mergeRoute(&o.Status.RouteStatus, s) }),
		writeAll(ctx, w, statuses.BackendTLSPolicies, func(o *gatewayv1.BackendTLSPolicy, s gatewayv1.PolicyStatus) { w.mergePolicy(&o.Status, s) }),
	)
}

// writeAll writes the statuses of one kind that differ from the cache.
func writeAll[O client.Object, S any](ctx context.Context, w *Writer, wanted []model.Status[S], merge func(O, S)) error {
	var all batch
	for i := range wanted {
		all.do(func() error { return writeOne(ctx, w, &wanted[i], merge) }, func(error) {})
	}
	return all.wait()
}

func writeOne[O client.Object, S any](ctx context.Context, w *Writer, status *model.Status[S], merge func(O, S)) error {
	object := newObject[O]()
	name := types.NamespacedName{Namespace: status.Namespace, Name: status.Name}
	err := w.Client.Get(ctx, name, object)
	if apierrors.IsNotFound(err) || err == nil && object.GetGeneration() != status.Generation {
		// The compilation is outdated; another one follows.
		return nil
	}
	if err != nil {
		return err
	}
	changed := object.DeepCopyObject().(O)
	merge(changed, status.Status)
	return w.putStatus(ctx, object, changed, func(present client.Object) bool {
		again, is := present.DeepCopyObject().(O)
		if is {
			merge(again, status.Status)
		}
		return is && equality.Semantic.DeepEqual(present, again)
	})
}

func newObject[O client.Object]() O {
	var none O
	return reflect.New(reflect.TypeOf(none).Elem()).Interface().(O)
}

// mergeConditions keeps unrelated conditions and the transition time of unchanged ones.
func mergeConditions(previous, wanted []metav1.Condition) []metav1.Condition {
	merged := slices.Clone(previous)
	for _, condition := range wanted {
		meta.SetStatusCondition(&merged, condition)
	}
	return merged
}

// mergeOwned merges wanted into previous and removes the gateway's other conditions.
func mergeOwned(previous, wanted []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(mergeConditions(previous, wanted), func(c metav1.Condition) bool {
		return model.OwnsCondition(c.Type) && meta.FindStatusCondition(wanted, c.Type) == nil
	})
}

func mergeGateway(status *gatewayv1.GatewayStatus, wanted gatewayv1.GatewayStatus, at gatewayState) {
	lacks := at.unmet()
	wanted.Conditions = setUnprogrammed(wanted.Conditions, lacks)
	listeners := make([]gatewayv1.ListenerStatus, 0, len(wanted.Listeners))
	for _, listener := range wanted.Listeners {
		var previous []metav1.Condition
		if i := slices.IndexFunc(status.Listeners, func(l gatewayv1.ListenerStatus) bool { return l.Name == listener.Name }); i >= 0 {
			previous = status.Listeners[i].Conditions
		}
		listener.Conditions = mergeOwned(previous, setUnprogrammed(listener.Conditions, lacks.ofListener(listener.SupportedKinds)))
		listeners = append(listeners, listener)
	}
	status.Conditions = mergeOwned(status.Conditions, wanted.Conditions)
	status.Listeners = listeners
	status.AttachedListenerSets = wanted.AttachedListenerSets
	status.Addresses = at.addresses
}

// mergeListenerSet uses the addresses of the set's Gateway.
func mergeListenerSet(status *gatewayv1.ListenerSetStatus, wanted gatewayv1.ListenerSetStatus, at gatewayState) {
	lacks := at.unmet()
	wanted.Conditions = setUnprogrammed(wanted.Conditions, lacks.pending())
	listeners := make([]gatewayv1.ListenerEntryStatus, 0, len(wanted.Listeners))
	for _, listener := range wanted.Listeners {
		var previous []metav1.Condition
		if i := slices.IndexFunc(status.Listeners, func(l gatewayv1.ListenerEntryStatus) bool { return l.Name == listener.Name }); i >= 0 {
			previous = status.Listeners[i].Conditions
		}
		listener.Conditions = mergeOwned(previous, setUnprogrammed(listener.Conditions, lacks.ofListener(listener.SupportedKinds)))
		listeners = append(listeners, listener)
	}
	status.Conditions = mergeOwned(status.Conditions, wanted.Conditions)
	status.Listeners = listeners
}

// mergeRoute replaces this controller's entries and keeps those of other controllers.
func (w *Writer) mergeRoute(status *gatewayv1.RouteStatus, wanted gatewayv1.RouteStatus) {
	var parents []gatewayv1.RouteParentStatus
	for _, parent := range status.Parents {
		if parent.ControllerName != w.Controller {
			parents = append(parents, parent)
		}
	}
	for _, parent := range wanted.Parents {
		i := slices.IndexFunc(status.Parents, func(p gatewayv1.RouteParentStatus) bool {
			return p.ControllerName == w.Controller && equality.Semantic.DeepEqual(p.ParentRef, parent.ParentRef)
		})
		if i >= 0 {
			parent.Conditions = mergeOwned(status.Parents[i].Conditions, parent.Conditions)
		} else {
			parent.Conditions = mergeOwned(nil, parent.Conditions)
		}
		parents = append(parents, parent)
	}
	if len(parents) == 0 && len(status.Parents) == 0 {
		return
	}
	// The field is required, so it must not be nil.
	status.Parents = append([]gatewayv1.RouteParentStatus{}, parents...)
}

// maxAncestors is the limit of Gateway API.
const maxAncestors = 16

func (w *Writer) mergePolicy(status *gatewayv1.PolicyStatus, wanted gatewayv1.PolicyStatus) {
	var ancestors []gatewayv1.PolicyAncestorStatus
	for _, ancestor := range status.Ancestors {
		if ancestor.ControllerName != w.Controller {
			ancestors = append(ancestors, ancestor)
		}
	}
	for _, ancestor := range wanted.Ancestors {
		if len(ancestors) == maxAncestors {
			break
		}
		i := slices.IndexFunc(status.Ancestors, func(a gatewayv1.PolicyAncestorStatus) bool {
			return a.ControllerName == w.Controller && equality.Semantic.DeepEqual(a.AncestorRef, ancestor.AncestorRef)
		})
		if i >= 0 {
			ancestor.Conditions = mergeOwned(status.Ancestors[i].Conditions, ancestor.Conditions)
		} else {
			ancestor.Conditions = mergeOwned(nil, ancestor.Conditions)
		}
		ancestors = append(ancestors, ancestor)
	}
	if len(ancestors) == 0 && len(status.Ancestors) == 0 {
		return
	}
	status.Ancestors = append([]gatewayv1.PolicyAncestorStatus{}, ancestors...)
}
