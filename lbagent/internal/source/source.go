// SPDX-License-Identifier: Apache-2.0

// Package source watches the API objects that the agent's work depends on.
package source

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// +kubebuilder:rbac:groups="",resources=services;nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch
// +kubebuilder:rbac:groups=millrace.io,resources=vips;ippools;lbnodes;bgppeers;bgpadvertisements,verbs=get;list;watch

// settle is how long Changed waits after a change for more of them, so that a
// burst, such as a rollout, is one pass.
const settle = 75 * time.Millisecond

// Source holds the objects as they were last seen. While the API server is
// away it goes on with those.
type Source struct {
	nodeName string
	events   chan struct{}
	changed  chan struct{}
	synced   chan struct{}

	services, slices, nodes        cache.SharedIndexInformer
	vips, pools                    cache.SharedIndexInformer
	lbNodes, peers, advertisements cache.SharedIndexInformer
}

// New returns a Source for the agent on a node. Nothing is watched before Run.
func New(clients *Clients, nodeName string) (*Source, error) {
	s := &Source{
		nodeName: nodeName,
		events:   make(chan struct{}, 1),
		changed:  make(chan struct{}, 1),
		synced:   make(chan struct{}),
	}
	everything := func(*metav1.ListOptions) {}
	thisNode := func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName).String()
	}
	// Services of type LoadBalancer are never headless, so their slices never
	// have this label (EndpointSlice controller, corev1.IsHeadlessService).
	withAddress := func(options *metav1.ListOptions) {
		options.LabelSelector = "!" + corev1.IsHeadlessService
	}
	var err error
	watch := func(client rest.Interface, resource string, object runtime.Object, options func(*metav1.ListOptions)) cache.SharedIndexInformer {
		if err != nil {
			return nil
		}
		var informer cache.SharedIndexInformer
		informer, err = s.informer(client, resource, object, options)
		return informer
	}
	s.services = watch(clients.Core, "services", &corev1.Service{}, everything)
	s.slices = watch(clients.Discovery, "endpointslices", &discoveryv1.EndpointSlice{}, withAddress)
	s.nodes = watch(clients.Core, "nodes", &corev1.Node{}, thisNode)
	s.vips = watch(clients.Millrace, "vips", &millracev1alpha1.VIP{}, everything)
	s.pools = watch(clients.Millrace, "ippools", &millracev1alpha1.IPPool{}, everything)
	s.lbNodes = watch(clients.Millrace, "lbnodes", &millracev1alpha1.LBNode{}, everything)
	s.peers = watch(clients.Millrace, "bgppeers", &millracev1alpha1.BGPPeer{}, everything)
	s.advertisements = watch(clients.Millrace, "bgpadvertisements", &millracev1alpha1.BGPAdvertisement{}, everything)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Source) informer(client rest.Interface, resource string, object runtime.Object, options func(*metav1.ListOptions)) (cache.SharedIndexInformer, error) {
	listWatch := cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, options)
	informer := cache.NewSharedIndexInformer(listWatch, object, 0, cache.Indexers{})
	if err := informer.SetTransform(strip); err != nil {
		return nil, fmt.Errorf("watch %s: %w", resource, err)
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.signal() },
		DeleteFunc: func(any) { s.signal() },
		UpdateFunc: func(before, after any) {
			if matters(before, after) {
				s.signal()
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", resource, err)
	}
	return informer, nil
}

func (s *Source) signal() {
	select {
	case s.events <- struct{}{}:
	default:
	}
}

// Run watches until ctx is done.
func (s *Source) Run(ctx context.Context) error {
	all := []cache.SharedIndexInformer{
		s.services, s.slices, s.nodes, s.vips, s.pools, s.lbNodes, s.peers, s.advertisements,
	}
	var hasSynced []cache.InformerSynced
	for _, informer := range all {
		go informer.RunWithContext(ctx)
		hasSynced = append(hasSynced, informer.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), hasSynced...) {
		return ctx.Err()
	}
	close(s.synced)
	s.signal()
	return s.coalesce(ctx)
}

// coalesce turns the first event after quiet, and all that follow it closely,
// into one change.
func (s *Source) coalesce(ctx context.Context) error {
	timer := time.NewTimer(settle)
	timer.Stop()
	pending := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.events:
			if !pending {
				pending = true
				timer.Reset(settle)
			}
		case <-timer.C:
			pending = false
			select {
			case s.changed <- struct{}{}:
			default:
			}
		}
	}
}

// Changed receives a value some time after an object changed in a way that
// matters to a Snapshot; the first one when every kind has been listed once.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Synced is closed when every kind has been listed once. A Snapshot from
// before would lack objects, and what lacks would be removed.
func (s *Source) Synced() <-chan struct{} { return s.synced }

// Snapshot returns the objects. They are shared and must not be changed.
func (s *Source) Snapshot() *model.Snapshot {
	snapshot := &model.Snapshot{
		NodeName:       s.nodeName,
		Services:       list[*corev1.Service](s.services),
		EndpointSlices: list[*discoveryv1.EndpointSlice](s.slices),
		VIPs:           list[*millracev1alpha1.VIP](s.vips),
		Pools:          list[*millracev1alpha1.IPPool](s.pools),
		LBNodes:        list[*millracev1alpha1.LBNode](s.lbNodes),
		Peers:          list[*millracev1alpha1.BGPPeer](s.peers),
		Advertisements: list[*millracev1alpha1.BGPAdvertisement](s.advertisements),
	}
	if nodes := list[*corev1.Node](s.nodes); len(nodes) > 0 {
		snapshot.Node = nodes[0]
	}
	return snapshot
}

// LBNode returns this node's LBNode as it was last seen, or nil. It is shared
// and must not be changed.
func (s *Source) LBNode() *millracev1alpha1.LBNode {
	object, exists, err := s.lbNodes.GetStore().GetByKey(s.nodeName)
	if err != nil || !exists {
		return nil
	}
	lbNode, _ := object.(*millracev1alpha1.LBNode)
	return lbNode
}

func list[T any](informer cache.SharedIndexInformer) []T {
	objects := informer.GetStore().List()
	typed := make([]T, 0, len(objects))
	for _, object := range objects {
		if t, ok := object.(T); ok {
			typed = append(typed, t)
		}
	}
	return typed
}
