// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Problem is why something of the model is not in the plan.
type Problem struct {
	model.Problem
	// Full is the capacity that has no room for it; zero where that is not why.
	Full forwarding.Capacity
}

// full notes that a capacity has no room for what the subject names.
func (d *draft) full(object model.ObjectReference, subject string, capacity forwarding.Capacity) {
	d.fullFor(object, subject+": not or not wholly programmed", capacity, "")
}

// fullFor is full with what comes of it, and what else there is to say of the room.
func (d *draft) fullFor(object model.ObjectReference, effect string, capacity forwarding.Capacity, remark string) {
	d.problems = append(d.problems, Problem{
		Problem: model.Problem{
			Object:  object,
			Reason:  millracev1alpha1.ReasonMapFull,
			Message: fmt.Sprintf("%s, a node has room for %s%s", effect, capacity.Count(d.limits.Of(capacity)), remark),
		},
		Full: capacity,
	})
}

func (d *draft) frontendFull(frontend *model.Frontend, capacity forwarding.Capacity) {
	d.full(serviceOf(frontend), fmt.Sprintf("frontend %s", frontend.Key), capacity)
}

func (d *draft) sourcesFull(frontend *model.Frontend) {
	d.fullFor(serviceOf(frontend), fmt.Sprintf("frontend %s: not programmed, or nobody is let in", frontend.Key),
		forwarding.SourceRanges, ", of which a namespace gets half")
}

func (d *draft) zonesFull(frontend *model.Frontend) {
	d.fullFor(serviceOf(frontend),
		fmt.Sprintf("frontend %s: its clients get all endpoints and not those of the zone", frontend.Key),
		forwarding.NodeTables, ", and each zone takes one")
}

func (d *draft) localFull(frontend *model.Frontend) {
	d.fullFor(serviceOf(frontend),
		fmt.Sprintf("frontend %s: a connection that a router moves to another node is reset", frontend.Key),
		forwarding.NodeTables, ", and Services of policy Local get what others leave")
}

// sameHash tells of a frontend that is left out. Its address was chosen for that, or it is one
// case in 2^64.
func (d *draft) sameHash(frontend *model.Frontend, other forwarding.FrontendKey) {
	d.problems = append(d.problems, Problem{Problem: model.Problem{
		Object: serviceOf(frontend),
		Reason: millracev1alpha1.ReasonUnsupported,
		Message: fmt.Sprintf("frontend %s: not programmed, its address and port have the same hash as those of %s; give one of the two another address or port",
			frontend.Key, other),
	}})
}

func serviceOf(frontend *model.Frontend) model.ObjectReference {
	return model.ObjectReference{Kind: "Service", Namespace: frontend.Service.Namespace, Name: frontend.Service.Name}
}
