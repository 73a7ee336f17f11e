// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// maxPlans bounds how often a plan is remade before the Service is requeued with back-off.
const maxPlans = 5

// failedWritePause is the retry delay of Services refused because of a pending write that failed.
const failedWritePause = time.Second

// serviceReconciler assigns and releases the addresses of Services. Several workers run it under a
// workerLock.
type serviceReconciler struct {
	lock      workerLock
	client    client.Client
	live      client.Reader
	recorder  events.EventRecorder
	class     string
	isDefault bool
	// releaseDelay is how long a released VIP is still announced; now is its clock.
	releaseDelay time.Duration
	now          func() time.Time

	vips    *vipCache
	waiting *waitingServices
	// serving is true while Services that have waited longer are reconciled. later requeues a Service after
	// a pause or, for 0, with back-off.
	serving      bool
	later        func(service types.NamespacedName, pause time.Duration)
	zones        *zoneTracker
	overCapacity *capacityTracker
	duplicates   *duplicateTracker
	announcers   *announcers
	// announcements are for the controller of VIPs.
	announcements *announcements
	links         *linkTracker
	parser        convert.Parser
	written       writtenVersions
	had           heldAddresses
	// failedWrites holds addresses whose write failed; they are assigned again if they are still free.
	failedWrites map[types.NamespacedName][]netip.Addr
	conflicts    statusConflicts
	pools        *poolIndex
}

func setupServices(mgr ctrl.Manager, options Options, announcements *announcements) error {
	r := &serviceReconciler{
		class:        options.LoadBalancerClass,
		isDefault:    options.DefaultLoadBalancer,
		parser:       options.Parser,
		now:          time.Now,
		vips:         newVIPCache(),
		overCapacity: newCapacityTracker(),
		written:      writtenVersions{},
		had:          heldAddresses{},
		failedWrites: map[types.NamespacedName][]netip.Addr{},
		conflicts:    statusConflicts{},
		pools:        newPoolIndex(),

		announcements: announcements,

		releaseDelay: options.ReleaseDelay,
	}
	r.connect(mgr.GetClient(), control.NewRecorder(mgr))
	r.waiting = newWaitingServices(r.vips)
	r.zones, r.announcers, r.links = newZoneTracker(r.vips), newAnnouncers(r.vips), newLinkTracker(r.vips)
	r.duplicates = newDuplicateTracker(func(q queue, addresses []netip.Addr) { enqueueClaimants(q, r.vips, addresses) })
	vips := source.Kind(mgr.GetCache(), &millracev1beta1.VIP{}, vipEvents{vips: r.vips, waiting: r.waiting, pools: r.pools})
	controller := control.New(mgr, "service", serviceWorkers).
		Watches(&corev1.Service{}, serviceEvents(r.vips, r.addWaiting)).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			r.later = func(service types.NamespacedName, pause time.Duration) {
				request := ctrl.Request{NamespacedName: service}
				if pause > 0 {
					q.AddAfter(request, pause)
				} else {
					q.AddRateLimited(request)
				}
			}
			return nil
		})).
		// The VIP cache must have all VIPs before the first address is assigned.
		WatchesRawSource(vips).
		WatchesRawSource(source.Kind(mgr.GetCache(), &millracev1beta1.LBNode{}, updates(r.zones.update))).
		WatchesRawSource(source.Kind(mgr.GetCache(), &millracev1beta1.LBNode{}, updates(r.links.update))).
		WatchesRawSource(source.Kind(mgr.GetCache(), &millracev1beta1.LBNodeReport{}, updates(r.overCapacity.update))).
		WatchesRawSource(source.Kind(mgr.GetCache(), &millracev1beta1.LBNodeReport{}, updates(r.duplicates.update))).
		Watches(&millracev1beta1.LBNodeReport{}, r.announcers.ofReports()).
		Watches(&corev1.Node{}, r.announcers.ofNodes()).
		Watches(&millracev1beta1.LBPeer{}, r.announcers.ofPeers(), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&millracev1beta1.VIPAdvertisement{}, advertised(r.vips), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&millracev1beta1.VIPPool{}, poolEvents(), builder.WithPredicates(poolChanges())).
		WatchesMetadata(&corev1.Namespace{}, namespaceEvents(r.waiting), builder.WithPredicates(predicate.LabelChangedPredicate{}))
	if err := r.pools.watch(mgr, controller, func(q queue, hosts []netip.Addr) {
		enqueueAllPools(q)
		enqueueClaimants(q, r.vips, hosts)
	}); err != nil {
		return err
	}
	return controller.Complete(r)
}

