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

// Reasons of problems that agents find: in the message of Programmed, and in the log, beside those of
// conditions.
const (
	// ReasonDuplicate: another, older object already has what this one says.
	ReasonDuplicate = "Duplicate"
	// ReasonServiceMismatch: a VIP's claim names a Service that does not
	// exist, is another one by its UID, is not of type LoadBalancer, or not of
	// our load balancer class.
	ReasonServiceMismatch = "ServiceMismatch"
	// ReasonUnknownNode: an endpoint is on no node that has an LBNode, or its node is not
	// known.
	ReasonUnknownNode = "UnknownNode"
	// ReasonIgnored: a Service asks for something that cannot be done here, and is
	// served without it.
	ReasonIgnored = "Ignored"
	// ReasonBackendInvalid: a VIPRoute leads to a Service that does not exist, or not with
	// that port. Its share is refused.
	ReasonBackendInvalid = "BackendInvalid"
	// ReasonNotAggregated: VIPs are announced one by one, as the aggregate that an
	// advertisement asks for has addresses of others.
	ReasonNotAggregated = "NotAggregated"
	// ReasonNoGateway: an LBPeer is the node's gateway, and the node has none, or several.
	ReasonNoGateway = "NoGateway"
	// ReasonNoAddress: an LBNode has no address to reach the node by.
	ReasonNoAddress = "NoAddress"
)

// Build returns the Model of a snapshot. What is wrong with an object is
// among the Problems and leaves out that object, or the part of it that is
// wrong, and nothing else. The result depends on the objects alone, not on
// their order in the snapshot.
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

// builder holds what the steps of Build share.
type builder struct {
	snapshot *Snapshot
	model    *Model
	previous *previous
	// nodes are the usable nodes by name.
	nodes map[string]Node
	// zones are their zones by name.
	zones map[string]string
	// moved are the names of those that are not as in the last Model.
	moved map[string]bool
	// repooled reports whether an address is in the pools now or was in the last Model, and not both;
	// nil where none is.
	repooled func(netip.Addr) bool
	// occupants are the nodes and routers by their addresses.
	occupants map[netip.Addr]desired.Occupied
	// tooManyZones is how many zones there are where that is more than can be.
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

// reported reports whether there are problems, which it adds to the model's.
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
