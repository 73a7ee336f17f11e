// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Problem is the reason why a part of the model is missing from the plan.
type Problem struct {
	model.Problem
	// Full is the exhausted capacity; zero for other reasons.
	Full   forwarding.Capacity
	yields bool
}

func (b *builder) full(object model.ObjectReference, subject string, capacity forwarding.Capacity) {
	b.problems = append(b.problems, Problem{
		Problem: model.Problem{
			Object: object, Reason: millracev1beta1.ReasonMapFull,
			Message: fmt.Sprintf("%s: %s, a node has room for %s", subject, partly, capacity.Count(b.limits.Of(capacity))),
		},
		Full: capacity,
	})
}

const partly = "not or only partly programmed"

// shortage groups the frontends of a Service that lack the same capacity with the same effect. remark is
// appended to the message.
type shortage struct {
	service        model.ServiceName
	capacity       forwarding.Capacity
	effect, remark string
}

type affected struct {
	first forwarding.FrontendKey
	count int
}

func (b *builder) addShortage(frontend *model.Frontend, capacity forwarding.Capacity, effect, remark string) {
	of := shortage{frontend.Service, capacity, effect, remark}
	known := b.shortages[of]
	if known == nil {
		known = &affected{first: frontend.Key}
		b.shortages[of] = known
	}
	known.count++
}

// allProblems returns the recorded problems, one per shortage: a Service may have thousands of frontends.
func (b *builder) allProblems() []Problem {
	for of, frontends := range b.shortages {
		b.problems = append(b.problems, Problem{
			Problem: model.Problem{
				Object:  model.ObjectReference{Kind: "Service", Namespace: of.service.Namespace, Name: of.service.Name},
				Reason:  millracev1beta1.ReasonMapFull,
				Message: fmt.Sprintf("%s: %s, a node has room for %s%s", frontends, of.effect, of.capacity.Count(b.limits.Of(of.capacity)), of.remark),
			},
			Full: of.capacity, yields: of.effect == lost,
		})
	}
	clear(b.shortages)
	return b.problems
}

func compareProblems(a, b Problem) int {
	return cmp.Or(
		cmp.Compare(a.Object.Kind, b.Object.Kind), cmp.Compare(a.Object.Namespace, b.Object.Namespace),
		cmp.Compare(a.Object.Name, b.Object.Name), cmp.Compare(a.Message, b.Message))
}

func (a *affected) String() string {
	if a.count == 1 {
		return fmt.Sprintf("frontend %s", a.first)
	}
	return fmt.Sprintf("frontend %s and %d more", a.first, a.count-1)
}

func (b *builder) frontendFull(frontend *model.Frontend, capacity forwarding.Capacity) {
	b.addShortage(frontend, capacity, partly, "")
}

func (b *builder) sourcesFull(frontend *model.Frontend) {
	b.addShortage(frontend, forwarding.SourceRanges, "not programmed, or admits no client", ", and a namespace can use half")
}

func (b *builder) zonesFull(frontend *model.Frontend) {
	b.addShortage(frontend, forwarding.NodeTables, "its clients use all endpoints instead of those of the zone", ", and each zone needs one")
}

// lost is the effect of a missing node table on a Service port of policy Local.
const lost = "a connection that a router moves to another node is reset"

func (b *builder) localFull(frontend *model.Frontend) {
	b.addShortage(frontend, forwarding.NodeTables, lost,
		", and Services of policy Local use the remainder")
}

// sameHash records that a frontend is left out because of a hash collision. Unless the address was chosen
// for that, its probability is 2^-64.
func (b *builder) sameHash(frontend *model.Frontend, other forwarding.FrontendKey) {
	b.problems = append(b.problems, Problem{Problem: model.Problem{
		Object: serviceOf(frontend),
		Reason: millracev1beta1.ReasonUnsupported,
		Message: fmt.Sprintf("frontend %s: not programmed, its address and port have the same hash as those of %s; change the address or port of one of them",
			frontend.Key, other),
	}})
}

func serviceOf(frontend *model.Frontend) model.ObjectReference {
	return model.ObjectReference{Kind: "Service", Namespace: frontend.Service.Namespace, Name: frontend.Service.Name}
}
