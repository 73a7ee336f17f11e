// SPDX-License-Identifier: Apache-2.0

// Package source reads the compiler's input from the manager's cache and reports relevant changes.
package source

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/consts"

	"github.com/millrace-lb/millrace/gateway/route/endpoints"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

const (
	discoveryPeriod = 10 * time.Second
	syncTimeout     = time.Minute
	indexService    = "service"
)

// Source reads the compiler's input.
type Source struct {
	cache   cache.Cache
	kinds   Kinds
	log     logr.Logger
	changes *Changes
	// onOtherChange is called for changes that only the leader's writer reads.
	onOtherChange func()

	builtin  []kind
	services toolscache.Indexer

	mu        sync.Mutex
	informers []toolscache.SharedIndexInformer
	present   map[string]kind
	version   string
	ready     bool
	secrets   secrets
}

// Kinds discovers kinds, permissions and Secrets.
type Kinds struct {
	Served discovery.DiscoveryInterface
	// API bypasses the cache, Reviews creates SelfSubjectAccessReviews.
	API     client.Reader
	Reviews client.Writer
	// Secrets returns an informer, not yet started, for the Secrets of a type in a namespace; "" means all.
	Secrets func(namespace string, kind corev1.SecretType) (toolscache.SharedIndexInformer, error)
}

// New starts informers. onOtherChange is called for changes that the compiler does not read, such as
// statuses.
func New(ctx context.Context, informers cache.Cache, kinds Kinds, onOtherChange func(), log logr.Logger) (*Source, error) {
	s := &Source{
		cache: informers, kinds: kinds, log: log,
		changes: newChanges(), onOtherChange: onOtherChange,
		present: map[string]kind{},
		secrets: secrets{needed: make(chan struct{}, 1), readers: map[secretScope]*secretReader{}},
	}
	for _, kind := range builtin() {
		var err error
		if kind.indexer, err = s.watch(ctx, s.cache, kind.object, s.handler()); err != nil {
			return nil, err
		}
		s.builtin = append(s.builtin, kind)
		if _, is := kind.object.(*corev1.Service); is {
			s.services = kind.indexer
		}
	}
	if err := informers.IndexField(ctx, &discoveryv1.EndpointSlice{}, indexService, func(object client.Object) []string {
		return []string{object.GetLabels()[discoveryv1.LabelServiceName]}
	}); err != nil {
		return nil, fmt.Errorf("index EndpointSlices: %w", err)
	}
	_, err := s.watch(ctx, s.cache, &discoveryv1.EndpointSlice{}, s.sliceHandler())
	return s, err
}

// Changes returns the accumulated changes.
func (s *Source) Changes() *Changes { return s.changes }

// watch starts an informer. Its indexer shares objects with the cache, unlike List of the cache's reader.
func (s *Source) watch(
	ctx context.Context, by cache.Cache, object client.Object, handler toolscache.ResourceEventHandler,
) (toolscache.Indexer, error) {
	informer, err := by.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", object, err)
	}
	shared, is := informer.(toolscache.SharedIndexInformer)
	if !is {
		return nil, fmt.Errorf("watch %T: the cache's informer is a %T, which has no index", object, informer)
	}
	if _, err := informer.AddEventHandler(handler); err != nil {
		return nil, fmt.Errorf("watch %T: %w", object, err)
	}
	s.mu.Lock()
	s.informers = append(s.informers, shared)
	s.mu.Unlock()
	return shared.GetIndexer(), nil
}

// Position returns the highest resourceVersion seen. Versions of one API server increase across kinds, so
// replicas' positions are comparable.
func (s *Source) Position() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	highest := uint64(0)
	for _, informer := range s.informers {
		if seen, err := strconv.ParseUint(informer.LastSyncResourceVersion(), 10, 64); err == nil {
			highest = max(highest, seen)
		}
	}
	return highest
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica reads.
func (s *Source) NeedLeaderElection() bool { return false }

// Start tracks the installed Gateway API kinds and the readable Secrets until the context ends.
func (s *Source) Start(ctx context.Context) error {
	for {
		if err := s.discover(ctx); err != nil && ctx.Err() == nil {
			s.log.Error(err, "discover the kinds of Gateway API, keeping the current watches")
		}
		if err := s.discoverSecrets(ctx); err != nil && ctx.Err() == nil {
			s.log.Error(err, "discover readable Secrets, keeping the current watches")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.secrets.needed:
			s.secrets.needsUsers = true
		case <-time.After(discoveryPeriod):
		}
	}
}

