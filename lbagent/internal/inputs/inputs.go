// SPDX-License-Identifier: Apache-2.0

// Package inputs has what a pass works by: the API server's objects or those of the checkpoint,
// with what the node does not believe of them, and with what it knows of other nodes and networks
// itself.
package inputs

import (
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/readiness"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
	"github.com/millrace-lb/millrace/lbagent/internal/retention"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

// Inputs has what passes work by. Only they use it.
type Inputs struct {
	// Objects returns those of the API server or of the checkpoint.
	Objects func() *model.Snapshot
	// Guard keeps objects that were removed many at once; nil where nothing does.
	Guard *removalguard.Guard
	// Readiness has endpoints served that turned unready with most others; nil where nothing does.
	Readiness *readiness.Threshold
	// Retention retains endpoints that left without terminating. It may be nil.
	Retention *retention.Retainer
	// IsAddressGone reports whether no pod of this node has an address. Retention alone uses it.
	IsAddressGone func(address netip.Addr) bool
	// Networks are those around the node; nil finds none.
	Networks *uplink.Networks
	Logger   logr.Logger

	held    []removalguard.Held
	unready readiness.Served
}

// New returns inputs that guard removals for a while. They go on with the objects of the agent
// before, previous, which are nil where they are not known.
func New(
	objects func() *model.Snapshot, previous *model.Snapshot, hold time.Duration, networks *uplink.Networks, logger logr.Logger,
) *Inputs {
	i := &Inputs{
		Objects: objects, Guard: removalguard.New(hold, previous), Readiness: readiness.New(nil), Networks: networks, Logger: logger,
	}
	if previous != nil {
		i.Readiness = readiness.New(previous.EndpointSlices)
	}
	return i
}

// Nodes is what is known of the other nodes.
type Nodes interface {
	// Answers reports whether a node answers, by its name. It is nil where none is asked.
	Answers(objects *model.Snapshot) func(node string) bool
	// See returns the objects with the nodes that are down, and without endpoints that their nodes cannot
	// have programmed.
	See(objects *model.Snapshot, now time.Time) *model.Snapshot
}

// Read is what one pass works by.
type Read struct {
	// Objects are those to work by, Believed the same without what the node saw itself: what the
	// next agent may go on with.
	Objects, Believed *model.Snapshot
	// Held are the objects whose removal is held, Unready the endpoints that are served unready.
	Held    []removalguard.Held
	Unready readiness.Served
	// Again is after how long there may be other objects; zero means there is no such time.
	Again time.Duration
	// NetworksErr is why the networks are those of before; nil where they could be read.
	NetworksErr error
}

// Read returns what a pass works by.
func (i *Inputs) Read(nodes Nodes, now time.Time) Read {
	objects, again := i.ready(nodes, now)
	objects, wait := i.retain(objects, now)
	again = wake.Soonest(again, wait)
	if i.Guard != nil {
		guarded, held, wait := i.Guard.Advance(objects, now)
		i.logHeld(held)
		objects, i.held, again = guarded, held, wake.Soonest(again, wait)
	}
	read := Read{Objects: nodes.See(objects, now), Believed: objects, Held: i.held, Unready: i.unready, Again: again}
	read.NetworksErr = i.Networks.Add(read.Objects)
	return read
}

// ready returns the objects with the endpoints as ready ones that are served though they are not
// ready. Without probes nothing tells that it is Kubernetes which is wrong about them.
func (i *Inputs) ready(nodes Nodes, now time.Time) (*model.Snapshot, time.Duration) {
	objects := i.Objects()
	if listed := retention.Listed(objects.EndpointSlices); len(listed) < len(objects.EndpointSlices) {
		// Objects of the checkpoint.
		withoutRetained := *objects
		withoutRetained.EndpointSlices = listed
		objects = &withoutRetained
	}
	answers := nodes.Answers(objects)
	if i.Readiness == nil || answers == nil {
		return objects, 0
	}
	result := *objects
	slices, served, again := i.Readiness.Advance(objects.EndpointSlices, answers, now)
	result.EndpointSlices = slices
	before := i.unready
	i.unready = served
	switch {
	case served.Endpoints > 0 && before.Endpoints == 0:
		i.Logger.Info("Most endpoints of most Services turned unready at once, and their nodes answer: the last ready ones are served",
			"endpoints", served.Endpoints, "services", served.Services)
	case served.Endpoints == 0 && before.Endpoints > 0:
		i.Logger.Info("No endpoint is served any more that is not ready")
	}
	return &result, again
}

// retain returns the objects with the EndpointSlices of retained endpoints, and the time until they may
// be others.
func (i *Inputs) retain(objects *model.Snapshot, now time.Time) (*model.Snapshot, time.Duration) {
	if i.Retention == nil {
		return objects, 0
	}
	result := *objects
	var again time.Duration
	result.EndpointSlices, again = i.Retention.Advance(objects.EndpointSlices, retention.Cluster{
		IsServed: isServed(objects), Node: objects.NodeName,
		IsGone: func(text string) bool {
			address, err := netip.ParseAddr(text)
			return err == nil && i.IsAddressGone(address)
		},
	}, now)
	return &result, again
}

// Retained returns the retained endpoints of the last Read.
func (i *Inputs) Retained() (counts retention.Counts) {
	if i.Retention != nil {
		counts = i.Retention.Counts()
	}
	return counts
}

// isServed returns a function that reports whether a VIP leads to the endpoints of a Service, by its
// own claim or by a VIPRoute. The first call reads the objects.
func isServed(objects *model.Snapshot) func(types.NamespacedName) bool {
	var served map[types.NamespacedName]bool
	read := func() {
		served = map[types.NamespacedName]bool{}
		for _, vip := range objects.VIPs {
			for i := range vip.Spec.Claims {
				served[types.NamespacedName{Namespace: vip.Spec.Claims[i].Namespace, Name: vip.Spec.Claims[i].Name}] = true
			}
		}
		for _, route := range objects.Routes {
			ports, _ := desired.ParseRoute(route)
			for i := range ports {
				for j := range ports[i].Backends {
					served[ports[i].Backends[j].Service] = true
				}
			}
		}
	}
	return func(service types.NamespacedName) bool {
		if served == nil {
			read()
		}
		return served[service]
	}
}

// logHeld tells of kinds that begin or end to be held.
func (i *Inputs) logHeld(held []removalguard.Held) {
	before, present := map[string]bool{}, map[string]bool{}
	for _, h := range i.held {
		before[h.Kind] = true
	}
	for _, h := range held {
		present[h.Kind] = true
		if !before[h.Kind] {
			i.Logger.Info("Objects were removed many at once: they count as present for a while",
				"kind", h.Kind, "objects", h.Count, "until", h.Until)
		}
	}
	for kind := range before {
		if !present[kind] {
			i.Logger.Info("No removed objects count as present any more", "kind", kind)
		}
	}
}
