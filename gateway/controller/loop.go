// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/controller/internal/authentication"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/controller/internal/source"
	"github.com/millrace-lb/millrace/gateway/controller/internal/write"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route"
	"github.com/millrace-lb/millrace/gateway/route/endpoints"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

const (
	// coalesceTime coalesces changes, so that objects applied together take effect together.
	coalesceTime = 25 * time.Millisecond
	// minInterval is the minimum interval between two full compilations.
	minInterval = 100 * time.Millisecond
	retry       = time.Second
)

// configurations stores resources per owner; server.Server implements it.
type configurations interface {
	Advance(order uint64)
	Set(owner string, resources []*resource.Resource) bool
	Update(owner string, resources []*resource.Resource) bool
	Remove(owner string)
}

// loop compiles changed objects and publishes the result. It runs in one goroutine.
type loop struct {
	source    *source.Source
	served    configurations
	settings  model.Settings
	namespace string
	compiled  func()
	secrets   func(owner string) (values [][]byte, known bool, err error)
	// needsEndpoints reports whether the writer depends on the endpoints of a Service.
	needsEndpoints func(types.NamespacedName) bool
	log            logr.Logger

	compiler route.Compiler
	// boundary triggers a compilation when the validity period of a certificate begins or ends.
	boundary *time.Timer
	owners   map[string]bool
	// dependents maps each Service to the owners whose proxies need its endpoints.
	dependents map[types.NamespacedName][]servicePortKey
	cached     map[types.NamespacedName]map[int32]cachedEndpoints

	latest atomic.Pointer[write.Compiled]
	fleets atomic.Pointer[map[types.NamespacedName]authentication.Fleet]
}

type servicePortKey struct {
	owner string
	port  model.ServicePort
}

// cachedEndpoints is a cached resource and the Service that it was computed from.
type cachedEndpoints struct {
	service   *corev1.Service
	endpoints *resource.Resource
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica compiles.
func (l *loop) NeedLeaderElection() bool { return false }

// Latest returns the latest compilation, or nil before the first.
func (l *loop) Latest() *write.Compiled { return l.latest.Load() }

// Fleet returns the owner whose proxies run as the service account.
func (l *loop) Fleet(account types.NamespacedName) (authentication.Fleet, bool) {
	if fleets := l.fleets.Load(); fleets != nil {
		fleet, known := (*fleets)[account]
		return fleet, known
	}
	return authentication.Fleet{}, false
}

// Deployments returns the Deployment of each owner's proxies by owner key.
func (l *loop) Deployments() map[string]types.NamespacedName {
	found := map[string]types.NamespacedName{}
	if compiled := l.Latest(); compiled != nil {
		for _, owner := range compiled.Owners {
			found[infrastructure.Key(owner.Object)] = owner.ObjectKey(infrastructure.Settings{Namespace: l.namespace})
		}
	}
	return found
}

func (l *loop) Start(ctx context.Context) error {
	l.owners, l.cached = map[string]bool{}, map[types.NamespacedName]map[int32]cachedEndpoints{}
	var last time.Time
	again := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.source.Changes().Notify():
		}
		sleep(ctx, coalesceTime)
		change := l.source.Changes().Take()
		for _, service := range change.Services {
			delete(l.cached, service)
		}
		if change.Full || again {
			// Publish changed endpoints at once: frequent full compilations must not delay them.
			if early := minInterval - time.Since(last); early > 0 {
				if err := l.endpoints(ctx, change.Services); err != nil {
					l.log.Error(err, "update endpoints")
				}
				sleep(ctx, early)
			}
			last = time.Now()
			again = !l.runStep(ctx, l.compileAll)
			continue
		}
		again = !l.runStep(ctx, func(ctx context.Context) error { return l.endpoints(ctx, change.Services) })
	}
}

// runStep schedules a full compilation after a failure.
func (l *loop) runStep(ctx context.Context, step func(context.Context) error) bool {
	err := step(ctx)
	if err == nil || ctx.Err() != nil {
		return true
	}
	l.log.Error(err, "compile failed, retrying", "in", retry.String())
	time.AfterFunc(retry, l.source.Changes().RequestFull)
	return false
}

