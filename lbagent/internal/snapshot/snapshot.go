// SPDX-License-Identifier: Apache-2.0

// Package snapshot assembles the input of a pass: objects from the API server or the checkpoint, after the
// removal and readiness guards, and local observations of nodes and networks.
package snapshot

import (
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/lbagent/internal/readiness"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
	"github.com/millrace-lb/millrace/lbagent/internal/retention"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
)

// Assembler assembles the input of passes and is used by passes only.
type Assembler struct {
	Objects func() *model.Snapshot
	// Guard holds mass removals; nil disables it.
	Guard *removalguard.Guard
	// Readiness marks endpoints ready after a mass failure; nil disables it.
	Readiness *readiness.Threshold
	// Retention retains endpoints that left without terminating; nil disables it.
	Retention *retention.Retainer
	// IsAddressGone reports whether no local pod has the address; used by Retention.
	IsAddressGone func(address netip.Addr) bool
	Networks      *uplink.Networks
	Logger        logr.Logger

	held    []removalguard.Held
	unready readiness.Served
}

// New returns an Assembler that holds removals and continues from the previous agent's state.
func New(
	objects func() *model.Snapshot, previous *model.Snapshot, hold time.Duration, networks *uplink.Networks, logger logr.Logger,
) *Assembler {
	i := &Assembler{Objects: objects, Readiness: readiness.New(nil), Networks: networks, Logger: logger}
	if previous != nil {
		previous = withoutRetained(previous)
		i.Readiness = readiness.New(previous.EndpointSlices)
	}
	i.Guard = removalguard.New(hold, previous)
	return i
}

// Nodes provides the state of the other nodes.
type Nodes interface {
	// Answers returns a function that reports whether a node answers probes, or nil if probing is disabled.
	Answers(objects *model.Snapshot) func(node string) bool
	// Annotate marks down nodes and removes endpoints that their nodes cannot have programmed.
	Annotate(objects *model.Snapshot, now time.Time) *model.Snapshot
}

// Input is the input of one pass.
type Input struct {
	// Objects is the input of the model; Checkpoint, without local observations, is saved for the next agent.
	Objects, Checkpoint *model.Snapshot
	Held                []removalguard.Held
	Unready             readiness.Served
	// RequeueAfter is the delay until the input may change by time alone; 0 if it does not.
	RequeueAfter time.Duration
	NetworksErr  error
}

// Assemble assembles the input of a pass.
func (i *Assembler) Assemble(nodes Nodes, now time.Time) Input {
	objects, again := i.ready(nodes, now)
	if i.Guard != nil {
		guarded, held, wait := i.Guard.Advance(objects, now)
		i.logHeld(held)
		objects, i.held, again = guarded, held, notify.Soonest(again, wait)
	}
	objects, wait := i.retain(objects, now)
	again = notify.Soonest(again, wait)
	read := Input{Objects: nodes.Annotate(objects, now), Checkpoint: objects, Held: i.held, Unready: i.unready, RequeueAfter: again}
	if seen := read.Objects.EndpointSlices; !delta.IsSame(seen, objects.EndpointSlices) {
		// The next agent must withhold the same endpoints.
		checkpoint := *objects
		checkpoint.EndpointSlices = seen
		read.Checkpoint = &checkpoint
	}
	read.NetworksErr = i.Networks.Add(read.Objects)
	return read
}

// ready marks the endpoints ready that the readiness threshold serves. It requires probes as evidence
// against Kubernetes.
func (i *Assembler) ready(nodes Nodes, now time.Time) (*model.Snapshot, time.Duration) {
	objects := withoutRetained(i.Objects())
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
		i.Logger.Info("Unready endpoints are no longer served")
	}
	return &result, again
}

func withoutRetained(objects *model.Snapshot) *model.Snapshot {
	listed := retention.Listed(objects.EndpointSlices)
	if len(listed) == len(objects.EndpointSlices) {
		return objects
	}
	result := *objects
	result.EndpointSlices = listed
	return &result
}

func (i *Assembler) retain(objects *model.Snapshot, now time.Time) (*model.Snapshot, time.Duration) {
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

// Retained returns the counts of retained endpoints after the last Assemble.
func (i *Assembler) Retained() (counts retention.Counts) {
	if i.Retention != nil {
		counts = i.Retention.Counts()
	}
	return counts
}

// isServed returns a function that reports whether a claim or VIPRoute leads to the Service. It indexes the
// objects on its first call.
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

func (i *Assembler) logHeld(held []removalguard.Held) {
	before, present := map[string]bool{}, map[string]bool{}
	for _, h := range i.held {
		before[h.Kind] = true
	}
	for _, h := range held {
		present[h.Kind] = true
		if !before[h.Kind] {
			i.Logger.Info("Objects were removed in bulk and are retained temporarily",
				"kind", h.Kind, "objects", h.Count, "until", h.Until)
		}
	}
	for kind := range before {
		if !present[kind] {
			i.Logger.Info("Removed objects are no longer retained", "kind", kind)
		}
	}
}
