// SPDX-License-Identifier: Apache-2.0

// Package source watches the API objects that the agent depends on.
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

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/source/relay"
)

// +kubebuilder:rbac:groups="",resources=services;nodes,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch
// +kubebuilder:rbac:groups=millrace.io,resources=vips;vippools;lbnodes;lbnodereports;lbpeers;vipadvertisements;viproutes,verbs=get;list;watch

// +kubebuilder:rbac:urls=/relay/*,verbs=get

// +kubebuilder:rbac:groups="",namespace=millrace-bgp,resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=millrace-system,resources=secrets,resourceNames=millrace-tunnel-key,verbs=get;list;watch

const (
	// coalesceDelay is the delay of Changed, so that a burst of changes causes one pass. The EndpointSlices of a
	// dual-stack Service are written one after the other; a pass in between would split the tables they share.
	coalesceDelay = 40 * time.Millisecond
	// vipDelay is the maximum delay after a VIP, which is usually the last object of a new Service: the operator
	// creates it after the Service.
	vipDelay = 20 * time.Millisecond
)

// Source caches the watched objects. It continues to serve them while the API server is unavailable.
type Source struct {
	nodeName string
	clients  *Clients
	tracker  *watchTracker
	events   chan struct{}
	arrivals chan struct{}
	changed  chan struct{}
	synced   chan struct{}

	objects lists

	services, slices, nodes        cache.SharedIndexInformer
	vips, pools                    cache.SharedIndexInformer
	lbNodes, peers, advertisements cache.SharedIndexInformer
	routes                         cache.SharedIndexInformer
	// secrets contain the passwords of BGP sessions.
	secrets cache.SharedIndexInformer
	// tunnelKey watches the Secret with the keys of the tunnel.
	tunnelKey cache.SharedIndexInformer
	report    cache.SharedIndexInformer
	reported  chan struct{}
}

type lists struct {
	services       ordered[*corev1.Service]
	slices         ordered[*discoveryv1.EndpointSlice]
	nodes          ordered[*corev1.Node]
	vips           ordered[*millracev1beta1.VIP]
	pools          ordered[*millracev1beta1.VIPPool]
	lbNodes        ordered[*millracev1beta1.LBNode]
	peers          ordered[*millracev1beta1.LBPeer]
	advertisements ordered[*millracev1beta1.VIPAdvertisement]
	routes         ordered[*millracev1beta1.VIPRoute]
	secrets        ordered[*corev1.Secret]
}

// New returns a Source for a node's agent. Run starts the watches.
func New(clients *Clients, nodeName string) (*Source, error) {
	s := &Source{
		nodeName: nodeName,
		clients:  clients,
		tracker:  newWatchTracker(),
		events:   make(chan struct{}, 1),
		arrivals: make(chan struct{}, 1),
		changed:  make(chan struct{}, 1),
		synced:   make(chan struct{}),
		reported: make(chan struct{}, 1),
	}
	common := newShared()
	everything := func(*metav1.ListOptions) {}
	thisNode := func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName).String()
	}
	var err error
	informer := func(client rest.Interface, resource string, object runtime.Object, options func(*metav1.ListOptions), list observer, notify func()) cache.SharedIndexInformer {
		if err != nil {
			return nil
		}
		var informer cache.SharedIndexInformer
		listWatch := s.retrying(resource, cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, options))
		informer, err = newInformer(resource, listWatch, object, common.strip, changes{list, notify})
		return informer
	}
	secrets := func(namespace string, options func(*metav1.ListOptions), list observer) cache.SharedIndexInformer {
		if err != nil {
			return nil
		}
		var informer cache.SharedIndexInformer
		listWatch := s.retrying("secrets of "+namespace, cache.NewFilteredListWatchFromClient(clients.Core, "secrets", namespace, options))
		informer, err = newInformer("secrets", listWatch, &corev1.Secret{}, common.strip, changes{list, func() { signal(s.events) }})
		return informer
	}
	watch := func(client rest.Interface, resource string, object runtime.Object, options func(*metav1.ListOptions), list observer) cache.SharedIndexInformer {
		return informer(client, resource, object, options, list, func() { signal(s.events) })
	}
	s.services = watch(clients.Core, "services", &corev1.Service{}, everything, &s.objects.services)
	if err == nil {
		s.slices, err = s.watchSlices(common, changes{&s.objects.slices, func() { signal(s.events) }})
	}
	s.nodes = watch(clients.Core, "nodes", &corev1.Node{}, thisNode, &s.objects.nodes)
	s.vips = informer(clients.Millrace, "vips", &millracev1beta1.VIP{}, everything, &s.objects.vips, func() { signal(s.arrivals) })
	s.pools = watch(clients.Millrace, "vippools", &millracev1beta1.VIPPool{}, everything, &s.objects.pools)
	s.lbNodes = watch(clients.Millrace, "lbnodes", &millracev1beta1.LBNode{}, everything, &s.objects.lbNodes)
	s.peers = watch(clients.Millrace, "lbpeers", &millracev1beta1.LBPeer{}, everything, &s.objects.peers)
	s.advertisements = watch(clients.Millrace, "vipadvertisements", &millracev1beta1.VIPAdvertisement{}, everything, &s.objects.advertisements)
	s.routes = watch(clients.Millrace, "viproutes", &millracev1beta1.VIPRoute{}, everything, &s.objects.routes)
	s.secrets = secrets(millracev1beta1.BGPNamespace, everything, &s.objects.secrets)
	s.tunnelKey = secrets(tunnelkey.Namespace, onlyTunnelKey, nil)
	s.report = informer(clients.Millrace, "lbnodereports", &millracev1beta1.LBNodeReport{}, thisNode, nil, func() { signal(s.reported) })
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Source) watchSlices(common *shared, to changes) (cache.SharedIndexInformer, error) {
	const resource = "endpointslices"
	server := cache.NewFilteredListWatchFromClient(s.clients.Discovery, resource, metav1.NamespaceAll, func(*metav1.ListOptions) {})
	if s.clients.Relay == nil {
		return newInformer(resource, s.retrying(resource, server), &discoveryv1.EndpointSlice{}, common.strip, to)
	}
	relayed := relay.NewListWatch(s.clients.Relay, server, common.slimSlice)
	asItIs := func(object any) (any, error) { return object, nil }
	return newInformer(resource, s.retrying(resource, relayed), &discoveryv1.EndpointSlice{}, asItIs, to)
}