// connect wraps the clients so that other workers run during calls to the API server.
func (r *serviceReconciler) connect(objects client.Client, events control.Recorder) {
	events.Live = unlockingReader{events.Live, &r.lock}
	r.client, r.live, r.recorder = unlockingWriter{objects, &r.lock}, events.Live, events
}

func (r *serviceReconciler) Reconcile(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	if request == publishAnnouncersRequest {
		return ctrl.Result{RequeueAfter: r.announcers.publishDue()}, nil
	}
	before := r.waiting.present()
	defer func() {
		r.waiting.recordReconcile(request.NamespacedName, before)
		r.requeueWaiting()
	}()
	err = r.lock.run(request.NamespacedName, func() error {
		if request == allPoolsRequest {
			_, err := r.poolView(ctx)
			return err
		}
		defer r.requeueJoining()
		r.waiting.stopJoining(request.NamespacedName)
		result.RequeueAfter, err = r.reconcile(ctx, request)
		return err
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	return result, nil
}

// reconcile returns the delay after which the Service is to be reconciled again, or 0.
func (r *serviceReconciler) reconcile(ctx context.Context, request ctrl.Request) (again time.Duration, err error) {
	again, err = r.sync(ctx, request)
	if errors.Is(err, errServiceChanged) || errors.Is(err, errJoining) {
		return 0, nil
	}
	return again, err
}

func (r *serviceReconciler) sync(ctx context.Context, request ctrl.Request) (again time.Duration, err error) {
	service := &corev1.Service{}
	err = r.client.Get(ctx, request.NamespacedName, service)
	switch {
	case apierrors.IsNotFound(err):
		r.waiting.end(request.NamespacedName)
		delete(r.written, request.NamespacedName)
		delete(r.had, request.NamespacedName)
		delete(r.conflicts, request.NamespacedName)
		delete(r.failedWrites, request.NamespacedName)
		return 0, r.resolveStaleClaims(ctx, request.NamespacedName, nil)
	case err != nil:
		return 0, fmt.Errorf("read Service %s: %w", request, err)
	case r.written.outdated(service):
		return 0, nil
	}
	if err := r.resolveStaleClaims(ctx, request.NamespacedName, service); err != nil {
		return 0, err
	}
	if !r.serves(service) {
		r.waiting.end(request.NamespacedName)
		if isOfAnotherOperator(service) {
			return 0, nil
		}
		return r.releaseAll(ctx, service)
	}
	return r.assign(ctx, service)
}

func (r *serviceReconciler) serves(service *corev1.Service) bool {
	return desired.Class{Name: r.class, IsDefault: r.isDefault}.Serves(service)
}

// isOfAnotherOperator reports whether a Service of another class has its address from an operator for that
// class, which releases it only when the Service is deleted or leaves that class.
func isOfAnotherOperator(service *corev1.Service) bool {
	return service.DeletionTimestamp == nil && desired.HasClassOfAddress(service)
}

// assign remakes the plan until it could be written and returns the delay until the next step, or 0.
func (r *serviceReconciler) assign(ctx context.Context, service *corev1.Service) (again time.Duration, err error) {
	// The Service waits from here on, so that pools and VIPs that change during the pass requeue it.
	key := client.ObjectKeyFromObject(service)
	r.waiting.begin(service, r.now())
	if err := r.refreshUnclaimed(ctx, service); err != nil {
		return 0, err
	}
	pools, err := r.poolView(ctx)
	if err != nil {
		return 0, err
	}
	views := r.waiting.present().views
	namespace, err := r.namespaceLabels(ctx, service.Namespace)
	if err != nil {
		return 0, err
	}
	request, parseError := r.parser.Request(service, namespace, pools.usable)
	request.Hints = append(request.Hints, r.failedWrites[key]...)
	var result serviceResult
	var objects map[netip.Addr]*millracev1beta1.VIP
	var planned stateVersion
	makePlan := func() (plan ipam.Plan) {
		planned = r.waiting.plan(key, views)
		plan, objects = r.vips.plan(pools.planned, request)
		result = r.resultOf(service, plan, parseError)
		return result.plan
	}
	for range maxPlans {
		plan, err := r.serveAhead(ctx, key, makePlan)
		if err != nil {
			return 0, err
		}
		// Not earlier: until now, younger Services left this one the addresses that it may get.
		r.waiting.recordPlan(key, planned)
		r.waiting.recordUnmet(key, unmetRequestOf(service, &request, &result))
		carriedOut, err := r.writePlan(ctx, service, plan, objects)
		if err != nil {
			return 0, err
		}
		if !carriedOut {
			continue
		}
		r.emitNotes(service, plan)
		r.had.record(key, service.UID, plan.Addresses...)
		if !plan.Waiting {
			r.waiting.end(key)
		}
		// Addresses that the status may still list are not released.
		if pause := r.conflicts.of(service).Observe(ownStatusOf(service), r.now()); pause > 0 {
			return pause, r.ensureFinalizers(ctx, service, plan)
		}
		if err := r.report(ctx, service, result); err != nil {
			return 0, err
		}
		if !plan.Waiting {
			if err := r.releaseStale(ctx, service); err != nil {
				return 0, err
			}
		}
		again, err := r.releaseSurplus(ctx, service, plan.Release)
		return earlierDelay(again, r.conflicts.of(service).Left(r.now())), err
	}
	return 0, fmt.Errorf("assign addresses to Service %s: other Services took them %d times in a row", key, maxPlans)
}

// resultOf returns the result for a Service if the plan is written. If all status entries are another load
// balancer's, the Service is left alone, because a second address would move clients away.
func (r *serviceReconciler) resultOf(service *corev1.Service, plan ipam.Plan, parseError error) serviceResult {
	key := client.ObjectKeyFromObject(service)
	for _, vip := range r.heldBy(service) {
		if address, ok := addressOf(vip); ok {
			r.had.record(key, service.UID, address)
		}
	}
	foreign := func(given ...netip.Addr) []corev1.LoadBalancerIngress {
		return foreignIngress(service, func(address netip.Addr) bool {
			return slices.Contains(given, address) || r.had.has(key, service.UID, address)
		})
	}
	result := serviceResult{plan: plan, parseError: parseError, foreign: foreign(plan.Addresses...)}
	if len(result.foreign) > 0 && !r.had.hasAny(key, service.UID) {
		result.plan, result.foreign, result.isForeign = ipam.Plan{Waiting: true}, foreign(), true
	}
	return result
}

func (r *serviceReconciler) poolView(ctx context.Context) (poolView, error) {
	list := &millracev1beta1.VIPPoolList{}
	if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return poolView{}, fmt.Errorf("list VIPPools: %w", err)
	}
	view := r.pools.pools(list.Items)
	// The events of these pools may not have been handled yet.
	r.waiting.viewPools(view)
	return view, nil
}

func (r *serviceReconciler) namespaceLabels(ctx context.Context, name string) (labels.Set, error) {
	namespace := control.NamespaceMetadata()
	err := r.client.Get(ctx, types.NamespacedName{Name: name}, namespace)
	if apierrors.IsNotFound(err) {
		// The Namespace is new, and its event follows, or it was deleted together with the Service.
		return nil, errServiceChanged
	}
	if err != nil {
		return nil, fmt.Errorf("read Namespace %s: %w", name, err)
	}
	return namespace.Labels, nil
}
