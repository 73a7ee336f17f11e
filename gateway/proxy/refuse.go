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

// maxRounds bounds how often one update is built. Each round settles all faults that one step of
// a build finds, and a resource has four forms at most.
const maxRounds = 64

// refused is a resource that is not carried out as the controller wants it.
type refused struct {
	wanted *resource.Resource
	said   []*resource.Refusal
	// blank are the objects whose rules answer 500: they have no previous version.
	blank map[string]bool
}

// refusals lists what is said, sorted.
func refusals(of map[string]*refused) []*resource.Refusal {
	var all []*resource.Refusal
	for _, each := range of {
		all = append(all, each.said...)
	}
	slices.SortFunc(all, func(a, b *resource.Refusal) int {
		return cmp.Or(strings.Compare(a.GetResource(), b.GetResource()), strings.Compare(a.GetRoute(), b.GetRoute()),
			strings.Compare(a.GetReason(), b.GetReason()))
	})
	return all
}

// settling finds what of an update can be served. Where resources have faults, others take their
// place: the previous ones, or ones that say less. It never lets in what the resource would have
// kept out: in doubt requests are answered with 500, or not at all.
type settling struct {
	old     *table
	version string
	whole   bool
	// now are the resources that come, and nil for those that go.
	now map[string]*resource.Resource
	// wanted is what the controller wants of those in now.
	wanted map[string]*resource.Resource
	// step is the form of a resource that is tried; none: the wanted one.
	step map[string]form
	// before are the refusals of the version that is served.
	before, refused map[string]*refused
}

// form is what takes the place of a resource with a fault, the first that can be carried out.
type form int

const (
	formPrevious form = iota
	formPart
	formRefusing
	formNone
)

// newSettling begins with the update as it is, and with what was refused before: what it lacked
// may be there now.
func newSettling(old *table, before map[string]*refused, update Update) *settling {
	s := &settling{
		old: old, version: update.Version, whole: update.Whole,
		now: make(map[string]*resource.Resource, len(update.Resources)), wanted: map[string]*resource.Resource{},
		step: map[string]form{}, before: before, refused: map[string]*refused{},
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

// update is the update with what takes the place of resources with faults.
func (s *settling) update() Update {
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

// find gives a resource as it would be served; nil where there is none.
func (s *settling) find(name string) *resource.Resource {
	if r, known := s.now[name]; known || s.whole {
		return r
	}
	return s.old.resources[name]
}

// list is what is refused so far.
func (s *settling) list() []*resource.Refusal { return refusals(s.refused) }

// reasons tells in one line what is refused.
func (s *settling) reasons() string {
	texts := make([]string, 0, len(s.refused))
	for _, each := range s.list() {
		texts = append(texts, each.GetReason())
	}
	return strings.Join(texts, "; ")
}

// settle puts others in the place of the resources with faults. It reports whether there is
// something to try.
func (s *settling) settle(err error) bool {
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
			s.refused[name] = &refused{wanted: current}
		}
		s.replace(name, current, found[name])
	}
	return true
}

// replace gives a resource its next form.
func (s *settling) replace(name string, current *resource.Resource, fault error) {
	of := s.refused[name]
	for step := s.step[name]; ; step++ {
		next := s.form(of, step, fault)
		if step == formNone || next != nil && !proto.Equal(next, current) {
			s.now[name], s.step[name] = next, step
			return
		}
	}
}

// form makes a form of a refused resource, or nil where it has none, and notes what is said.
func (s *settling) form(of *refused, step form, fault error) *resource.Resource {
	name := of.wanted.GetName()
	say := func(previous bool) {
		if len(of.said) == 0 {
			of.said = []*resource.Refusal{{Resource: name, Reason: fault.Error()}}
		}
		for _, each := range of.said {
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
			// Without it, a group for more host names would take the requests.
			group := &resource.RouteGroup{Hostname: kind.RouteGroup.GetHostname(), Rules: []*resource.Rule{{}}}
			group.Listeners = s.listeners(kind.RouteGroup)
			return &resource.Resource{Name: name, Kind: &resource.Resource_RouteGroup{RouteGroup: group}}
		}
	case formNone:
		say(false)
	}
	return nil
}

// previous is what is served now. Endpoints of before may be pods of somebody else by now, users of
// before no users any more, and of a group each object has its own previous rules.
func (s *settling) previous(of *refused, say func(bool)) *resource.Resource {
	before := s.old.resources[of.wanted.GetName()]
	if before == nil || of.wanted.GetEndpoints() != nil || of.wanted.GetUsers() != nil ||
		of.wanted.GetRouteGroup() != nil {
		return nil
	}
	say(true)
	return before
}

// part is what can be carried out of a resource.
func (s *settling) part(of *refused, say func(bool)) *resource.Resource {
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
			// Where none is left no certificate of a client is valid.
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

// readable are the endpoints that can be read.
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

// listeners are those of a group that are there.
func (s *settling) listeners(of *resource.RouteGroup) []string {
	var found []string
	for _, name := range of.GetListeners() {
		if s.find(name).GetListener() != nil {
			found = append(found, name)
		}
	}
	return found
}
