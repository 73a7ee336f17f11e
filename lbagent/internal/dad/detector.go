// SPDX-License-Identifier: Apache-2.0

package dad

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

// Detector detects hosts on uplinks that use the address of a VIP. A nil Detector detects none.
type Detector struct {
	prober    *Prober
	tentative Tentative
	changed   func()
	// trusted are the addresses of nodes and routers. They may answer for VIPs because of proxy ARP or
	// kube-proxy in IPVS mode, which assigns all VIPs to an interface.
	trusted  atomic.Pointer[[]netip.Addr]
	networks atomic.Pointer[[]model.Network]
	// elsewhere are VIPs that other nodes answer for on links, excluded because those nodes would count as
	// duplicates.
	elsewhere map[netip.Addr]bool

	mu     sync.Mutex
	claims claims
}

// NewDetector returns a Detector that calls changed after each changed answer.
func NewDetector(changed func(), logger logr.Logger) *Detector {
	d := &Detector{changed: changed, claims: claims{}}
	d.prober = NewProber(d.probe, changed, logger)
	return d
}

// Run probes hosts until ctx is done.
func (d *Detector) Run(ctx context.Context) error { return d.prober.Run(ctx) }

// Exclude sets the VIPs to exclude because other nodes answer for them.
func (d *Detector) Exclude(elsewhere map[netip.Addr]bool) {
	if d != nil {
		d.elsewhere = elsewhere
	}
}

// Evaluate returns the VIPs to withhold, the hosts that use a VIP's address, and the duration until its next
// call is due, or 0.
func (d *Detector) Evaluate(
	m *model.Model, objects *model.Snapshot, uplinks []string, announced map[netip.Addr]bool, now time.Time,
) (withheld map[netip.Addr]announce.Decision, holders []Holder, again time.Duration) {
	if d == nil {
		return nil, nil, 0
	}
	trusted := hostsOf(m, objects.Gateways)
	d.trusted.Store(&trusted)
	networks := slices.DeleteFunc(slices.Clone(objects.OnLink), func(n model.Network) bool {
		return n.Prefix.IsSingleIP() || !slices.Contains(uplinks, n.Interface)
	})
	d.networks.Store(&networks)
	var vips []VIP
	var all []ScheduledProbe
	probes := map[netip.Addr][]Probe{}
	for i := range m.VIPs {
		vip := &m.VIPs[i]
		if vip.Occupant != "" || len(vip.Services) == 0 || d.elsewhere[vip.Address] {
			continue
		}
		entry := VIP{
			Address: vip.Address, Created: vip.Created, Waits: vip.Duplicate, Announced: announced[vip.Address],
		}
		for _, network := range networks {
			probe := Probe{Interface: network.Interface, Address: vip.Address}
			if network.Prefix.Contains(vip.Address) && !slices.Contains(probes[vip.Address], probe) {
				probes[vip.Address] = append(probes[vip.Address], probe)
				all = append(all, ScheduledProbe{
					Probe: probe, Created: vip.Created, Urgent: entry.IsTentative(now),
				})
			}
		}
		if len(probes[vip.Address]) > 0 {
			vips = append(vips, entry)
		}
	}
	d.mu.Lock()
	answers, wait := d.claims.addTo(d.prober.Schedule(all, len(m.Nodes)), now)
	d.mu.Unlock()
	verdict := d.tentative.Evaluate(vips, probes, answers, now)
	return withholding(verdict), verdict.Holders, notify.Soonest(verdict.Again, wait)
}

// Claimed records that a host on a link announced a VIP that this node answers for there. It may be called
// concurrently. Nodes and routers are ignored.
func (d *Detector) Claimed(name string, address netip.Addr, from net.HardwareAddr) {
	if d == nil {
		return
	}
	trusted := d.trusted.Load()
	link, err := net.InterfaceByName(name)
	if trusted == nil || err != nil || len(from) != len([6]byte{}) {
		return
	}
	known, err := netdev.KnownNeighbours(*trusted)
	if err != nil || slices.Contains(known[link.Index], [6]byte(from)) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.claims.add(Probe{Interface: name, Address: address}, from, time.Now()) {
		d.changed()
	}
}