func (s *Source) retrying(kind string, listWatch cache.ListerWatcherWithContext) *retryingListWatch {
	return &retryingListWatch{ListerWatcherWithContext: listWatch, kind: kind, tracker: s.tracker}
}

// changes handles the events of a kind: list, which may be nil, gets all events, and notify is then called
// for significant ones.
type changes struct {
	list   observer
	notify func()
}

func newInformer(
	resource string, listWatch cache.ListerWatcher, object runtime.Object, strip cache.TransformFunc, to changes,
) (cache.SharedIndexInformer, error) {
	informer := cache.NewSharedIndexInformer(listWatch, object, 0, cache.Indexers{})
	if err := informer.SetTransform(strip); err != nil {
		return nil, fmt.Errorf("watch %s: %w", resource, err)
	}
	if to.list == nil {
		to.list = noopObserver{}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			to.list.put(object)
			to.notify()
		},
		DeleteFunc: func(object any) {
			to.list.remove(object)
			to.notify()
		},
		UpdateFunc: func(before, after any) {
			to.list.put(after)
			if isRelevant(before, after) {
				to.notify()
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", resource, err)
	}
	to.list.follow(registration.HasSynced)
	return informer, nil
}

func signal(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// Run watches until ctx is done.
func (s *Source) Run(ctx context.Context) error {
	o := &s.objects
	hasSynced := []cache.InformerSynced{
		o.services.isSynced, o.slices.isSynced, o.nodes.isSynced, o.vips.isSynced, o.pools.isSynced,
		o.lbNodes.isSynced, o.peers.isSynced, o.advertisements.isSynced, o.routes.isSynced, s.tunnelKey.HasSynced,
	}
	for _, informer := range []cache.SharedIndexInformer{
		s.services, s.slices, s.nodes, s.vips, s.pools, s.lbNodes, s.peers, s.advertisements, s.routes, s.tunnelKey,
	} {
		go informer.RunWithContext(ctx)
	}
	// The report is only written.
	go s.report.RunWithContext(ctx)
	// Only BGP sessions with a password wait for the Secrets.
	go s.secrets.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), hasSynced...) {
		return ctx.Err()
	}
	close(s.synced)
	signal(s.events)
	return s.coalesce(ctx)
}

// coalesce merges changes in quick succession into one signal of Changed.
func (s *Source) coalesce(ctx context.Context) error {
	timer := time.NewTimer(coalesceDelay)
	timer.Stop()
	// latest is the deadline of the pending signal; zero if no signal is pending.
	var latest time.Time
	pend := func() {
		if latest.IsZero() {
			latest = time.Now().Add(coalesceDelay)
			timer.Reset(coalesceDelay)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.events:
			pend()
		case <-s.arrivals:
			pend()
			timer.Reset(min(vipDelay, time.Until(latest)))
		case <-timer.C:
			latest = time.Time{}
			signal(s.changed)
		}
	}
}

// Changed signals significant changes of the objects after a short delay, first when all kinds are listed.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Synced is closed when all kinds are listed. A Snapshot taken before lacks objects and would remove their
// entries.
func (s *Source) Synced() <-chan struct{} { return s.synced }

// PasswordsRead reports whether the Secrets with passwords are listed. Synced does not wait for them.
func (s *Source) PasswordsRead() bool { return s.objects.secrets.isSynced() }

// Snapshot returns the objects, which are shared and immutable.
func (s *Source) Snapshot() *model.Snapshot {
	o := &s.objects
	snapshot := &model.Snapshot{
		NodeName:       s.nodeName,
		Services:       o.services.list(),
		EndpointSlices: o.slices.list(),
		VIPs:           o.vips.list(),
		Pools:          o.pools.list(),
		LBNodes:        o.lbNodes.list(),
		Peers:          o.peers.list(),
		Advertisements: o.advertisements.list(),
		Routes:         o.routes.list(),
		Passwords:      map[string]string{},
		TunnelKey:      s.tunnelSecret(),
	}
	for _, secret := range o.secrets.list() {
		snapshot.Passwords[secret.Name] = string(secret.Data[desired.PasswordKey])
	}
	if nodes := o.nodes.list(); len(nodes) > 0 {
		snapshot.Node = nodes[0]
	}
	return snapshot
}

// LBNode returns this node's cached, immutable LBNode, or nil.
func (s *Source) LBNode() *millracev1beta1.LBNode {
	return named[*millracev1beta1.LBNode](s.lbNodes, s.nodeName)
}

// Report returns this node's cached, immutable LBNodeReport, or nil.
func (s *Source) Report() *millracev1beta1.LBNodeReport {
	return named[*millracev1beta1.LBNodeReport](s.report, s.nodeName)
}

// Reported signals changes of this node's LBNodeReport.
func (s *Source) Reported() <-chan struct{} { return s.reported }

func named[T any](informer cache.SharedIndexInformer, name string) (object T) {
	stored, exists, err := informer.GetStore().GetByKey(name)
	if err == nil && exists {
		object, _ = stored.(T)
	}
	return object
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