func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (l *loop) compileAll(ctx context.Context) error {
	l.served.Advance(l.source.Position())
	objects, ready := l.source.Objects()
	if !ready {
		return nil
	}
	settings := l.settings
	settings.Now = time.Now()
	result := l.compiler.Compile(objects, settings)
	l.scheduleBoundary(result.Certificates, settings.Now)
	compiled := &write.Compiled{Objects: objects, Result: result, Owners: ownersOf(result, objects)}
	fleets := l.fleetsOf(compiled)
	owned := make(map[string][]*resource.Resource, len(result.Proxies))
	wanting := map[types.NamespacedName][]servicePortKey{}
	var problems []error
	for _, proxy := range result.Proxies {
		owner := infrastructure.Key(proxy.Owner)
		endpoints := make([]*resource.Resource, 0, len(proxy.Backends))
		for _, port := range proxy.Backends {
			service := types.NamespacedName{Namespace: port.Namespace, Name: port.Name}
			wanting[service] = append(wanting[service], servicePortKey{owner, port})
			r, err := l.endpointsOf(ctx, port)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			endpoints = append(endpoints, r)
		}
		values, known, err := l.secrets(owner)
		if err != nil || !known {
			// Without the shared secrets each proxy would generate its own, which invalidates sessions.
			return err
		}
		if len(values) > 0 {
			endpoints = append(endpoints, sharedSecret(values))
		}
		owned[owner] = model.Merge(proxy.Resources, endpoints)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	// Stored before publishing, because a new proxy authenticates before its first request.
	l.fleets.Store(&fleets)
	l.dependents = wanting
	for service := range l.cached {
		if wanting[service] == nil {
			delete(l.cached, service)
		}
	}
	l.serve(owned)
	l.latest.Store(compiled)
	l.compiled()
	return nil
}

// scheduleBoundary schedules a compilation when a certificate becomes valid, expires soon, or expires.
func (l *loop) scheduleBoundary(certificates []model.Certificate, now time.Time) {
	if l.boundary != nil {
		l.boundary.Stop()
	}
	var next time.Time
	for _, each := range certificates {
		for _, boundary := range []time.Time{each.NotBefore, each.ExpiresSoonAt(), each.NotAfter} {
			if boundary.After(now) && (next.IsZero() || boundary.Before(next)) {
				next = boundary
			}
		}
	}
	if !next.IsZero() {
		// NotAfter is inclusive.
		l.boundary = time.AfterFunc(next.Sub(now)+time.Second, l.source.Changes().RequestFull)
	}
}

func sharedSecret(values [][]byte) *resource.Resource {
	return &resource.Resource{
		Name: "secret", Kind: &resource.Resource_SharedSecret{SharedSecret: &resource.SharedSecret{Values: values}},
	}
}

func (l *loop) serve(owned map[string][]*resource.Resource) {
	for owner := range l.owners {
		if _, kept := owned[owner]; !kept {
			l.served.Remove(owner)
			delete(l.owners, owner)
		}
	}
	for owner, resources := range owned {
		l.served.Set(owner, resources)
		l.owners[owner] = true
	}
}

func (l *loop) endpoints(ctx context.Context, services []types.NamespacedName) error {
	l.served.Advance(l.source.Position())
	changed := map[string][]*resource.Resource{}
	if slices.ContainsFunc(services, l.needsEndpoints) {
		l.compiled()
	}
	for _, service := range services {
		for _, want := range l.dependents[service] {
			r, err := l.endpointsOf(ctx, want.port)
			if err != nil {
				return err
			}
			changed[want.owner] = append(changed[want.owner], r)
		}
	}
	for owner, resources := range changed {
		l.served.Update(owner, resources)
	}
	return nil
}

func (l *loop) endpointsOf(ctx context.Context, port model.ServicePort) (*resource.Resource, error) {
	name := types.NamespacedName{Namespace: port.Namespace, Name: port.Name}
	service, err := l.source.Service(name)
	if err != nil {
		return nil, fmt.Errorf("read Service %s: %w", name, err)
	}
	if before, is := l.cached[name][port.Port]; is && before.service == service {
		return before.endpoints, nil
	}
	found := &resource.Endpoints{}
	if service != nil {
		slices, err := l.source.Slices(ctx, name)
		if err != nil {
			return nil, err
		}
		found = endpoints.Of(service, port.Port, slices)
	}
	r := &resource.Resource{
		Name: model.EndpointsName(port),
		Kind: &resource.Resource_Endpoints{Endpoints: found},
	}
	if l.cached[name] == nil {
		l.cached[name] = map[int32]cachedEndpoints{}
	}
	l.cached[name][port.Port] = cachedEndpoints{service, r}
	return r, nil
}

// fleetsOf maps service accounts to owners. Of two owners with one account the first keeps it; the writer
// reports the other.
func (l *loop) fleetsOf(compiled *write.Compiled) map[types.NamespacedName]authentication.Fleet {
	found := map[types.NamespacedName]authentication.Fleet{}
	for _, owner := range compiled.Owners {
		account := owner.ObjectKey(infrastructure.Settings{Namespace: l.namespace})
		if _, taken := found[account]; !taken {
			found[account] = authentication.Fleet{
				Owner: infrastructure.Key(owner.Object), Selector: infrastructure.PodSelector(owner.Object),
			}
		}
	}
	return found
}

func ownersOf(result *model.Result, objects *model.Objects) []infrastructure.Owner {
	found := map[model.Object]infrastructure.Owner{}
	for _, ingress := range objects.Ingresses {
		object := model.Object{Kind: "Ingress", Namespace: ingress.Namespace, Name: ingress.Name}
		found[object] = infrastructure.Owner{Object: object, UID: ingress.UID}
	}
	for _, gateway := range objects.Gateways {
		object := model.Object{Kind: "Gateway", Namespace: gateway.Namespace, Name: gateway.Name}
		found[object] = infrastructure.Owner{Object: object, UID: gateway.UID, Class: string(gateway.Spec.GatewayClassName)}
	}
	owners := make([]infrastructure.Owner, 0, len(result.Proxies))
	for _, proxy := range result.Proxies {
		owner, known := found[proxy.Owner]
		if !known {
			owner = infrastructure.Owner{Object: proxy.Owner}
		}
		owners = append(owners, owner)
	}
	return owners
}
