// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/nodeid"
)

type lbNodeReconciler struct {
	client   client.Client
	recorder events.EventRecorder
	ids      *idStore
}

// indexID is the index of LBNodes by spec.id, without which the start of a cluster is quadratic.
const indexID = "spec.id"

func byID(object client.Object) []string {
	node, ok := object.(*millracev1beta1.LBNode)
	if !ok {
		return nil
	}
	return []string{strconv.Itoa(int(node.Spec.ID))}
}

func setupLBNodes(ctx context.Context, mgr ctrl.Manager, namespace string) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &millracev1beta1.LBNode{}, indexID, byID); err != nil {
		return fmt.Errorf("index LBNodes by ID: %w", err)
	}
	r := &lbNodeReconciler{
		client:   mgr.GetClient(),
		recorder: control.NewRecorder(mgr),
		ids:      &idStore{client: mgr.GetClient(), live: mgr.GetAPIReader(), namespace: namespace, given: map[string]int32{}},
	}
	return control.New(mgr, "lbnode", workers).
		Watches(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(nodeChanged())).
		Watches(&millracev1beta1.LBNode{}, handler.EnqueueRequestsFromMapFunc(r.sharingID),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// nodeChanged drops updates that do not change the LBNode, such as heartbeats.
func nodeChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*corev1.Node)
		after, ok2 := e.ObjectNew.(*corev1.Node)
		return ok1 && ok2 && (before.UID != after.UID ||
			desired.NodeZone(before) != desired.NodeZone(after) ||
			desired.NodeDrainReason(before) != desired.NodeDrainReason(after) ||
			!slices.Equal(desired.NodePodCIDRs(before), desired.NodePodCIDRs(after)) ||
			!slices.Equal(desired.NodeAddresses(before), desired.NodeAddresses(after)))
	}}
}

func (r *lbNodeReconciler) sharingID(ctx context.Context, object client.Object) []ctrl.Request {
	requests := []ctrl.Request{{NamespacedName: client.ObjectKeyFromObject(object)}}
	node, ok := object.(*millracev1beta1.LBNode)
	if !ok {
		return requests
	}
	others, err := r.withID(ctx, node)
	if err != nil {
		return requests
	}
	for i := range others {
		requests = append(requests, ctrl.Request{NamespacedName: types.NamespacedName{Name: others[i].Name}})
	}
	return requests
}

// withID returns other LBNodes with the same ID from the cache, which callers must not change.
func (r *lbNodeReconciler) withID(ctx context.Context, node *millracev1beta1.LBNode) ([]millracev1beta1.LBNode, error) {
	list := &millracev1beta1.LBNodeList{}
	if err := r.client.List(ctx, list, client.MatchingFields{indexID: byID(node)[0]}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list LBNodes with ID %d: %w", node.Spec.ID, err)
	}
	return slices.DeleteFunc(list.Items, func(other millracev1beta1.LBNode) bool { return other.Name == node.Name }), nil
}

// Reconcile creates or updates an LBNode, which the garbage collector deletes after the Node.
func (r *lbNodeReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.client.Get(ctx, request.NamespacedName, node); apierrors.IsNotFound(err) {
		r.ids.markCached(request.Name)
		return ctrl.Result{}, r.ids.note(ctx)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	existing := &millracev1beta1.LBNode{}
	if err := r.client.Get(ctx, request.NamespacedName, existing); apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.create(ctx, node)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	r.ids.markCached(node.Name)
	others, err := r.withID(ctx, existing)
	if err != nil {
		return ctrl.Result{}, err
	}
	// Two operators assigned the ID at the same time.
	if slices.ContainsFunc(others, func(other millracev1beta1.LBNode) bool { return desired.Older(&other, existing) }) {
		return ctrl.Result{}, r.remove(ctx, existing)
	}
	return ctrl.Result{}, r.update(ctx, node, existing)
}

func (r *lbNodeReconciler) create(ctx context.Context, node *corev1.Node) error {
	id, ok, err := r.ids.allocate(ctx, node.Name)
	if err != nil {
		return fmt.Errorf("create LBNode %s: %w", node.Name, err)
	}
	if !ok {
		r.recorder.Eventf(node, nil, corev1.EventTypeWarning, millracev1beta1.ReasonNoNodeID, actionNumber,
			"all %d node IDs are in use: delete LBNodes of removed nodes", nodeid.Max)
		return fmt.Errorf("create LBNode %s: all %d node IDs are in use", node.Name, nodeid.Max)
	}
	lbNode := &millracev1beta1.LBNode{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{ownerReference(node)}},
		Spec: millracev1beta1.LBNodeSpec{
			ID: id, Addresses: desired.NodeAddresses(node), PodCIDRs: desired.NodePodCIDRs(node), Zone: desired.NodeZone(node),
			DrainReason: desired.NodeDrainReason(node),
		},
	}
	if err := r.client.Create(ctx, lbNode); err != nil {
		if apierrors.IsAlreadyExists(err) {
			// The cache lags behind; the LBNode's own event follows.
			return nil
		}
		return fmt.Errorf("create LBNode %s: %w", node.Name, err)
	}
	return nil
}

func ownerReference(node *corev1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

func (r *lbNodeReconciler) update(ctx context.Context, node *corev1.Node, lbNode *millracev1beta1.LBNode) error {
	base := lbNode.DeepCopy()
	lbNode.Spec.Addresses, lbNode.Spec.Zone = desired.NodeAddresses(node), desired.NodeZone(node)
	lbNode.Spec.PodCIDRs, lbNode.Spec.DrainReason = desired.NodePodCIDRs(node), desired.NodeDrainReason(node)
	lbNode.OwnerReferences = []metav1.OwnerReference{ownerReference(node)}
	if equality.Semantic.DeepEqual(base, lbNode) {
		return nil
	}
	if err := r.client.Patch(ctx, lbNode, control.SameObject{Patch: client.MergeFrom(base), UID: base.UID}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("update LBNode %s: %w", lbNode.Name, err))
	}
	return nil
}

// remove deletes an LBNode, so that it is created again with a new ID.
func (r *lbNodeReconciler) remove(ctx context.Context, lbNode *millracev1beta1.LBNode) error {
	err := r.client.Delete(ctx, lbNode, client.Preconditions{UID: &lbNode.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete LBNode %s, whose ID %d an older LBNode has: %w", lbNode.Name, lbNode.Spec.ID, err)
	}
	return nil
}
