// SPDX-License-Identifier: Apache-2.0

// Package write is what the leader does: it makes the objects that run the proxies, and
// says in the status and in events what became of what people asked for.
package write

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route"
)

// Pauses between passes: the first gathers what changes together, the others follow a failure.
const (
	gather       = 50 * time.Millisecond
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// Compiled is what was compiled last.
type Compiled struct {
	Objects *route.Objects
	Result  *route.Result
	// Owners are those of the proxies, in the same order.
	Owners []infrastructure.Owner
}

// Writer writes what was compiled.
type Writer struct {
	// Client reads from the cache, Live past it.
	Client client.Client
	Live   client.Reader
	// Compiled returns what was compiled last, nil before the first time.
	Compiled func() *Compiled
	// Settings returns those of all proxies; ready is false while something is missing that
	// will come by itself.
	Settings func(context.Context) (settings infrastructure.Settings, ready bool, err error)
	// Controller is the name under which entries of status are ours.
	Controller gatewayv1.GatewayController
	Recorder   events.EventRecorder
	Log        logr.Logger

	wake chan struct{}
	told told
}

// Prepare makes the zero value ready.
func (w *Writer) Prepare() { w.wake = make(chan struct{}, 1) }

// Touch makes the leader look again.
func (w *Writer) Touch() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// NeedLeaderElection says that only the leader writes.
func (w *Writer) NeedLeaderElection() bool { return true }

// Start writes until the context ends.
func (w *Writer) Start(ctx context.Context) error {
	w.Touch()
	pause := firstPause
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		wait(ctx, gather)
		err := w.pass(ctx)
		if err == nil || ctx.Err() != nil {
			pause = firstPause
			continue
		}
		w.Log.Error(err, "writing, trying again", "in", pause.String())
		wait(ctx, pause)
		pause = min(2*pause, longestPause)
		w.Touch()
	}
}

func wait(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// pass makes everything what it should be. What fails holds up nothing else.
func (w *Writer) pass(ctx context.Context) error {
	compiled := w.Compiled()
	if compiled == nil {
		return nil
	}
	live, err := w.ours(ctx)
	if err != nil {
		return err
	}
	var problems []error
	wanted, err := w.applyAll(ctx, compiled, live)
	problems = append(problems, err, w.writeStatuses(ctx, compiled, live))
	if wanted != nil {
		problems = append(problems, w.removeOrphans(ctx, wanted, live))
	}
	w.tell(compiled)
	return errors.Join(problems...)
}

// place is one object.
type place struct {
	kind string
	types.NamespacedName
}

func placeOf(object client.Object) place {
	return place{kind: fmt.Sprintf("%T", object), NamespacedName: client.ObjectKeyFromObject(object)}
}

// ours are all objects of proxies that there are, as the cache has them.
func (w *Writer) ours(ctx context.Context) (map[place]client.Object, error) {
	found := map[place]client.Object{}
	for _, list := range lists() {
		if err := w.Client.List(ctx, list, client.MatchingLabels(infrastructure.Selector())); err != nil {
			return nil, fmt.Errorf("list the objects of proxies: %w", err)
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			if typed, ok := object.(client.Object); ok {
				found[placeOf(typed)] = typed
			}
		}
	}
	return found, nil
}

// Kinds are those of the objects that run proxies.
func Kinds() []client.Object {
	return []client.Object{
		&corev1.ServiceAccount{}, &corev1.ConfigMap{}, &corev1.Service{}, &appsv1.Deployment{},
		&policyv1.PodDisruptionBudget{}, &autoscalingv2.HorizontalPodAutoscaler{},
	}
}

func lists() []client.ObjectList {
	return []client.ObjectList{
		&corev1.ServiceAccountList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &appsv1.DeploymentList{},
		&policyv1.PodDisruptionBudgetList{}, &autoscalingv2.HorizontalPodAutoscalerList{},
	}
}

// applyAll makes the objects of all owners, and returns those that are wanted; nil where
// that is not known yet.
func (w *Writer) applyAll(ctx context.Context, compiled *Compiled, live map[place]client.Object) (map[place]bool, error) {
	settings, ready, err := w.Settings(ctx)
	if err != nil || !ready {
		return nil, err
	}
	wanted := map[place]bool{}
	var problems []error
	for i, proxy := range compiled.Result.Proxies {
		for _, object := range infrastructure.Objects(proxy, compiled.Owners[i], settings) {
			at := placeOf(object)
			wanted[at] = true
			problems = append(problems, w.apply(ctx, object, live[at]))
		}
	}
	return wanted, errors.Join(problems...)
}

// removeOrphans deletes what was made for owners that are gone. The label alone does not make
// an object ours: somebody may have copied it.
func (w *Writer) removeOrphans(ctx context.Context, wanted map[place]bool, live map[place]client.Object) error {
	var problems []error
	for at, object := range live {
		isOurs := object.GetAnnotations()[annotationApplied] != "" && object.GetAnnotations()[infrastructure.AnnotationOwner] != ""
		if wanted[at] || !isOurs || !object.GetDeletionTimestamp().IsZero() {
			continue
		}
		uid := object.GetUID()
		err := w.Client.Delete(ctx, object, client.Preconditions{UID: &uid}, client.PropagationPolicy("Background"))
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			problems = append(problems, fmt.Errorf("delete %s %s: %w", at.kind, at.NamespacedName, err))
		}
	}
	return errors.Join(problems...)
}
