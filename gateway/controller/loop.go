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
)

const (
	// gather is how long changes are collected: what is applied together is served together.
	gather = 25 * time.Millisecond
	// respite is the least time between two full compilations, however much changes.
	respite = 100 * time.Millisecond
	// retry is when a pass that failed is tried again.
	retry = time.Second
)

// configurations is who gets what: server.Server.
type configurations interface {
	Advance(order uint64)
	Set(owner string, resources []*resource.Resource) bool
	Update(owner string, resources []*resource.Resource) bool
	Remove(owner string)
}

// loop compiles what changes, and has it served. One goroutine runs it.
type loop struct {
	source   *source.Source
	served   configurations
	settings route.Settings
	// namespace is that of the controller.
	namespace string
	// compiled is called after each full compilation.
	compiled func()
	// secrets are those that an owner's proxies share.
	secrets func(owner string) (values [][]byte, known bool, err error)
	// follows reports whether the writer wants to know of the endpoints of a Service.
	follows func(types.NamespacedName) bool
	log     logr.Logger

	compiler route.Compiler
	// boundary compiles again when the validity of a certificate begins or ends.
	boundary *time.Timer
	// owners are those that are served now.
	owners map[string]bool
	// wanting are the owners whose proxies need a Service's endpoints.
	wanting map[types.NamespacedName][]wanted
	// known are the endpoints that were read last, by Service and port.
	known map[types.NamespacedName]map[int32]known

	latest atomic.Pointer[write.Compiled]
	fleets atomic.Pointer[map[types.NamespacedName]authentication.Fleet]
}

// wanted is the endpoints of one port of a Service for one owner.
type wanted struct {
	owner string
	port  route.ServicePort
}

// known is the endpoints of a port, and the Service that they were read with.
type known struct {
	service   *corev1.Service
	endpoints *resource.Resource
}

// NeedLeaderElection says that every replica compiles.
func (l *loop) NeedLeaderElection() bool { return false }

// Latest is what was compiled last, nil before the first time.
func (l *loop) Latest() *write.Compiled { return l.latest.Load() }

// Fleet returns the owner whose proxies run as a service account.
func (l *loop) Fleet(account types.NamespacedName) (authentication.Fleet, bool) {
	if fleets := l.fleets.Load(); fleets != nil {
		fleet, known := (*fleets)[account]
		return fleet, known
	}
	return authentication.Fleet{}, false
}

// Deployments are those of the owners' proxies.
func (l *loop) Deployments() map[string]types.NamespacedName {
	found := map[string]types.NamespacedName{}
	if compiled := l.Latest(); compiled != nil {
		for _, owner := range compiled.Owners {
			found[infrastructure.Key(owner.Object)] = owner.Place(infrastructure.Settings{Namespace: l.namespace})
		}
	}
	return found
}

// Start compiles until the context ends.
func (l *loop) Start(ctx context.Context) error {
	l.owners, l.known = map[string]bool{}, map[types.NamespacedName]map[int32]known{}
	var last time.Time
	again := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.source.Changes().Wake():
		}
		sleep(ctx, gather)
		change := l.source.Changes().Take()
		for _, service := range change.Services {
			delete(l.known, service)
		}
		if change.Full || again {
			// Endpoints do not wait for what changes all the time.
			if early := respite - time.Since(last); early > 0 {
				if err := l.endpoints(ctx, change.Services); err != nil {
					l.log.Error(err, "serving new endpoints")
				}
				sleep(ctx, early)
			}
			last = time.Now()
			again = !l.try(ctx, l.full)
			continue
		}
		again = !l.try(ctx, func(ctx context.Context) error { return l.endpoints(ctx, change.Services) })
	}
}

