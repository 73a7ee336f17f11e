// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/rotation"
)

// tunnelKeyReconciler has access to no other Secret.
type tunnelKeyReconciler struct {
	client   client.Client
	live     client.Reader
	recorder events.EventRecorder
	settings rotation.Settings
	now      func() time.Time
	// invalid is the last reported error of an unreadable Secret.
	invalid string
	// seed is kept if the Secret is deleted.
	seed flowhash.Seed
}

// TunnelKeySecret returns the name of the only Secret that the operator watches.
func TunnelKeySecret() types.NamespacedName {
	return types.NamespacedName{Namespace: tunnelkey.Namespace, Name: tunnelkey.SecretName}
}

func setupTunnelKey(mgr ctrl.Manager, settings rotation.Settings) error {
	r := &tunnelKeyReconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), recorder: control.NewRecorder(mgr), settings: settings, now: time.Now,
	}
	return control.New(mgr, "tunnelkey", 1).
		Watches(&corev1.Secret{}, control.CoalescedHandler()).
		Watches(&millracev1beta1.LBNode{}, control.CoalescedHandler(), builder.WithPredicates(agentAppeared())).
		Watches(&millracev1beta1.LBNodeReport{}, control.CoalescedHandler(), builder.WithPredicates(keysChanged())).
		Watches(&corev1.Node{}, control.CoalescedHandler(), builder.WithPredicates(readinessChanged())).
		Complete(r)
}

// agentAppeared drops updates of an LBNode whose agent has run before.
func agentAppeared() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*millracev1beta1.LBNode)
		after, ok2 := e.ObjectNew.(*millracev1beta1.LBNode)
		return ok1 && ok2 && (before.UID != after.UID || (before.Status.BootID == "") != (after.Status.BootID == ""))
	}}
}

func keysChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*millracev1beta1.LBNodeReport)
		after, ok2 := e.ObjectNew.(*millracev1beta1.LBNodeReport)
		return ok1 && ok2 && (before.UID != after.UID || before.Status.Version != after.Status.Version ||
			!equality.Semantic.DeepEqual(before.Status.TunnelKeys, after.Status.TunnelKeys) ||
			!sameKeyCurrent(KeyCurrent(before.Status.Conditions), KeyCurrent(after.Status.Conditions)))
	}}
}

func (r *tunnelKeyReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	nodes, reports, err := r.nodes(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	secret := &corev1.Secret{}
	if err := r.client.Get(ctx, TunnelKeySecret(), secret); apierrors.IsNotFound(err) {
		return ctrl.Result{}, r.create(ctx, nodes)
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("read Secret %s: %w", TunnelKeySecret(), err)
	}
	state, err := tunnelkey.Parse(secret.Data)
	if err != nil {
		r.emitInvalid(ctx, secret, err)
		return ctrl.Result{}, nil
	}
	r.invalid, r.seed = "", state.Seed
	_, isRequested := secret.Annotations[tunnelkey.AnnotationRotate]
	now := r.now()
	step := rotation.Next(state, nodes, r.settings, isRequested, now)
	if !step.Next.Equal(state) {
		if err := r.update(ctx, secret, state, step); err != nil {
			return ctrl.Result{}, err
		}
	}
	again, err := r.reportLag(ctx, step.Next, nodes, reports, now)
	return ctrl.Result{RequeueAfter: earlierDelay(step.RequeueAfter, again)}, err
}

// nodes returns the nodes whose agents have run, and all reports by name.
func (r *tunnelKeyReconciler) nodes(
	ctx context.Context,
) ([]rotation.Node, map[string]*millracev1beta1.LBNodeReport, error) {
	lbNodes, reports, nodes := &millracev1beta1.LBNodeList{}, &millracev1beta1.LBNodeReportList{}, &corev1.NodeList{}
	for _, list := range []client.ObjectList{lbNodes, reports, nodes} {
		if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	byName, byNode := map[string]*millracev1beta1.LBNodeReport{}, map[string]*corev1.Node{}
	for i := range reports.Items {
		byName[reports.Items[i].Name] = &reports.Items[i]
	}
	for i := range nodes.Items {
		byNode[nodes.Items[i].Name] = &nodes.Items[i]
	}
	var known []rotation.Node
	for i := range lbNodes.Items {
		lbNode := &lbNodes.Items[i]
		node, report := byNode[lbNode.Name], byName[lbNode.Name]
		if node == nil || lbNode.Status.BootID == "" && (report == nil || report.Status.Version == "") {
			// The node was deleted, or no agent has run there.
			continue
		}
		known = append(known, rotationNode(node, report))
	}
	return known, byName, nil
}

func rotationNode(node *corev1.Node, report *millracev1beta1.LBNodeReport) rotation.Node {
	known := rotation.Node{Name: node.Name}
	if lost := NotReady(node); lost != nil {
		known.LostSince = lost.LastTransitionTime.Time
	}
	known.Served = report != nil && (report.Status.Version != "" || report.Status.TunnelKeys != nil)
	if report != nil && report.Status.TunnelKeys != nil {
		keys := report.Status.TunnelKeys
		known.Ring = tunnelkey.Ring{Sending: uint32(keys.Sending), Required: keys.Required}
		for _, generation := range keys.Accepted {
			known.Ring.Accepted = append(known.Ring.Accepted, uint32(generation))
		}
	}
	return known
}

func (r *tunnelKeyReconciler) create(ctx context.Context, nodes []rotation.Node) error {
	state := rotation.First(nodes, r.seed, r.now())
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: tunnelkey.Namespace, Name: tunnelkey.SecretName,
			Labels: map[string]string{"app.kubernetes.io/name": "millrace", "app.kubernetes.io/part-of": "millrace"},
		},
		Type: corev1.SecretTypeOpaque,
		Data: state.Data(),
	}
	if err := r.client.Create(ctx, secret); apierrors.IsAlreadyExists(err) {
		// The cache lags behind; the Secret's own event follows.
		return nil
	} else if err != nil {
		return fmt.Errorf("create Secret %s: %w", TunnelKeySecret(), err)
	}
	r.recorder.Eventf(secret, nil, corev1.EventTypeNormal, millracev1beta1.ReasonKeyGenerated, actionRotate,
		"generated key %d; waiting until all nodes accept it", state.Newest().Generation)
	return nil
}

