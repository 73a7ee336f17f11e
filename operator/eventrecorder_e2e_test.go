// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// A eventRecorder records all versions of VIPs and Services by resource version. The history is exact: it
// misses no transient error and reports none because of two lists at different times.
type eventRecorder struct {
	client client.WithWatch

	mu       sync.Mutex
	changes  []recordedEvent
	versions map[string]string
	ended    error
}

// recordedEvent is a version of a VIP or a Service, nil after a deletion.
type recordedEvent struct {
	revision uint64
	name     string
	vip      *millracev1beta1.VIP
	service  *corev1.Service
}

func newEventRecorder(t *testing.T, e *environment) *eventRecorder {
	t.Helper()
	watcher, err := client.NewWithWatch(e.server.Admin(), client.Options{Scheme: e.client.Scheme()})
	must(t, err)
	w := &eventRecorder{client: watcher, versions: map[string]string{}}
	ctx := t.Context()
	for _, list := range []client.ObjectList{&millracev1beta1.VIPList{}, &corev1.ServiceList{}} {
		must(t, watcher.List(ctx, list, client.InNamespace(namespace)))
		// A watch that the API server closes is resumed.
		events, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), &cache.ListWatch{
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return watcher.Watch(ctx, list, &client.ListOptions{Raw: &options, Namespace: namespace})
			},
		})
		must(t, err)
		var done sync.WaitGroup
		done.Go(func() {
			for event := range events.ResultChan() {
				w.note(event)
			}
			if ctx.Err() == nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.ended = fmt.Errorf("the watch of %T was closed during the test", list)
			}
		})
		t.Cleanup(func() {
			events.Stop()
			done.Wait()
		})
	}
	return w
}

func (w *eventRecorder) note(event watch.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	object, ok := event.Object.(client.Object)
	if !ok || event.Type != watch.Added && event.Type != watch.Modified && event.Type != watch.Deleted {
		w.ended = fmt.Errorf("a watch returned %s: %+v", event.Type, event.Object)
		return
	}
	revision, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		w.ended = fmt.Errorf("parse the version of %T %s: %w", object, object.GetName(), err)
		return
	}
	change := recordedEvent{revision: revision, name: eventName(object)}
	w.versions[change.name] = object.GetResourceVersion()
	switch object := object.(type) {
	case *millracev1beta1.VIP:
		change.vip = object
	case *corev1.Service:
		change.service = object
	}
	if event.Type == watch.Deleted {
		change.vip, change.service = nil, nil
		delete(w.versions, change.name)
	}
	w.changes = append(w.changes, change)
}

func eventName(object client.Object) string {
	return fmt.Sprintf("%T %s/%s", object, object.GetNamespace(), object.GetName())
}

// hasAll returns an error until the recorder has all current versions.
func (w *eventRecorder) hasAll(ctx context.Context) error {
	services, vips := &corev1.ServiceList{}, &millracev1beta1.VIPList{}
	if err := errors.Join(w.client.List(ctx, services, client.InNamespace(namespace)), w.client.List(ctx, vips)); err != nil {
		return err
	}
	present := map[string]string{}
	for i := range services.Items {
		present[eventName(&services.Items[i])] = services.Items[i].ResourceVersion
	}
	for i := range vips.Items {
		present[eventName(&vips.Items[i])] = vips.Items[i].ResourceVersion
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended == nil && !maps.Equal(present, w.versions) {
		return fmt.Errorf("%d objects exist, but the watch recorded other versions of %d", len(present), len(w.versions))
	}
	return w.ended
}

// testify fails the test if, at any revision, two claims had one port, Services without a common key shared
// an address, or a status had an unclaimed address.
func (w *eventRecorder) testify(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	must(t, w.ended)
	slices.SortStableFunc(w.changes, func(a, b recordedEvent) int { return cmp.Compare(a.revision, b.revision) })
	replay := newReplay()
	wrong := 0
	for _, change := range w.changes {
		for _, err := range replay.apply(change) {
			if wrong++; wrong <= 20 {
				t.Errorf("at revision %d: %v", change.revision, err)
			}
		}
	}
	t.Logf("%d versions of VIPs and Services, %d invalid", len(w.changes), wrong)
	if len(w.changes) == 0 {
		t.Error("the watch recorded no changes")
	}
}

type replay struct {
	vips     map[string]*millracev1beta1.VIP
	services map[string]*corev1.Service
	reported map[string]map[string]bool
}

func newReplay() *replay {
	return &replay{vips: map[string]*millracev1beta1.VIP{}, services: map[string]*corev1.Service{}, reported: map[string]map[string]bool{}}
}

func (r *replay) apply(change recordedEvent) (errs []error) {
	addresses := map[string]bool{}
	if before := r.vips[change.name]; before != nil {
		addresses[before.Spec.Address] = true
	}
	r.forget(change.name)
	switch {
	case change.vip != nil:
		r.vips[change.name] = change.vip
		addresses[change.vip.Spec.Address] = true
		errs = sharedWrongly(&change.vip.Spec)
	case change.service != nil:
		r.services[change.name] = change.service
		if change.service.DeletionTimestamp != nil {
			// The status of a deleted Service does not matter.
			break
		}
		for _, address := range ingress(change.service) {
			addresses[address] = true
			if r.reported[address] == nil {
				r.reported[address] = map[string]bool{}
			}
			r.reported[address][change.name] = true
		}
	}
	for _, address := range slices.Sorted(maps.Keys(addresses)) {
		errs = append(errs, r.unclaimed(address)...)
	}
	return errs
}

func (r *replay) forget(name string) {
	if service := r.services[name]; service != nil {
		for _, address := range ingress(service) {
			delete(r.reported[address], name)
		}
	}
	delete(r.services, name)
	delete(r.vips, name)
}

func (r *replay) unclaimed(address string) (errs []error) {
	var claims []millracev1beta1.VIPClaim
	if vip := r.vips[eventName(vipOf(address))]; vip != nil {
		claims = vip.Spec.Claims
	}
	for name := range r.reported[address] {
		service := r.services[name]
		if !slices.ContainsFunc(claims, func(claim millracev1beta1.VIPClaim) bool { return claim.UID == string(service.UID) }) {
			errs = append(errs, fmt.Errorf("%s is in the status of %s, but claimed by %+v", address, service.Name, claims))
		}
	}
	return errs
}

func sharedWrongly(spec *millracev1beta1.VIPSpec) (errs []error) {
	owned := map[millracev1beta1.ClaimedPort]string{}
	for _, claim := range spec.Claims {
		if len(spec.Claims) > 1 && (claim.SharingKey == "" || claim.SharingKey != spec.Claims[0].SharingKey) {
			errs = append(errs, fmt.Errorf("invalid claims of %s: %+v", spec.Address, spec.Claims))
		}
		for _, port := range claim.Ports {
			if owner, taken := owned[port]; taken {
				errs = append(errs, fmt.Errorf("%s %d/%s is owned by %s and %s", spec.Address, port.Port, port.Protocol, owner, claim.Name))
			}
			owned[port] = claim.Name
		}
	}
	return errs
}
