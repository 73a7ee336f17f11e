// SPDX-License-Identifier: Apache-2.0

// Package uplink attaches the programs to the node's uplinks, reports packets that the programs do not
// receive, and reads the networks and gateways of the node.
package uplink

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

// Recheck is the interval for retrying uplinks without programs, and for checking whether they lead to a
// peer: routes to peers are not watched.
const Recheck = 30 * time.Second

// Plane is the part of the data plane for uplinks.
type Plane interface {
	Attach(uplinks []dataplane.Uplink) error
	Attachments() []dataplane.Attachment
}

// Finder finds the uplinks of a node with these addresses and peers.
type Finder func(addresses, peers []netip.Addr, now time.Time) (*netdev.Uplinks, error)

// Uplinks attaches the programs to the node's uplinks, and computes which peers may send packets that the
// programs do not receive.
type Uplinks struct {
	find   Finder
	plane  Plane
	logger logr.Logger

	found    *netdev.Uplinks
	attached []netdev.Link
	failed   bool
	// since is when each interface, by index, became an uplink; zero for those at the start.
	since  map[int]time.Time
	logged []string
}

// New returns Uplinks without attachments.
func New(find Finder, plane Plane, logger logr.Logger) *Uplinks {
	return &Uplinks{find: find, plane: plane, logger: logger}
}

// Coverage reports which packets from routers and nodes the programs receive.
type Coverage struct {
	Unattached      map[string]string
	MissingPrograms []string
	Interfaces      []millracev1beta1.InterfaceStatus
	RequeueAfter    time.Duration
}

// Update attaches the programs to changed uplinks.
func (u *Uplinks) Update(m *model.Model, now time.Time) (Coverage, error) {
	peers := make([]netip.Addr, 0, len(m.Peers))
	for i := range m.Peers {
		peers = append(peers, m.Peers[i].Address)
	}
	found, findErr := u.find([]netip.Addr{m.Self.IPv4, m.Self.IPv6}, peers, now)
	var attachErr error
	if findErr == nil {
		u.record(found, now)
		attachErr = u.attach()
	}
	// If finding uplinks fails, the programs stay attached.
	c := u.cover(m.Peers, now)
	if findErr == nil {
		c.RequeueAfter = notify.Soonest(c.RequeueAfter, found.RequeueAfter)
	}
	if len(c.MissingPrograms) == 0 {
		attachErr = withoutUplinks(attachErr)
	}
	u.logChanges(c.Interfaces)
	return c, errors.Join(findErr, attachErr)
}

func (u *Uplinks) record(found *netdev.Uplinks, now time.Time) {
	since := map[int]time.Time{}
	for _, link := range found.Links {
		first, known := u.since[link.Index]
		if !known && u.found != nil {
			first = now
		}
		since[link.Index] = first
	}
	u.found, u.since = found, since
}

func (u *Uplinks) attach() error {
	able := slices.DeleteFunc(slices.Clone(u.found.Links), func(l netdev.Link) bool { return !l.Ethernet })
	if !u.failed && u.attached != nil && slices.EqualFunc(u.attached, able, sameDevice) {
		return nil
	}
	wanted := make([]dataplane.Uplink, 0, len(able))
	for _, link := range able {
		uplink := dataplane.Uplink{Name: link.Name, Index: link.Index, Device: link.Device, Members: link.Members}
		for _, tag := range link.Tags {
			uplink.Tags = append(uplink.Tags, dataplane.VLANTag(tag))
		}
		wanted = append(wanted, uplink)
	}
	err := u.plane.Attach(wanted)
	u.failed = err != nil
	u.attached = append([]netdev.Link{}, able...)
	return err
}

func sameDevice(a, b netdev.Link) bool {
	return a.Name == b.Name && a.Index == b.Index && a.MAC == b.MAC &&
		a.Device == b.Device && slices.Equal(a.Members, b.Members) && slices.Equal(a.Tags, b.Tags)
}