// update stores a step. If two operators run, only one write succeeds.
func (r *tunnelKeyReconciler) update(ctx context.Context, cached *corev1.Secret, before *tunnelkey.State, step rotation.Step) error {
	secret := cached.DeepCopy()
	secret.Data = step.Next.Data()
	newest := step.Next.Newest().Generation
	if newest != before.Newest().Generation {
		delete(secret.Annotations, tunnelkey.AnnotationRotate)
	}
	if err := r.client.Update(ctx, secret); err != nil {
		return fmt.Errorf("write Secret %s: %w", TunnelKeySecret(), err)
	}
	log.FromContext(ctx).Info("The rotation of the tunnel's key advanced", "phase", step.Next.Phase, "key", newest,
		"sending", step.Next.Sending, "required", step.Next.Required, "left", step.Unconfirmed)
	switch {
	case len(step.Unconfirmed) > 0:
		r.recorder.Eventf(secret, nil, corev1.EventTypeWarning, millracev1beta1.ReasonKeyNotConfirmed, actionRotate,
			"key %d: phase %s began without %s", newest, step.Next.Phase, firstNames(step.Unconfirmed))
	case newest != before.Newest().Generation:
		r.recorder.Eventf(secret, nil, corev1.EventTypeNormal, millracev1beta1.ReasonKeyGenerated, actionRotate,
			"generated key %d; waiting until all nodes accept it", newest)
	case before.Phase != tunnelkey.Steady && step.Next.Phase == tunnelkey.Steady:
		r.recorder.Eventf(secret, nil, corev1.EventTypeNormal, millracev1beta1.ReasonKeyInUse, actionRotate,
			"all nodes send with key %d", newest)
	}
	return nil
}

func firstNames(names []string) string {
	if len(names) <= control.MaxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:control.MaxNamed], ", "), len(names)-control.MaxNamed)
}

// emitInvalid emits an event. The unreadable Secret stays: its intended content is unknown, and agents keep
// their keys.
func (r *tunnelKeyReconciler) emitInvalid(ctx context.Context, secret *corev1.Secret, err error) {
	if message := secret.ResourceVersion + err.Error(); message != r.invalid {
		r.invalid = message
		log.FromContext(ctx).Error(err, "The Secret with the tunnel's key cannot be read", "secret", TunnelKeySecret())
		r.recorder.Eventf(secret, nil, corev1.EventTypeWarning, millracev1beta1.ReasonKeyInvalid, actionRotate,
			"%v: nodes keep their current keys; delete the Secret to generate a new key", err)
	}
}

// KeyCurrent returns the condition TunnelKeyCurrent of a report, or nil.
func KeyCurrent(conditions []metav1.Condition) *metav1.Condition {
	i := slices.IndexFunc(conditions, func(c metav1.Condition) bool {
		return c.Type == millracev1beta1.ConditionTunnelKeyCurrent
	})
	if i < 0 {
		return nil
	}
	return &conditions[i]
}

func sameKeyCurrent(a, b *metav1.Condition) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Status == b.Status && a.Message == b.Message
}
