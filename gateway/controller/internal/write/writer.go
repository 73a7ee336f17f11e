// SPDX-License-Identifier: Apache-2.0

// Package write implements the leader's writes: it applies proxies' objects, patches statuses and emits
// events.
package write

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Pauses between passes: coalesceTime coalesces changes; the others bound the backoff after failures,
// which new changes skip.
const (
	coalesceTime = 50 * time.Millisecond
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// parallel is the maximum number of concurrent requests.
const parallel = 8

// Compiled is the result of a compilation.
type Compiled struct {
	Objects *model.Objects
	Result  *model.Result
	// Owners are the owners of Result.Proxies, in the same order.
	Owners []infrastructure.Owner
}

// Writer writes the compiled state to the API server.
type Writer struct {
	Client client.Client
	Live   client.Reader
	// Compiled returns the latest compilation, or nil before the first.
	Compiled func() *Compiled
	// Settings is not ready until the controller has an identity.
	Settings     func(context.Context) (settings infrastructure.Settings, ready bool, err error)
	HasEndpoints func(context.Context, model.ServicePort, corev1.Protocol) (bool, error)
	// Backends is infrastructure.Backends, read from the cache.
	Backends func(context.Context, model.ServicePort, corev1.Protocol) (name string, found []*discoveryv1.EndpointSlice, known bool, err error)
	// Controller identifies this controller's entries in statuses.
	Controller gatewayv1.GatewayController
	Recorder   events.EventRecorder
	Scheme     *runtime.Scheme
	Log        logr.Logger

	wake          chan struct{}
	reported      reported
	expiring      map[types.NamespacedName]bool
	eventLimits   eventLimits
	eventTimer    *time.Timer
	statusBudget  statusBudget
	conflicts     conflicts
	conflicting   map[model.Object]conflictingObject
	conflictTimer *time.Timer
	// isStale is set when a write of this pass conflicted because of a stale cache.
	isStale atomic.Bool
	// failed contains the last pass's persistent errors by owner.
	failed map[string]error
	// backendServices are the Services whose endpoints are required.
	backendServices atomic.Pointer[map[types.NamespacedName]bool]
	drainTimer      *time.Timer
}

// Prepare initializes the Writer.
func (w *Writer) Prepare() { w.wake = make(chan struct{}, 1) }

// Touch enqueues a pass.
func (w *Writer) Touch() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: only the leader writes.
func (w *Writer) NeedLeaderElection() bool { return true }

// Start runs passes until the context ends.
func (w *Writer) Start(ctx context.Context) error {
	w.Touch()
	pause, logged := firstPause, ""
	retry := time.AfterFunc(longestPause, w.Touch)
	retry.Stop()
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		wait(ctx, coalesceTime)
		err := w.pass(ctx)
		if err == nil || ctx.Err() != nil {
			pause, logged = firstPause, ""
			continue
		}
		if text := err.Error(); text != logged {
			w.Log.Error(err, "write failed, retrying", "in", pause.String())
			logged = text
		}
		retry.Reset(pause)
		pause = min(2*pause, longestPause)
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

// pass writes all differences. Failures are independent.
func (w *Writer) pass(ctx context.Context) error {
	compiled := w.Compiled()
	if compiled == nil {
		return nil
	}
	live, err := w.listApplied(ctx)
	if err != nil {
		return err
	}
	w.isStale.Store(false)
	w.statusBudget.begin()
	// Statuses first, because users wait for them.
	ingresses := w.writeIngresses(ctx, compiled, servicesOf(live))
	gateways := w.writeGatewayAPI(ctx, compiled, live, w.failed)
	applied, err := w.applyAll(ctx, compiled, live)
	problems := []error{ingresses, gateways, err}
	switch {
	case w.isStale.Load(), w.statusBudget.isMore():
		// A newer object or a deferred status requires another pass.
		w.Touch()
	case applied.wanted != nil && ingresses == nil:
		// A Service is deleted after all Ingress statuses are updated, because its addresses identify
		// them as ours.
		problems = append(problems, w.removeOrphans(ctx, compiled, applied.wanted, live))
	}
	if applied.wanted != nil && !maps.EqualFunc(w.failed, applied.failed, func(a, b error) bool { return a.Error() == b.Error() }) {
		w.failed = applied.failed
		w.Touch()
	}
	w.updateConflicts()
	conflicts, regarding := conflictProblems(w.conflicting)
	w.setExpiries(compiled.Result.Certificates)
	found := slices.Concat(readRejections(compiled, live).problems(), conflicts, failedProblems(compiled, w.failed))
	w.report(compiled, found, regarding)
	return errors.Join(problems...)
}

// isStaleConflict reports a conflict caused by a stale cache; the next pass retries it.
func (w *Writer) isStaleConflict(err error) bool {
	if apierrors.IsConflict(err) {
		w.isStale.Store(true)
		return true
	}
	return false
}

type objectKey struct {
	kind string
	types.NamespacedName
}

func objectKeyOf(object client.Object) objectKey {
	return objectKey{kind: fmt.Sprintf("%T", object), NamespacedName: client.ObjectKeyFromObject(object)}
}

func (w *Writer) listApplied(ctx context.Context) (map[objectKey]client.Object, error) {
	found := map[objectKey]client.Object{}
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
				found[objectKeyOf(typed)] = typed
			}
		}
	}
	return found, nil
}

