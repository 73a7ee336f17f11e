// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/routes"
)

// witness checks a node's maps and routes after each write, for invariants that hold whatever fails:
//
//   - a frontend in the maps has all entries that it refers to, endpoints of its family, and a distinct key;
//   - an announced VIP is in the maps with a serving frontend, and the frontends of its announcement stay; a newly
//     announced one is in the maps with all its frontends, except for lack of room; its peer accepts its family,
//     and the next hop is this node's address of that family;
//   - no client is newly admitted against its Service, and no client rejected that was and is admitted, except
//     by a frontend that is closed because it admits others, too;
//   - when routes are set, no frontend behind them admits a client against its Service;
//   - a row that gets another owner keeps the previous ones that exist;
//   - entries of existing objects are not removed, and those of deleted ones not before the delay after the
//     withdrawal of their routes; likewise the node tables of zones while a frontend has its own.
type witness struct {
	delay time.Duration
	now   time.Time
	model *model.Model
	// has are the VIPs, frontends, zones, endpoints and nodes of the model; gone is the time since when an
	// entry of the maps is not among them.
	has  map[any]bool
	gone map[any]time.Time
	// last is the previous content of the maps, promised are the frontends behind the routes, withdrawn is
	// the time of the last announcement of VIPs.
	last      *forwarding.State
	promised  map[netip.Addr][]forwarding.FrontendKey
	withdrawn map[netip.Addr]time.Time
	// announced are the VIPs known to the agent as announced, limits those of the maps.
	announced map[netip.Addr]bool
	limits    forwarding.Limits
	err       error
}

func newWitness(delay time.Duration) *witness {
	return &witness{
		delay: delay, model: &model.Model{}, last: forwarding.NewState(), has: map[any]bool{}, gone: map[any]time.Time{},
		promised: map[netip.Addr][]forwarding.FrontendKey{}, withdrawn: map[netip.Addr]time.Time{},
	}
}

func (w *witness) begin(snapshot *model.Snapshot, now time.Time) {
	w.now, w.model, w.has = now, model.Build(snapshot), map[any]bool{}
	for _, vip := range w.model.VIPs {
		w.has[vip.Address] = true
	}
	for _, frontend := range w.model.Frontends {
		w.has[frontend.Key] = true
		// Without a usable endpoint, no packet uses the zones.
		w.has[zonesOf(frontend.Key)] = len(frontend.Weights) > 0 && slices.ContainsFunc(frontend.Zones[:], func(zone map[forwarding.NodeID]uint32) bool { return zone != nil })
		for _, endpoint := range slices.Concat(frontend.Endpoints, frontend.Draining) {
			w.has[endpoint] = true
		}
	}
	for _, node := range w.model.Nodes {
		w.has[node.ID] = true
	}
	gone := map[any]time.Time{}
	for thing := range things(w.last) {
		if since, found := w.gone[thing]; !w.has[thing] && found {
			gone[thing] = since
		} else if !w.has[thing] {
			gone[thing] = now
		}
	}
	w.gone = gone
}

type zonesOf forwarding.FrontendKey

func things(s *forwarding.State) map[any]bool {
	all := map[any]bool{}
	for vip := range s.VIPs {
		all[vip] = true
	}
	for key, frontend := range s.Frontends {
		all[key] = true
		if frontend.Zones != ([forwarding.Zones]forwarding.NodeTableSlot{}) {
			all[zonesOf(key)] = true
		}
	}
	for _, endpoint := range s.Endpoints {
		all[endpoint] = true
	}
	for id := range s.Nodes {
		all[id] = true
	}
	return all
}

// see checks maps and routes after a write. The State must not change later.
func (w *witness) see(after string, state *forwarding.State, routes announce.Routes) {
	if w.err != nil {
		return
	}
	if after == "Set" {
		w.err = w.checkRoutes(routes)
		announced := map[netip.Addr]bool{}
		for _, routes := range routes {
			for _, route := range routes {
				announced[route.Prefix.Addr()] = true
			}
		}
		w.promise(state, announced)
	}
	for _, check := range []func(*forwarding.State) error{
		w.complete, w.checkAnnounced, w.checkAdmitted, w.checkRows, w.checkRemoved,
	} {
		if err := check(state); err != nil && w.err == nil {
			w.err = fmt.Errorf("after %s: %w", after, err)
		}
	}
	w.last = state
}

// checkRoutes returns an error for a route that its peer cannot use.
func (w *witness) checkRoutes(routes announce.Routes) error {
	peers := map[string]model.Peer{}
	for i := range w.model.Peers {
		peers[w.model.Peers[i].Name] = w.model.Peers[i]
	}
	for name, routes := range routes {
		for _, route := range routes {
			takes, nextHop := peers[name].IPv6, w.model.Self.IPv6
			if route.Prefix.Addr().Is4() {
				takes, nextHop = peers[name].IPv4, w.model.Self.IPv4
			}
			if !takes || !nextHop.IsValid() || route.NextHop != nextHop || !route.Prefix.IsSingleIP() {
				return fmt.Errorf("%s is announced to %s (accepted: %t) with next hop %s, want %s", route.Prefix, name, takes, route.NextHop, nextHop)
			}
		}
	}
	return nil
}

