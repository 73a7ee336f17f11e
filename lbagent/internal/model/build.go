// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Reasons of problems that agents find: these are in the message of the condition Programmed and in the log.
const (
	// ReasonDuplicate: an older object already has the same value.
	ReasonDuplicate = "Duplicate"
	// ReasonServiceMismatch: the Service of a VIP's claim does not exist, has another UID, is not of type
	// LoadBalancer, or has another load balancer class.
	ReasonServiceMismatch = "ServiceMismatch"
	// ReasonUnknownNode: an endpoint's node is unknown or has no LBNode.
	ReasonUnknownNode = "UnknownNode"
	// ReasonIgnored: an unsupported setting of a Service is ignored.
	ReasonIgnored = "Ignored"
	// ReasonBackendNotFound: the backend Service of a VIPRoute, or its port, does not exist. Connections for its
	// share are refused.
	ReasonBackendNotFound = "BackendNotFound"
	// ReasonNotAggregated: VIPs are announced individually, because the requested aggregate contains foreign
	// addresses.
	ReasonNotAggregated = "NotAggregated"
	// ReasonNoGateway: an LBPeer refers to the node's default gateway, and the node does not have exactly one.
	ReasonNoGateway = "NoGateway"
	// ReasonNoRouter: the interface of an LBPeer does not exist on the node, or no router was found on it.
	ReasonNoRouter = "NoRouter"
	// ReasonNoAddress: an LBNode has no usable address.
	ReasonNoAddress = "NoAddress"
)

// Build returns the Model of a snapshot. An invalid object, or the invalid part of it, is left out with a
// Problem; other objects are unaffected. The result does not depend on the order of objects.
func Build(s *Snapshot) *Model { return build(s, &previous{}) }

func build(s *Snapshot, last *previous) *Model {
	b := builder{snapshot: s, model: &Model{}, previous: last}
	b.addCanaries()
	b.buildNodes()
	b.model.CutOff = s.CutOff
	b.buildPools()
	b.buildVIPs()
	b.buildPeers()
	b.buildAdvertisements()
	b.buildAggregates()
	slices.SortFunc(b.model.Problems, Problem.compare)
	b.model.Problems = slices.Compact(b.model.Problems)
	return b.model
}

type builder struct {
	snapshot *Snapshot
	model    *Model
	previous *previous
	// nodes are the usable nodes by name, zones their zones.
	nodes map[string]Node
	zones map[string]string
	// moved are the names of nodes that changed since the last Model.
	moved map[string]bool
	// repooled reports whether an address joined or left the pools since the last Model, or is nil.
	repooled  func(netip.Addr) bool
	occupants map[netip.Addr]desired.Occupied
	// tooManyZones is the number of zones if it exceeds the limit, else 0.
	tooManyZones int
}

func (b *builder) problem(object ObjectReference, reason, format string, args ...any) {
	b.model.Problems = append(b.model.Problems, Problem{
		Object: object, Reason: reason, Message: fmt.Sprintf(format, args...),
	})
}

func (b *builder) invalid(object ObjectReference, err error) {
	b.problem(object, millracev1beta1.ReasonInvalid, "%v", err)
}

func (b *builder) reported(problems []desired.Problem) bool {
	for _, problem := range problems {
		object := ObjectReference{Kind: problem.Object.Kind, Namespace: problem.Object.Namespace, Name: problem.Object.Name}
		b.problem(object, problem.Reason, "%s", problem.Message)
	}
	return len(problems) > 0
}

func (p Problem) compare(other Problem) int {
	return cmp.Or(
		cmp.Compare(p.Object.Kind, other.Object.Kind),
		cmp.Compare(p.Object.Namespace, other.Object.Namespace),
		cmp.Compare(p.Object.Name, other.Object.Name),
		cmp.Compare(p.Reason, other.Reason),
		cmp.Compare(p.Message, other.Message),
	)
}

func (n ServiceName) compare(other ServiceName) int {
	return cmp.Or(cmp.Compare(n.Namespace, other.Namespace), cmp.Compare(n.Name, other.Name))
}

// String returns namespace/name.
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

func (n ServiceName) reference() ObjectReference {
	return ObjectReference{Kind: "Service", Namespace: n.Namespace, Name: n.Name}
}
