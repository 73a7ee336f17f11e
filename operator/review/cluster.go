// SPDX-License-Identifier: Apache-2.0

package review

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Objects are the manifests of a cluster to analyze.
type Objects struct {
	// Class selects the Services of the operator.
	Class          desired.Class
	Pools          []millracev1beta1.VIPPool
	VIPs           []millracev1beta1.VIP
	Peers          []millracev1beta1.LBPeer
	Advertisements []millracev1beta1.VIPAdvertisement
	Routes         []millracev1beta1.VIPRoute
	Services       []corev1.Service
	Nodes          []corev1.Node
	Reports        []millracev1beta1.LBNodeReport
	ServiceCIDRs   []networkingv1.ServiceCIDR
	Namespaces     []corev1.Namespace
	Secrets        []corev1.Secret
	// AssumeSecrets assumes that each Secret named by an LBPeer has a valid password.
	AssumeSecrets bool
}

// A Result is the outcome of applying the objects.
type Result struct {
	VIPs     []millracev1beta1.VIP
	Problems []desired.Problem
	// Remarks are messages about checks that were not possible and surprising results.
	Remarks []string
}

// Reasons of millrace analyze: problems that only this command reports. All others are reasons of conditions
// and of routes.
const (
	// ReasonRejected: the API server would reject the object or a field of it.
	ReasonRejected = "Rejected"
	// ReasonDuplicate: an older object has the same settings.
	ReasonDuplicate = "Duplicate"
	// ReasonServiceMismatch: the Service of a VIPRoute does not exist, is of another type, or does not
	// have the port.
	ReasonServiceMismatch = "ServiceMismatch"
	// ReasonBackendNotFound: a backend Service of a VIPRoute, or its port, does not exist. Its share of
	// connections is refused.
	ReasonBackendNotFound = "BackendNotFound"
	// ReasonNoMatch: a selector or a list of names matches no object.
	ReasonNoMatch = "NoMatch"
	// ReasonNoEffect: a field, class, annotation or label has no effect; the message has the correct one.
	ReasonNoEffect = "NoEffect"
)

// Cluster reviews all objects of a cluster together.
func Cluster(objects *Objects) *Result {
	c := newCluster(objects)
	c.pools()
	c.peers()
	c.advertisements()
	state := c.state()
	for i := range objects.VIPs {
		c.add(VIP(&objects.VIPs[i], state)...)
	}
	c.routes()
	c.services()
	c.conflicts()
	return &c.result
}

type cluster struct {
	*Objects
	occupied   []desired.Occupied
	namespaces map[string]labels.Set
	labels     map[types.NamespacedName]labels.Set
	routers    []desired.Peer
	advertised []desired.Advertisement
	result     Result
}

func newCluster(objects *Objects) *cluster {
	c := &cluster{
		Objects: objects, namespaces: map[string]labels.Set{}, labels: map[types.NamespacedName]labels.Set{},
		occupied: Occupied(objects.Nodes, objects.Peers, objects.ServiceCIDRs),
	}
	for i := range objects.Namespaces {
		namespace := &objects.Namespaces[i]
		c.namespaces[namespace.Name] = withName(namespace.Name, namespace.Labels)
	}
	for i := range objects.Services {
		service := &objects.Services[i]
		c.labels[types.NamespacedName{Namespace: service.Namespace, Name: service.Name}] = service.Labels
	}
	return c
}

// withName adds the label that the API server sets on namespaces.
func withName(name string, of labels.Set) labels.Set {
	return labels.Merge(of, labels.Set{corev1.LabelMetadataName: name})
}

func (c *cluster) add(problems ...desired.Problem) {
	c.result.Problems = append(c.result.Problems, problems...)
}

func (c *cluster) warn(object desired.Object, reason string, messages ...string) {
	for _, message := range messages {
		c.add(desired.Problem{Object: object, Reason: reason, Message: message})
	}
}

func (c *cluster) warnf(format string, arguments ...any) {
	c.result.Remarks = append(c.result.Remarks, fmt.Sprintf(format, arguments...))
}

// Occupied returns the addresses of nodes, pods, routers and Services.
func Occupied(nodes []corev1.Node, peers []millracev1beta1.LBPeer, networks []networkingv1.ServiceCIDR) []desired.Occupied {
	var occupied []desired.Occupied
	for i := range nodes {
		occupied = append(occupied, desired.OccupiedByNode(&nodes[i])...)
	}
	for i := range peers {
		occupied = append(occupied, desired.OccupiedByPeer(&peers[i])...)
	}
	for i := range networks {
		occupied = append(occupied, desired.OccupiedByServiceCIDR(&networks[i])...)
	}
	return occupied
}