// try runs one step; one that fails is followed by a full compilation.
func (l *loop) try(ctx context.Context, step func(context.Context) error) bool {
	err := step(ctx)
	if err == nil || ctx.Err() != nil {
		return true
	}
	l.log.Error(err, "compiling, trying again", "in", retry.String())
	time.AfterFunc(retry, l.source.Changes().Again)
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

// full compiles everything.
func (l *loop) full(ctx context.Context) error {
	l.served.Advance(l.source.Position())
	objects, ready := l.source.Objects()
	if !ready {
		return nil
	}
	settings := l.settings
	settings.Now = time.Now()
	result := l.compiler.Compile(objects, settings)
	l.awaitBoundary(result.Certificates, settings.Now)
	compiled := &write.Compiled{Objects: objects, Result: result, Owners: ownersOf(result, objects)}
	fleets := l.fleetsOf(compiled)
	owned := make(map[string][]*resource.Resource, len(result.Proxies))
	wanting := map[types.NamespacedName][]wanted{}
	var problems []error
	for _, proxy := range result.Proxies {
		owner := infrastructure.Key(proxy.Owner)
		endpoints := make([]*resource.Resource, 0, len(proxy.Backends))
		for _, port := range proxy.Backends {
			service := types.NamespacedName{Namespace: port.Namespace, Name: port.Name}
			wanting[service] = append(wanting[service], wanted{owner, port})
			r, err := l.endpointsOf(ctx, port)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			endpoints = append(endpoints, r)
		}
		values, known, err := l.secrets(owner)
		if err != nil || !known {
			// Without them proxies would draw their own, and sessions would end.
			return err
		}
		if len(values) > 0 {
			endpoints = append(endpoints, sharedSecret(values))
		}
		owned[owner] = route.Merge(proxy.Resources, endpoints)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	// Who asks for the first time has to be known by then.
	l.fleets.Store(&fleets)
	l.wanting = wanting
	for service := range l.known {
		if wanting[service] == nil {
			delete(l.known, service)
		}
	}
	l.serve(owned)
	l.latest.Store(compiled)
	l.compiled()
	return nil
}

// awaitBoundary compiles again at the next beginning or end of a certificate's validity.
func (l *loop) awaitBoundary(certificates []route.Certificate, now time.Time) {
	if l.boundary != nil {
		l.boundary.Stop()
	}
	var next time.Time
	for _, each := range certificates {
		for _, boundary := range []time.Time{each.NotBefore, each.NotAfter} {
			if boundary.After(now) && (next.IsZero() || boundary.Before(next)) {
				next = boundary
			}
		}
	}
	if !next.IsZero() {
		// A certificate is valid during the second of its end.
		l.boundary = time.AfterFunc(next.Sub(now)+time.Second, l.source.Changes().Again)
	}
}

func sharedSecret(values [][]byte) *resource.Resource {
	return &resource.Resource{
		Name: "secret", Kind: &resource.Resource_SharedSecret{SharedSecret: &resource.SharedSecret{Values: values}},
	}
}

// serve makes the owners' resources those of the proxies.
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

// endpoints serves the endpoints of some Services, and compiles nothing.
func (l *loop) endpoints(ctx context.Context, services []types.NamespacedName) error {
	l.served.Advance(l.source.Position())
	changed := map[string][]*resource.Resource{}
	if slices.ContainsFunc(services, l.follows) {
		l.compiled()
	}
	for _, service := range services {
		for _, want := range l.wanting[service] {
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

// endpointsOf reads the endpoints of a port of a Service, where they may have changed.
func (l *loop) endpointsOf(ctx context.Context, port route.ServicePort) (*resource.Resource, error) {
	name := types.NamespacedName{Namespace: port.Namespace, Name: port.Name}
	service, err := l.source.Service(name)
	if err != nil {
		return nil, fmt.Errorf("read Service %s: %w", name, err)
	}
	if before, is := l.known[name][port.Port]; is && before.service == service {
		return before.endpoints, nil
	}
	found := &resource.Endpoints{}
	if service != nil {
		slices, err := l.source.Slices(ctx, name)
		if err != nil {
			return nil, err
		}
		found = route.Endpoints(service, port.Port, slices)
	}
	r := &resource.Resource{
		Name: route.EndpointsName(port),
		Kind: &resource.Resource_Endpoints{Endpoints: found},
	}
	if l.known[name] == nil {
		l.known[name] = map[int32]known{}
	}
	l.known[name][port.Port] = known{service, r}
	return r, nil
}

// fleetsOf says whose proxies run as which service account. Of two owners with one account
// the first has it; the writer reports the other.
func (l *loop) fleetsOf(compiled *write.Compiled) map[types.NamespacedName]authentication.Fleet {
	found := map[types.NamespacedName]authentication.Fleet{}
	for _, owner := range compiled.Owners {
		account := owner.Place(infrastructure.Settings{Namespace: l.namespace})
		if _, taken := found[account]; !taken {
			found[account] = authentication.Fleet{
				Owner: infrastructure.Key(owner.Object), Selector: infrastructure.PodSelector(owner.Object),
			}
		}
	}
	return found
}

// ownersOf finds the objects that own the proxies.
func ownersOf(result *route.Result, objects *route.Objects) []infrastructure.Owner {
	found := map[route.Object]infrastructure.Owner{}
	for _, ingress := range objects.Ingresses {
		object := route.Object{Kind: "Ingress", Namespace: ingress.Namespace, Name: ingress.Name}
		found[object] = infrastructure.Owner{Object: object, UID: ingress.UID}
	}
	for _, gateway := range objects.Gateways {
		object := route.Object{Kind: "Gateway", Namespace: gateway.Namespace, Name: gateway.Name}
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