// withoutUplinks removes the errors of single uplinks from an error of Attach.
func withoutUplinks(err error) error {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		var rest []error
		for _, err := range joined.Unwrap() {
			rest = append(rest, withoutUplinks(err))
		}
		return errors.Join(rest...)
	}
	if uplink := (*dataplane.UplinkError)(nil); errors.As(err, &uplink) {
		return nil
	}
	return err
}

// cover computes the uplinks that packets may arrive on, and whether they have the programs. A peer sends
// to node addresses or by the uplinks of the route to it, or by any uplink if there is no route.
func (u *Uplinks) cover(peers []model.Peer, now time.Time) Coverage {
	c := Coverage{Unattached: map[string]string{}, Interfaces: interfaces(u.plane.Attachments())}
	if u.found == nil {
		u.found = &netdev.Uplinks{}
		defer func() { u.found = nil }()
	}
	without := u.without()
	for i := range u.found.Links {
		link := &u.found.Links[i]
		if !link.Ethernet {
			c.Interfaces = append(c.Interfaces, withoutEthernet(link))
		}
	}
	if len(without) > 0 {
		c.RequeueAfter = Recheck
	}
	// Other nodes send to the node's addresses.
	carried := slices.ContainsFunc(u.found.Links, func(l netdev.Link) bool { return l.Ethernet && l.HasAddress })
	c.MissingPrograms = u.missingPrograms(u.ingress(nil, carried), without, now, &c)
	for i := range peers {
		leads, known := u.found.PeerUplinks[peers[i].Address]
		lacking := u.missingPrograms(u.ingress(leads, known), without, now, &c)
		if len(lacking) > 0 {
			c.Unattached[peers[i].Name] = lacking[0]
		}
		c.MissingPrograms = append(c.MissingPrograms, lacking...)
	}
	slices.Sort(c.MissingPrograms)
	c.MissingPrograms = slices.Compact(c.MissingPrograms)
	return c
}

func (u *Uplinks) without() map[int]bool {
	without := map[int]bool{}
	for _, link := range u.found.Links {
		without[link.Index] = true
	}
	for _, a := range u.plane.Attachments() {
		if a.Err == nil && a.Mode != "" {
			delete(without, a.Index)
		}
	}
	return without
}

// ingress returns the uplinks that packets may arrive on: the ones with the node's addresses and the ones
// that lead to the sender or, if that is unknown, all that can have the programs.
func (u *Uplinks) ingress(leads []int, known bool) []netdev.Link {
	var ingress []netdev.Link
	for _, link := range u.found.Links {
		if slices.Contains(leads, link.Index) || link.Ethernet && (link.HasAddress || !known) {
			ingress = append(ingress, link)
		}
	}
	return ingress
}

// missingPrograms returns messages about ingress interfaces that need the programs and do not have them. A new
// interface has time to get them.
func (u *Uplinks) missingPrograms(ingress []netdev.Link, without map[int]bool, now time.Time, c *Coverage) []string {
	if len(without) == len(u.found.Links) {
		return []string{"no uplink has the programs"}
	}
	var lacking []string
	for _, link := range ingress {
		if !without[link.Index] {
			continue
		}
		if left := netdev.HoldOff - now.Sub(u.since[link.Index]); left > 0 {
			c.RequeueAfter = notify.Soonest(c.RequeueAfter, left)
			continue
		}
		lacking = append(lacking, fmt.Sprintf("uplink %s lacks the programs", link.Name))
	}
	return lacking
}

func withoutEthernet(link *netdev.Link) millracev1beta1.InterfaceStatus {
	return millracev1beta1.InterfaceStatus{
		Name: link.Name, XDPMode: millracev1beta1.XDPNone,
		Message: "its packets have no Ethernet header, which the programs need; it cannot serve clients",
	}
}

func (u *Uplinks) logChanges(interfaces []millracev1beta1.InterfaceStatus) {
	if texts := describeInterfaces(interfaces); !slices.Equal(texts, u.logged) {
		u.logged = texts
		u.logger.Info("Uplinks", "interfaces", texts)
	}
}