func withholding(verdict Verdict) map[netip.Addr]announce.Decision {
	withheld := make(map[netip.Addr]announce.Decision, len(verdict.Checking))
	for address := range verdict.Checking {
		withheld[address] = announce.Decision{
			Reason: announce.ReasonChecking, Message: "duplicate address detection is in progress on the node's links",
		}
	}
	for _, holder := range verdict.Holders {
		if holder.Withheld {
			withheld[holder.Address] = announce.Decision{Reason: announce.ReasonDuplicate, Message: fmt.Sprintf(
				"the host %s on interface %s has the address", holder.HardwareAddr, holder.Interface)}
		}
	}
	return withheld
}

func hostsOf(m *model.Model, gateways model.Gateways) []netip.Addr {
	var hosts []netip.Addr
	for i := range m.Nodes {
		hosts = append(hosts, m.Nodes[i].IPv4, m.Nodes[i].IPv6)
	}
	for i := range m.Peers {
		hosts = append(hosts, m.Peers[i].Address.WithZone(""))
	}
	for _, family := range gateways {
		for _, gateway := range family {
			hosts = append(hosts, gateway.WithZone(""))
		}
	}
	return hosts
}

// Scan probes the addresses at once on the uplinks whose networks contain them.
func (d *Detector) Scan(ctx context.Context, addresses []netip.Addr) (*consoleapi.Hosts, error) {
	if d == nil {
		return nil, errors.New("duplicate address detection is disabled: --duplicate-detection is false")
	}
	networks, trusted := d.networks.Load(), d.trusted.Load()
	if networks == nil || trusted == nil {
		return nil, errors.New("the agent has not read its networks yet: its first pass has not finished")
	}
	hosts := &consoleapi.Hosts{}
	var probes []Probe
	for _, address := range addresses {
		for _, network := range *networks {
			host := consoleapi.Host{Address: address, Interface: network.Interface, Known: slices.Contains(*trusted, address)}
			if !network.Prefix.Contains(address) || slices.Contains(hosts.Hosts, host) {
				continue
			}
			hosts.Hosts = append(hosts.Hosts, host)
			// A probe deletes the kernel's neighbour entry, which would delay packets to nodes and routers.
			if !host.Known {
				probes = append(probes, Probe{Interface: network.Interface, Address: address})
			}
		}
	}
	if len(probes) == 0 {
		return hosts, nil
	}
	answers, err := d.prober.Scan(ctx, probes)
	if err != nil {
		return nil, err
	}
	for i := range hosts.Hosts {
		host := &hosts.Hosts[i]
		if answer := answers[Probe{Interface: host.Interface, Address: host.Address}]; len(answer.HardwareAddr) > 0 {
			host.HardwareAddr, host.Known = answer.HardwareAddr.String(), answer.Trusted
		}
	}
	return hosts, nil
}

func (d *Detector) probe(ctx context.Context, probes []Probe) (map[Probe]Answer, error) {
	keys := make(map[fib.NeighbourKey]Probe, len(probes))
	targets := make([]fib.NeighbourKey, 0, len(probes))
	for _, probe := range probes {
		link, err := net.InterfaceByName(probe.Interface)
		if err != nil {
			continue
		}
		key := fib.NeighbourKey{Interface: link.Index, Address: probe.Address}
		keys[key] = probe
		targets = append(targets, key)
	}
	found, err := netdev.ProbeAddresses(ctx, targets)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	known, err := netdev.KnownNeighbours(*d.trusted.Load())
	if err != nil {
		return nil, err
	}
	answers := map[Probe]Answer{}
	for key, mac := range found {
		answers[keys[key]] = Answer{HardwareAddr: mac[:], Trusted: slices.Contains(known[key.Interface], mac)}
	}
	return answers, nil
}