// promise records the frontends behind routes.
func (w *witness) promise(state *forwarding.State, routes map[netip.Addr]bool) {
	for vip := range w.promised {
		if !routes[vip] {
			w.withdrawn[vip] = w.now
		}
	}
	clear(w.promised)
	serving := map[netip.Addr]bool{}
	for _, frontend := range w.model.Frontends {
		vip := frontend.Key.VIP
		if !routes[vip] {
			continue
		}
		entry, found := state.Frontends[frontend.Key]
		if found {
			w.promised[vip] = append(w.promised[vip], frontend.Key)
		}
		whole := found && isWhole(frontend, entry)
		if !w.announced[vip] && !whole && w.hasRoom(state, frontend) {
			w.err = fmt.Errorf("VIP %s is announced for the first time, but %s is programmed as %+v (found: %t)", vip, frontend.Key, entry, found)
		}
		if client := w.outsider(state, frontend); client.IsValid() {
			w.err = fmt.Errorf("VIP %s is announced, but %s admits %s outside of the source ranges", vip, frontend.Key, client)
		}
		usable := len(frontend.Weights) > 0
		if frontend.Local {
			usable = len(frontend.Endpoints) > 0
		}
		open := frontend.Restricted && entry.Ranges == 0
		reaches := entry.Table != 0 || entry.Local && entry.Endpoints != 0
		serving[vip] = serving[vip] || found && usable && reaches && !open
	}
	for vip := range routes {
		if !serving[vip] {
			w.err = fmt.Errorf("VIP %s is announced, but no frontend in the maps serves it", vip)
		}
	}
	w.announced = routes
}

func isWhole(frontend *model.Frontend, entry forwarding.Frontend) bool {
	return entry.Local == frontend.ServesOwn() &&
		(!frontend.Spreads() || len(frontend.Weights) == 0 || entry.Table != 0) &&
		(len(frontend.Endpoints) == 0 || entry.Endpoints != 0) && (!frontend.Restricted || entry.Ranges != 0)
}

// hasRoom reports whether the maps have room for another frontend.
func (w *witness) hasRoom(s *forwarding.State, frontend *model.Frontend) bool {
	endpoints, have := 0, map[forwarding.Endpoint]bool{}
	for _, endpoint := range s.Endpoints {
		have[endpoint] = true
	}
	for _, endpoint := range slices.Concat(frontend.Endpoints, frontend.Draining) {
		if !have[endpoint] {
			endpoints++
		}
	}
	for key := range s.Frontends {
		if !key.VIP.Is4() && key != frontend.Key && key.Hash(flowhash.Public()) == frontend.Key.Hash(flowhash.Public()) {
			return false
		}
	}
	return len(s.Frontends) < w.limits.Frontends && len(s.NodeTables) < w.limits.NodeTables &&
		len(s.EndpointTables) < w.limits.EndpointTables && len(s.Endpoints)+endpoints <= w.limits.Endpoints &&
		len(s.SourceRanges)+len(frontend.Sources) <= w.limits.SourceRanges
}

// restart is called for another agent, to which each VIP with a frontend in the maps counts as announced.
func (w *witness) restart(s *forwarding.State, limits forwarding.Limits) {
	w.limits, w.announced = limits, routes.Adopted(s)
}

func (w *witness) checkAnnounced(s *forwarding.State) error {
	for vip, keys := range w.promised {
		if _, found := s.VIPs[vip]; !found {
			return fmt.Errorf("VIP %s is announced, but not in the maps", vip)
		}
		for _, key := range keys {
			if _, found := s.Frontends[key]; !found {
				return fmt.Errorf("VIP %s is announced, but %s is not in the maps", vip, key)
			}
		}
	}
	return nil
}

func (w *witness) checkRemoved(s *forwarding.State) error {
	for id, endpoint := range w.last.Endpoints {
		if s.Endpoints[id] != endpoint {
			if err := w.mayGo(endpoint); err != nil {
				return fmt.Errorf("endpoint %s: %w", showEndpoint(endpoint), err)
			}
		}
	}
	left := things(s)
	for thing := range things(w.last) {
		id, isNode := thing.(forwarding.NodeID)
		if unfinished := isNode && w.last.Nodes[id] == (forwarding.Node{}); unfinished || left[thing] {
			continue
		}
		if zones, ofZones := thing.(zonesOf); ofZones && (w.has[thing] || s.Frontends[forwarding.FrontendKey(zones)].Table == 0) {
			// There is no room, or no node to send to.
			continue
		}
		if err := w.mayGo(thing); err != nil {
			return fmt.Errorf("%v: %w", thing, err)
		}
	}
	return nil
}

// mayGo reports whether an entry may be removed from the maps.
func (w *witness) mayGo(thing any) error {
	if w.has[thing] {
		return fmt.Errorf("removed from the maps, but still in the objects")
	}
	if since := w.now.Sub(w.gone[thing]); since < w.delay {
		return fmt.Errorf("removed from the maps %s after it was removed from the objects", since)
	}
	vip, isVIP := thing.(netip.Addr)
	if key, isFrontend := thing.(forwarding.FrontendKey); isFrontend {
		vip, isVIP = key.VIP, !w.has[key.VIP]
	}
	if since := w.now.Sub(w.withdrawn[vip]); isVIP && since < w.delay {
		return fmt.Errorf("removed from the maps %s after its route was withdrawn", since)
	}
	return nil
}