func (s *Source) discover(ctx context.Context) error {
	served, err := s.served()
	if err != nil {
		return err
	}
	version := ""
	if served["GatewayClass"] {
		if version, err = s.installed(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	present, changed := maps.Clone(s.present), !s.ready || s.version != version
	s.mu.Unlock()
	for name, kind := range gatewayAPI() {
		if _, known := present[name]; known == served[name] {
			continue
		}
		changed = true
		if !served[name] {
			delete(present, name)
			if err := s.cache.RemoveInformer(ctx, kind.object); err != nil {
				return fmt.Errorf("stop the watch of %s: %w", name, err)
			}
			continue
		}
		if kind.indexer, err = s.watchAndSync(ctx, kind.object); err != nil {
			return err
		}
		present[name] = kind
	}
	if !changed {
		return nil
	}
	s.mu.Lock()
	s.present, s.version, s.ready = present, version, true
	s.mu.Unlock()
	s.changes.requestFull()
	return nil
}

func (s *Source) watchAndSync(ctx context.Context, object client.Object) (toolscache.Indexer, error) {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	indexer, err := s.watch(ctx, s.cache, object, s.handler())
	if err != nil {
		return nil, err
	}
	if _, err := s.cache.GetInformer(ctx, object); err != nil {
		return nil, fmt.Errorf("list objects of type %T: %w", object, err)
	}
	return indexer, nil
}

// served lists the kinds in the compiled version.
func (s *Source) served() (map[string]bool, error) {
	list, err := s.kinds.Served.ServerResourcesForGroupVersion(gatewayv1.GroupVersion.String())
	if apierrors.IsNotFound(err) {
		return map[string]bool{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("discover the kinds of %s: %w", gatewayv1.GroupVersion, err)
	}
	found := map[string]bool{}
	for _, resource := range list.APIResources {
		found[resource.Kind] = true
	}
	return found, nil
}

func (s *Source) installed(ctx context.Context) (string, error) {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	err := s.kinds.API.Get(ctx, types.NamespacedName{Name: "gatewayclasses." + gatewayv1.GroupName}, crd)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("read the version of Gateway API: %w", err)
	}
	return crd.Annotations[consts.BundleVersionAnnotation], nil
}

// Objects returns the compiler's input, not ready until every kind was read once. Objects must not be
// modified; an unchanged one keeps its pointer.
func (s *Source) Objects() (objects *model.Objects, ready bool) {
	s.mu.Lock()
	present, version, ready := s.present, s.version, s.ready
	s.mu.Unlock()
	if !ready {
		return nil, false
	}
	objects = &model.Objects{GatewayAPIVersion: version}
	for _, kind := range s.builtin {
		kind.read(kind.indexer, objects)
	}
	for _, kind := range present {
		kind.read(kind.indexer, objects)
	}
	return objects, s.readSecrets(objects)
}

func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}

// Slices returns the EndpointSlices of a Service.
func (s *Source) Slices(ctx context.Context, service types.NamespacedName) ([]*discoveryv1.EndpointSlice, error) {
	list := &discoveryv1.EndpointSliceList{}
	if err := s.cache.List(ctx, list, client.InNamespace(service.Namespace),
		client.MatchingFields{indexService: service.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the EndpointSlices of Service %s: %w", service, err)
	}
	return pointers(list.Items), nil
}

// Service returns a Service, or nil if it does not exist. It must not be modified.
func (s *Source) Service(name types.NamespacedName) (*corev1.Service, error) {
	found, known, err := s.services.GetByKey(name.String())
	if err != nil || !known {
		return nil, err
	}
	service, is := found.(*corev1.Service)
	if !is {
		return nil, fmt.Errorf("the cache of Services contains a %T", found)
	}
	return service, nil
}

// HasEndpoints reports whether a Service port has an endpoint that is serving.
func (s *Source) HasEndpoints(ctx context.Context, of model.ServicePort, protocol corev1.Protocol) (bool, error) {
	name := types.NamespacedName{Namespace: of.Namespace, Name: of.Name}
	service, err := s.Service(name)
	if err != nil || service == nil {
		return false, err
	}
	found, err := s.Slices(ctx, name)
	if err != nil {
		return false, err
	}
	return endpoints.Has(service, of.Port, protocol, found), nil
}

// Backends returns a Service port's name and the EndpointSlices, which must not be modified; known is false
// without the port.
func (s *Source) Backends(
	ctx context.Context, of model.ServicePort, protocol corev1.Protocol,
) (name string, found []*discoveryv1.EndpointSlice, known bool, err error) {
	at := types.NamespacedName{Namespace: of.Namespace, Name: of.Name}
	service, err := s.Service(at)
	if err != nil || service == nil {
		return "", nil, false, err
	}
	if name, known = endpoints.PortName(service, of.Port, protocol); !known {
		return "", nil, false, nil
	}
	found, err = s.Slices(ctx, at)
	return name, found, err == nil, err
}
