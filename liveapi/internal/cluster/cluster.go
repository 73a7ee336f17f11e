// SPDX-License-Identifier: Apache-2.0

// Package cluster caches Services, EndpointSlices and LBNodes. Other packages read them through it.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/slim"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/liveapi/internal/collect"
	"github.com/millrace-lb/millrace/liveapi/internal/store"
)

const byService = "service"

// Cluster is a cache of Services, EndpointSlices and LBNodes.
type Cluster struct {
	cache   cache.Cache
	changed chan struct{}
}

// Service contains the fields of a Service that the resources need.
type Service struct {
	store.Name
	Labels map[string]string
	// Ours is true if the operator assigned the Service's addresses.
	Ours      bool
	Addresses []netip.Addr
	Ports     []Port
}

// Port is a port of a Service.
type Port struct {
	Number   uint16
	Protocol string
}

// Endpoints counts the endpoints of a Service.
type Endpoints struct{ Ready, Total int32 }

// New returns an empty cache; see Start.
func New(config *rest.Config) (*Cluster, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, millracev1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("build the scheme: %w", err)
		}
	}
	made, err := cache.New(config, cache.Options{
		Scheme: scheme, DefaultUnsafeDisableDeepCopy: new(true), ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Service{}:            {Transform: slimService},
			&discoveryv1.EndpointSlice{}: {Transform: slimEndpointSlice},
			&millracev1beta1.LBNode{}:    {Transform: slimNode},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("create the cache of Services, EndpointSlices and LBNodes: %w", err)
	}
	return &Cluster{cache: made, changed: make(chan struct{}, 1)}, nil
}

// Start fills and updates the cache until the context ends.
func (c *Cluster) Start(ctx context.Context) error {
	err := c.cache.IndexField(ctx, &discoveryv1.EndpointSlice{}, byService, func(object client.Object) []string {
		return []string{object.GetLabels()[discoveryv1.LabelServiceName]}
	})
	if err != nil {
		return fmt.Errorf("watch EndpointSlices: %w", err)
	}
	if _, err := c.cache.GetInformer(ctx, &corev1.Service{}, cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("watch Services: %w", err)
	}
	nodes, err := c.cache.GetInformer(ctx, &millracev1beta1.LBNode{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch LBNodes: %w", err)
	}
	notify := func() {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
	if _, err := nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
	}); err != nil {
		return fmt.Errorf("watch LBNodes: %w", err)
	}
	return c.cache.Start(ctx)
}

// Synced waits until the cache is synced, and returns false if the context ends first.
func (c *Cluster) Synced(ctx context.Context) bool { return c.cache.WaitForCacheSync(ctx) }

// NodesChanged returns a channel that receives a value after a change of Nodes. Changes are coalesced.
func (c *Cluster) NodesChanged() <-chan struct{} { return c.changed }

// Nodes returns the nodes that have an address.
func (c *Cluster) Nodes(ctx context.Context) ([]collect.Node, error) {
	list := &millracev1beta1.LBNodeList{}
	if err := c.cache.List(ctx, list); err != nil {
		return nil, fmt.Errorf("read the LBNodes: %w", err)
	}
	var nodes []collect.Node
	for i := range list.Items {
		for _, text := range list.Items[i].Spec.Addresses {
			if address, err := netip.ParseAddr(text); err == nil {
				nodes = append(nodes, collect.Node{Name: list.Items[i].Name, Address: address})
				break
			}
		}
	}
	return nodes, nil
}

// Services returns the Services of a namespace, or of all namespaces if it is empty, with the counts of their
// endpoints.
func (c *Cluster) Services(ctx context.Context, namespace string) ([]Service, map[store.Name]Endpoints, error) {
	services, slices := &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}
	err := errors.Join(c.cache.List(ctx, services, client.InNamespace(namespace)), c.cache.List(ctx, slices, client.InNamespace(namespace)))
	if err != nil {
		return nil, nil, fmt.Errorf("read the Services: %w", err)
	}
	found := make([]Service, 0, len(services.Items))
	for i := range services.Items {
		found = append(found, known(&services.Items[i]))
	}
	return found, count(slices.Items), nil
}

// Service returns a Service by name; ok is false if it does not exist.
func (c *Cluster) Service(ctx context.Context, name store.Name) (found Service, endpoints Endpoints, ok bool, err error) {
	service := &corev1.Service{}
	err = c.cache.Get(ctx, client.ObjectKey{Namespace: name.Namespace, Name: name.Name}, service)
	if apierrors.IsNotFound(err) {
		return found, endpoints, false, nil
	}
	slices, listErr := c.slices(ctx, name)
	if err := errors.Join(err, listErr); err != nil {
		return found, endpoints, false, fmt.Errorf("read the Service %s/%s: %w", name.Namespace, name.Name, err)
	}
	return known(service), count(slices)[name], true, nil
}

