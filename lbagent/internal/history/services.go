// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

const massive = 128

// routes returns entries about VIPs that are announced differently or no more. Equally changed VIPs share
// an entry.
func routes(before, now *State) []Entry {
	if delta.IsSame(before.Decisions, now.Decisions) {
		return nil
	}
	groups := map[string]*Entry{}
	change := func(vip netip.Addr, decision *announce.Decision) {
		what, message := describeDecision(decision)
		entry := groups[what+"\x00"+message]
		if entry == nil {
			entry = &Entry{Time: now.Time, Kind: consoleapi.HistoryRoute, What: what, Message: shortened(message)}
			groups[what+"\x00"+message] = entry
		}
		entry.VIPs = append(entry.VIPs, vip)
	}
	a, b := before.Decisions, now.Decisions
	for len(a) > 0 || len(b) > 0 {
		switch order := compareFirst(a, b); {
		case order < 0:
			change(a[0].VIP, nil)
			a = a[1:]
		case order > 0:
			change(b[0].VIP, &b[0])
			b = b[1:]
		default:
			if !isSameOutcome(&a[0], &b[0]) {
				change(b[0].VIP, &b[0])
			}
			a, b = a[1:], b[1:]
		}
	}
	return named(groups, before, now)
}

func compareFirst(a, b []announce.Decision) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	default:
		return a[0].VIP.Compare(b[0].VIP)
	}
}

func isSameOutcome(a, b *announce.Decision) bool {
	return a.Reason == b.Reason && slices.Equal(a.Peers, b.Peers) && slices.Equal(a.Interfaces, b.Interfaces)
}

func describeDecision(decision *announce.Decision) (what, message string) {
	switch {
	case decision == nil:
		return "NotAnnounced", "no longer a VIP of this node"
	case len(decision.Peers)+len(decision.Interfaces) == 0:
		return "NotAnnounced", decision.Reason + ": " + decision.Message
	}
	to := slices.Clone(decision.Peers)
	for _, name := range decision.Interfaces {
		to = append(to, "l2:"+name)
	}
	return "Announced", "to " + strings.Join(to, ", ")
}

func named(groups map[string]*Entry, before, now *State) []Entry {
	var entries []Entry
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		all := groups[key]
		if len(all.VIPs) > massive {
			all.Count, all.VIPs = uint64(len(all.VIPs)), nil
			entries = append(entries, *all)
			continue
		}
		for vips := range slices.Chunk(all.VIPs, listed) {
			entry := *all
			entry.VIPs, entry.Count = vips, uint64(len(vips))
			for _, vip := range vips {
				entry.Services = append(entry.Services, firstOf(servicesOf(now.Model, vip), servicesOf(before.Model, vip))...)
			}
			slices.Sort(entry.Services)
			entry.Services = slices.Compact(entry.Services)
			entries = append(entries, entry)
		}
	}
	return entries
}

func firstOf(a, b []string) []string {
	if len(a) > 0 {
		return a
	}
	return b
}

func servicesOf(m *model.Model, vip netip.Addr) (names []string) {
	at, found := slices.BinarySearchFunc(m.VIPs, vip, func(v model.VIP, address netip.Addr) int { return v.Address.Compare(address) })
	if found {
		for _, service := range m.VIPs[at].Services {
			names = append(names, service.Name.String())
		}
	}
	return names
}

type endpointState int

const (
	gone endpointState = iota
	draining
	ready
)

var stateNames = map[endpointState]string{gone: "Gone", draining: "NotReady", ready: "Ready"}

type transition struct {
	before, after   map[forwarding.Endpoint]endpointState
	usable          int
	had, has, known bool
}

func endpoints(before, now *State) []Entry {
	services := map[model.ServiceName]*transition{}
	of := func(name model.ServiceName) *transition {
		if services[name] == nil {
			services[name] = &transition{before: map[forwarding.Endpoint]endpointState{}, after: map[forwarding.Endpoint]endpointState{}}
		}
		return services[name]
	}
	a, b := before.Model.Frontends, now.Model.Frontends
	for len(a) > 0 || len(b) > 0 {
		var old, next *model.Frontend
		order := compareKeys(a, b)
		if order <= 0 {
			old, a = a[0], a[1:]
		}
		if order >= 0 {
			next, b = b[0], b[1:]
		}
		if old == next {
			continue
		}
		if old != nil {
			t := of(old.Service)
			collect(t.before, old)
			t.had = t.had || len(old.Weights) > 0
			t.known = true
		}
		if next != nil {
			t := of(next.Service)
			collect(t.after, next)
			t.has = t.has || len(next.Weights) > 0
			t.usable = max(t.usable, usable(next))
		}
	}
	var entries []Entry
	for _, name := range slices.SortedFunc(maps.Keys(services), func(x, y model.ServiceName) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	}) {
		entries = append(entries, services[name].entries(Entry{
			Time: now.Time, Kind: consoleapi.HistoryEndpoints, Services: []string{name.String()},
		})...)
	}
	return entries
}

func compareKeys(a, b []*model.Frontend) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	default:
		return a[0].Key.Compare(b[0].Key)
	}
}

func usable(frontend *model.Frontend) int {
	if frontend.Terminating {
		return 0
	}
	return len(frontend.Endpoints)
}

// collect records how the endpoints of a frontend serve. A terminating endpoint is not ready, even if it
// is the last that accepts connections.
func collect(into map[forwarding.Endpoint]endpointState, frontend *model.Frontend) {
	how := ready
	if frontend.Terminating {
		how = draining
	}
	for _, endpoint := range frontend.Endpoints {
		into[endpoint] = max(into[endpoint], how)
	}
	for _, endpoint := range frontend.Draining {
		into[endpoint] = max(into[endpoint], draining)
	}
}

func (t *transition) entries(like Entry) (entries []Entry) {
	changed := map[endpointState][]netip.AddrPort{}
	note := func(endpoint forwarding.Endpoint) {
		if t.before[endpoint] != t.after[endpoint] {
			how := t.after[endpoint]
			changed[how] = append(changed[how], netip.AddrPortFrom(endpoint.Address, endpoint.Port))
		}
	}
	for endpoint := range t.after {
		note(endpoint)
	}
	for endpoint := range t.before {
		if _, also := t.after[endpoint]; !also {
			note(endpoint)
		}
	}
	for _, how := range []endpointState{gone, draining, ready} {
		slices.SortFunc(changed[how], netip.AddrPort.Compare)
		for list := range slices.Chunk(changed[how], listed) {
			entry := like
			entry.What, entry.Endpoints, entry.Count = stateNames[how], list, uint64(t.usable)
			entries = append(entries, entry)
		}
	}
	if t.had != t.has && t.known {
		entry := like
		entry.What = "Recovered"
		if t.had {
			entry.What = "NoneReady"
		}
		entries = append(entries, entry)
	}
	return entries
}