// Kinds returns the applied kinds except EndpointSlices: most belong to others, and Follows covers ours.
func Kinds() []client.Object {
	return []client.Object{
		&millracev1beta1.VIPRoute{},
		&corev1.ServiceAccount{}, &corev1.ConfigMap{}, &corev1.Service{}, &appsv1.Deployment{},
		&policyv1.PodDisruptionBudget{}, &autoscalingv2.HorizontalPodAutoscaler{},
	}
}

func lists() []client.ObjectList {
	return []client.ObjectList{
		&millracev1beta1.VIPRouteList{},
		&corev1.ServiceAccountList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &appsv1.DeploymentList{},
		&policyv1.PodDisruptionBudgetList{}, &autoscalingv2.HorizontalPodAutoscalerList{},
		&discoveryv1.EndpointSliceList{},
	}
}

type applied struct {
	wanted map[objectKey]bool
	// failed contains persistent errors by owner.
	failed map[string]error
}

func (w *Writer) applyAll(ctx context.Context, compiled *Compiled, live map[objectKey]client.Object) (applied, error) {
	settings, ready, err := w.Settings(ctx)
	if err != nil || !ready {
		return applied{}, err
	}
	settings.Certificates = compiled.Result.Certificates
	frontends := map[model.Object][]*model.Frontend{}
	for _, frontend := range compiled.Result.Frontends {
		frontends[frontend.Gateway] = append(frontends[frontend.Gateway], frontend)
	}
	done := applied{wanted: map[objectKey]bool{}, failed: map[string]error{}}
	draining := drainSummary{services: map[types.NamespacedName]bool{}}
	backends := w.recordBackends(ctx, draining.services)
	var all batch
	for i, proxy := range compiled.Result.Proxies {
		objects := infrastructure.Objects(proxy, frontends[proxy.Owner], compiled.Owners[i], settings)
		if len(frontends[proxy.Owner]) > 0 {
			// Changes of the own Service's slices by others must be reverted.
			draining.services[compiled.Owners[i].ObjectKey(settings)] = true
		}
		endpointSlices, err := infrastructure.EndpointSlices(proxy, frontends[proxy.Owner], compiled.Owners[i], settings, backends)
		if err != nil {
			return applied{}, err
		}
		objects = append(objects, endpointSlices...)
		for _, object := range objects {
			at := objectKeyOf(object)
			done.wanted[at] = true
			if err := w.keepDraining(ctx, object, live[at], proxy.Parameters.DrainPeriod, &draining); err != nil {
				return applied{}, err
			}
		}
		all.do(func() error { return w.applyOwner(ctx, objects, live) }, func(err error) {
			if isPersistent(err) {
				done.failed[infrastructure.Key(proxy.Owner)] = err
			}
		})
	}
	w.watchDrains(draining)
	return done, all.wait()
}

func (w *Writer) applyOwner(ctx context.Context, objects []infrastructure.Object, live map[objectKey]client.Object) error {
	var problems []error
	for _, object := range objects {
		err := w.apply(ctx, object, live[objectKeyOf(object)])
		problems = append(problems, err)
		if isUnauthorized(err) {
			// The remaining objects need the same permission.
			break
		}
	}
	return errors.Join(problems...)
}

// isPersistent reports errors that persist until a user changes something.
func isPersistent(err error) bool {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(all.Unwrap(), isPersistent)
	}
	return errors.Is(err, errNameInUse) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err)
}

// failedProblems reports errors of Ingresses and IngressClasses, which have no conditions.
func failedProblems(compiled *Compiled, failed map[string]error) (problems []model.Problem) {
	for _, proxy := range compiled.Result.Proxies {
		err := failed[infrastructure.Key(proxy.Owner)]
		if err == nil || proxy.Owner.Kind == "Gateway" {
			continue
		}
		reason := model.ReasonForbidden
		if errors.Is(err, errNameInUse) {
			reason = model.ReasonConflict
		}
		problems = append(problems, model.Problem{Object: proxy.Owner, Reason: reason, Message: err.Error()})
	}
	return problems
}

func refused(compiled *Compiled) map[string]bool {
	found := map[string]bool{}
	for _, gateway := range compiled.Result.Statuses.Gateways {
		found[gatewayKey(gateway.Namespace, gateway.Name)] = true
	}
	for _, proxy := range compiled.Result.Proxies {
		delete(found, infrastructure.Key(proxy.Owner))
	}
	return found
}

// removeOrphans deletes objects of deleted owners, not by the label alone, which users may have copied. A
// Gateway no longer accepted keeps its objects, so that an error in its spec releases no VIP.
func (w *Writer) removeOrphans(ctx context.Context, compiled *Compiled, wanted map[objectKey]bool, live map[objectKey]client.Object) error {
	var problems []error
	kept := refused(compiled)
	for at, object := range live {
		owner := object.GetAnnotations()[infrastructure.AnnotationOwner]
		isOurs := object.GetAnnotations()[annotationApplied] != "" && owner != ""
		if wanted[at] || kept[owner] || !isOurs || !object.GetDeletionTimestamp().IsZero() {
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