// Uplinks returns the names of the uplinks of nodes.
func Uplinks(reports []millracev1beta1.LBNodeReport) (names []string) {
	for i := range reports {
		for _, uplink := range reports[i].Status.Interfaces {
			names = append(names, uplink.Name)
		}
	}
	return names
}

func (c *cluster) state() *State {
	return &State{
		Pools: c.Pools, VIPs: c.VIPs, Peers: c.Peers, Advertisements: c.Advertisements,
		Occupied: c.occupied, Namespaces: c.namespaces, Nodes: c.Nodes, Interfaces: Uplinks(c.Reports),
	}
}

func (c *cluster) pools() {
	usable, problems := desired.Pools(c.Pools, desired.NewOccupation(c.occupied))
	c.add(problems...)
	state := c.state()
	advertisements, peers := valid(c.Advertisements, desired.ParseAdvertisement), valid(c.Peers, desired.ParsePeer)
	for i := range c.Pools {
		c.add(settings(&c.Pools[i], state)...)
	}
	for i := range usable {
		name := desired.Object{Kind: "VIPPool", Name: usable[i].Name}
		c.add(usable[i].Limits...)
		c.warn(name, millracev1beta1.ReasonQuotaExceeded, exceeded(&usable[i], state)...)
		c.warn(name, millracev1beta1.ReasonNoPeer, prefixed("spec.addresses", unannouncedFamilies(&usable[i], advertisements, peers))...)
	}
}

func (c *cluster) peers() {
	c.add(desired.Peers(c.Peers)...)
	state := c.state()
	secrets := map[string]*corev1.Secret{}
	for i := range c.Secrets {
		if secret := &c.Secrets[i]; secret.Namespace == millracev1beta1.BGPNamespace {
			secrets[secret.Name] = secret
		}
	}
	for i := range c.Peers {
		object := &c.Peers[i]
		name := desired.Object{Kind: "LBPeer", Name: object.Name}
		if reference := object.Spec.PasswordSecretRef; reference != nil && !c.AssumeSecrets {
			c.warn(name, millracev1beta1.ReasonInvalid, Password(object, secrets[reference.Name])...)
		}
		c.add(Peer(object, state)...)
	}
	c.routers = valid(c.Peers, desired.ParsePeer)
	slices.SortFunc(c.routers, func(a, b desired.Peer) int { return cmp.Compare(a.Name, b.Name) })
}

// anyNode reports whether all selectors match a common Node, or there are no Nodes.
func (s *State) anyNode(selectors ...labels.Selector) bool {
	return len(s.Nodes) == 0 || slices.ContainsFunc(s.Nodes, func(node corev1.Node) bool {
		return !slices.ContainsFunc(selectors, func(selector labels.Selector) bool { return !selector.Matches(labels.Set(node.Labels)) })
	})
}

func (c *cluster) advertisements() {
	state := c.state()
	for i := range c.Advertisements {
		c.add(Advertisement(&c.Advertisements[i], state)...)
	}
	c.advertised = valid(c.Advertisements, desired.ParseAdvertisement)
	slices.SortFunc(c.advertised, func(a, b desired.Advertisement) int { return cmp.Compare(a.Name, b.Name) })
}

func (c *cluster) conflicts() {
	all := c.advertisedVIPs()
	nodes := []labels.Set{}
	for i := range c.Nodes {
		nodes = append(nodes, c.Nodes[i].Labels)
	}
	if len(nodes) == 0 {
		nodes = []labels.Set{nil}
	}
	found := desired.Conflicts(c.advertised, c.routers, nodes, slices.Values(all))
	for i := range c.advertised {
		advertisement := &c.advertised[i]
		name := desired.Object{Kind: "VIPAdvertisement", Name: advertisement.Name}
		if conflict, is := found[advertisement.Name]; is {
			c.warn(name, millracev1beta1.ReasonAttributeConflict, conflict.Message())
		}
		selected := slices.ContainsFunc(all, func(vip desired.AdvertisedVIP) bool { return advertisement.Selects(vip.Pool, vip.Services) })
		if len(all) > 0 && !selected && !c.isReported(name) {
			c.warn(name, ReasonNoMatch, "selects no VIP that the Services would get: check its pools and serviceSelector")
		}
	}
}

func (c *cluster) isReported(object desired.Object) bool {
	return slices.ContainsFunc(c.result.Problems, func(problem desired.Problem) bool { return problem.Object == object })
}

func valid[O, T any](objects []O, parse func(*O) (T, []desired.Problem)) []T {
	var found []T
	for i := range objects {
		if one, problems := parse(&objects[i]); len(problems) == 0 {
			found = append(found, one)
		}
	}
	return found
}
