// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/credentials"
	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// maxRounds bounds builds per update. A round replaces all faulty resources of a step, each with at most four
// forms.
const maxRounds = 64

type rejected struct {
	wanted   *resource.Resource
	refusals []*resource.Refusal
	// failing objects have no previous version: their rules answer 500.
	failing map[string]bool
}

func refusals(of map[string]*rejected) []*resource.Refusal {
	var all []*resource.Refusal
	for _, each := range of {
		all = append(all, each.refusals...)
	}
	slices.SortFunc(all, func(a, b *resource.Refusal) int {
		return cmp.Or(strings.Compare(a.GetResource(), b.GetResource()), strings.Compare(a.GetRoute(), b.GetRoute()),
			strings.Compare(a.GetReason(), b.GetReason()))
	})
	return all
}

// fallback determines the servable part of an update, with faulty resources in a previous or reduced form. A
// replacement never admits requests that the resource would reject: in doubt they get 500 or no answer.
type fallback struct {
	old     *table
	version string
	whole   bool
	// now contains the resources to apply, nil for those to remove.
	now map[string]*resource.Resource
	// wanted contains the original versions.
	wanted map[string]*resource.Resource
	// step is the current form of a replaced resource.
	step            map[string]form
	before, refused map[string]*rejected
}

// form is a replacement for a faulty resource, tried in order.
type form int

const (
	formPrevious form = iota
	formPart
	formRefusing
	formNone
)

// newFallback starts with the update and the previously rejected resources, which may have become valid.
func newFallback(old *table, before map[string]*rejected, update Update) *fallback {
	s := &fallback{
		old: old, version: update.Version, whole: update.Whole,
		now: make(map[string]*resource.Resource, len(update.Resources)), wanted: map[string]*resource.Resource{},
		step: map[string]form{}, before: before, refused: map[string]*rejected{},
	}
	if !update.Whole {
		for name, each := range before {
			s.now[name] = each.wanted
		}
	}
	for _, name := range update.Removed {
		s.now[name] = nil
	}
	for _, r := range update.Resources {
		s.now[r.GetName()] = r
	}
	return s
}

func (s *fallback) update() Update {
	update := Update{Version: s.version, Whole: s.whole, Resources: make([]*resource.Resource, 0, len(s.now))}
	for name, r := range s.now {
		if r != nil {
			update.Resources = append(update.Resources, r)
		} else {
			update.Removed = append(update.Removed, name)
		}
	}
	return update
}

func (s *fallback) find(name string) *resource.Resource {
	if r, known := s.now[name]; known || s.whole {
		return r
	}
	return s.old.resources[name]
}

func (s *fallback) list() []*resource.Refusal { return refusals(s.refused) }

func (s *fallback) reasons() string {
	texts := make([]string, 0, len(s.refused))
	for _, each := range s.list() {
		texts = append(texts, each.GetReason())
	}
	return strings.Join(texts, "; ")
}

// replaceFaulty replaces the faulty resources and reports whether another build is useful.
func (s *fallback) replaceFaulty(err error) bool {
	var found faults
	if !errors.As(err, &found) {
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		current := s.find(name)
		if current == nil {
			return false
		}
		if s.refused[name] == nil {
			s.refused[name] = &rejected{wanted: current}
		}
		s.replace(name, current, found[name])
	}
	return true
}

func (s *fallback) replace(name string, current *resource.Resource, fault error) {
	of := s.refused[name]
	for step := s.step[name]; ; step++ {
		next := s.form(of, step, fault)
		if step == formNone || next != nil && !proto.Equal(next, current) {
			s.now[name], s.step[name] = next, step
			return
		}
	}
}

// form returns nil if a form does not apply to the resource, and updates the rejections.
func (s *fallback) form(of *rejected, step form, fault error) *resource.Resource {
	name := of.wanted.GetName()
	say := func(previous bool) {
		if len(of.refusals) == 0 {
			of.refusals = []*resource.Refusal{{Resource: name, Reason: fault.Error()}}
		}
		for _, each := range of.refusals {
			each.Retained = previous
		}
	}
	switch step {
	case formPrevious:
		return s.previous(of, say)
	case formPart:
		return s.part(of, say)
	case formRefusing:
		say(false)
		switch kind := of.wanted.GetKind().(type) {
		case *resource.Resource_Backend:
			return &resource.Resource{Name: name, Kind: &resource.Resource_Backend{
				Backend: &resource.Backend{Protocol: kind.Backend.GetProtocol(), Refuse: true},
			}}
		case *resource.Resource_RouteGroup:
			// Without the group, a less specific hostname would match its requests.
			group := &resource.RouteGroup{Hostname: kind.RouteGroup.GetHostname(), Rules: []*resource.Rule{{}}}
			group.Listeners = s.listeners(kind.RouteGroup)
			return &resource.Resource{Name: name, Kind: &resource.Resource_RouteGroup{RouteGroup: group}}
		}
	case formNone:
		say(false)
	}
	return nil
}

// previous returns the served version, except of endpoints, whose addresses may belong to other pods by now, of
// users, who may have been removed, and of groups.
func (s *fallback) previous(of *rejected, say func(bool)) *resource.Resource {
	before := s.old.resources[of.wanted.GetName()]
	if before == nil || of.wanted.GetEndpoints() != nil || of.wanted.GetUsers() != nil ||
		of.wanted.GetRouteGroup() != nil {
		return nil
	}
	say(true)
	return before
}

func (s *fallback) part(of *rejected, say func(bool)) *resource.Resource {
	name := of.wanted.GetName()
	switch kind := of.wanted.GetKind().(type) {
	case *resource.Resource_Endpoints:
		say(false)
		return &resource.Resource{Name: name, Kind: &resource.Resource_Endpoints{Endpoints: readable(kind.Endpoints)}}
	case *resource.Resource_Users:
		say(false)
		return &resource.Resource{Name: name, Kind: &resource.Resource_Users{
			Users: &resource.Users{Htpasswd: credentials.Readable(kind.Users.GetHtpasswd())},
		}}
	case *resource.Resource_Listener:
		say(false)
		listener, _ := proto.Clone(kind.Listener).(*resource.Listener)
		listener.Certificates = slices.DeleteFunc(listener.Certificates, func(name string) bool {
			return s.find(name).GetCertificate() == nil
		})
		if validation := listener.GetClientValidation(); validation != nil {
			// Without any authority no client certificate is valid.
			validation.CertificateAuthorities = slices.DeleteFunc(validation.CertificateAuthorities, func(name string) bool {
				return s.find(name).GetCertificateAuthority() == nil
			})
		}
		return &resource.Resource{Name: name, Kind: &resource.Resource_Listener{Listener: listener}}
	case *resource.Resource_RouteGroup:
		return s.partOfGroup(of, kind.RouteGroup)
	}
	return nil
}

func readable(of *resource.Endpoints) *resource.Endpoints {
	kept := &resource.Endpoints{}
	for _, endpoint := range of.GetEndpoints() {
		one := &resource.Endpoints{Endpoints: []*resource.Endpoint{endpoint}}
		if _, err := plan.Addresses(one); err == nil {
			kept.Endpoints = append(kept.Endpoints, endpoint)
		}
	}
	return kept
}

func (s *fallback) listeners(of *resource.RouteGroup) []string {
	var found []string
	for _, name := range of.GetListeners() {
		if s.find(name).GetListener() != nil {
			found = append(found, name)
		}
	}
	return found
}