// NodesOf returns the nodes with endpoints of a Service that can have flows. This includes terminating
// endpoints.
func (c *Cluster) NodesOf(ctx context.Context, name store.Name) ([]string, error) {
	found, err := c.slices(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the endpoints of the Service %s/%s: %w", name.Namespace, name.Name, err)
	}
	var nodes []string
	for i := range found {
		for j := range found[i].Endpoints {
			if node := found[i].Endpoints[j].NodeName; node != nil {
				nodes = append(nodes, *node)
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

func (c *Cluster) slices(ctx context.Context, name store.Name) ([]discoveryv1.EndpointSlice, error) {
	list := &discoveryv1.EndpointSliceList{}
	err := c.cache.List(ctx, list, client.InNamespace(name.Namespace), client.MatchingFields{byService: name.Name})
	return list.Items, err
}

func known(service *corev1.Service) Service {
	found := Service{
		Name: store.Name{Namespace: service.Namespace, Name: service.Name}, Labels: service.Labels,
		Ours: slices.Contains(service.Finalizers, millracev1beta1.Finalizer),
	}
	for i := range service.Status.LoadBalancer.Ingress {
		if address, err := netip.ParseAddr(service.Status.LoadBalancer.Ingress[i].IP); err == nil && found.Ours {
			found.Addresses = append(found.Addresses, address)
		}
	}
	for i := range service.Spec.Ports {
		found.Ports = append(found.Ports, Port{uint16(service.Spec.Ports[i].Port), string(service.Spec.Ports[i].Protocol)})
	}
	return found
}

func count(slices []discoveryv1.EndpointSlice) map[store.Name]Endpoints {
	counts := map[store.Name]Endpoints{}
	for i := range slices {
		name := store.Name{Namespace: slices[i].Namespace, Name: slices[i].Labels[discoveryv1.LabelServiceName]}
		endpoints := counts[name]
		for j := range slices[i].Endpoints {
			endpoints.Total++
			// An unknown condition counts as ready (EndpointConditions, discovery.k8s.io/v1).
			if ready := slices[i].Endpoints[j].Conditions.Ready; ready == nil || *ready {
				endpoints.Ready++
			}
		}
		counts[name] = endpoints
	}
	return counts
}

func slimService(object any) (any, error) {
	service, ok := object.(*corev1.Service)
	if !ok {
		return object, nil
	}
	meta := slim.Meta(&service.ObjectMeta)
	meta.Namespace, meta.Labels = service.Namespace, service.Labels
	if slices.Contains(service.Finalizers, millracev1beta1.Finalizer) {
		meta.Finalizers = []string{millracev1beta1.Finalizer}
	}
	slimmed := &corev1.Service{ObjectMeta: meta}
	if len(meta.Finalizers) > 0 {
		for i := range service.Spec.Ports {
			slimmed.Spec.Ports = append(slimmed.Spec.Ports, corev1.ServicePort{Port: service.Spec.Ports[i].Port, Protocol: service.Spec.Ports[i].Protocol})
		}
	}
	for i := range service.Status.LoadBalancer.Ingress {
		slimmed.Status.LoadBalancer.Ingress = append(slimmed.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: service.Status.LoadBalancer.Ingress[i].IP})
	}
	return slimmed, nil
}

func slimEndpointSlice(object any) (any, error) {
	slice, ok := object.(*discoveryv1.EndpointSlice)
	if !ok {
		return object, nil
	}
	meta := slim.Meta(&slice.ObjectMeta)
	meta.Namespace = slice.Namespace
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: slice.Labels[discoveryv1.LabelServiceName]}
	slimmed := &discoveryv1.EndpointSlice{ObjectMeta: meta, Endpoints: make([]discoveryv1.Endpoint, len(slice.Endpoints))}
	for i := range slice.Endpoints {
		slimmed.Endpoints[i].NodeName = slice.Endpoints[i].NodeName
		slimmed.Endpoints[i].Conditions.Ready = slice.Endpoints[i].Conditions.Ready
	}
	return slimmed, nil
}

func slimNode(object any) (any, error) {
	node, ok := object.(*millracev1beta1.LBNode)
	if !ok {
		return object, nil
	}
	return &millracev1beta1.LBNode{
		TypeMeta: metav1.TypeMeta{}, ObjectMeta: slim.Meta(&node.ObjectMeta),
		Spec: millracev1beta1.LBNodeSpec{Addresses: node.Spec.Addresses},
	}, nil
}
