// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/forwardpolicy"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// firewallEvery is how often the rules are read. They are many where kube-proxy writes them by
// nftables.
const firewallEvery = time.Minute

// firewall tells of firewalls of the node whose policy drops packets to and from its pods.
type firewall struct {
	// served is what packets must pass for; the pass sets it.
	served atomic.Pointer[servedPods]
	// notice names the chains, such as "ip filter FORWARD".
	notice
}

// servedPods are the pods of a model, by uplinks.
type servedPods struct {
	model   *model.Model
	uplinks []string
}

// want says by which uplinks which pods are served.
func (f *firewall) want(m *model.Model, uplinks []string) { f.served.Store(&servedPods{m, uplinks}) }

// packets are those that must pass: one pod of each family stands for all.
func (s *servedPods) packets() (packets []forwardpolicy.Packet) {
	for _, pod := range podsOf(s.model) {
		for _, uplink := range s.uplinks {
			packets = append(packets,
				forwardpolicy.Packet{In: uplink, Destination: pod},
				forwardpolicy.Packet{Out: uplink, Source: pod, Established: true})
		}
	}
	return packets
}

// podsOf returns the least address of each family of an endpoint on this node. What has the
// node's own address is not forwarded.
func podsOf(m *model.Model) []netip.Addr {
	var least4, least6 netip.Addr
	for _, frontend := range m.Frontends {
		for _, endpoint := range frontend.Endpoints {
			least := &least6
			if endpoint.Address.Is4() {
				least = &least4
			}
			if endpoint.Address != m.Self.IPv4 && endpoint.Address != m.Self.IPv6 &&
				(!least.IsValid() || endpoint.Address.Less(*least)) {
				*least = endpoint.Address
			}
		}
	}
	return slices.DeleteFunc([]netip.Addr{least4, least6}, func(a netip.Addr) bool { return !a.IsValid() })
}

// observe asks which chains drop the packets, and reports whether there is something else to tell.
func (f *firewall) observe(dropping func(*forwardpolicy.Packet) ([]string, error)) (changed bool, err error) {
	var chains []string
	if served := f.served.Load(); served != nil {
		packets := served.packets()
		for i := range packets {
			found, err := dropping(&packets[i])
			if err != nil {
				return false, err
			}
			chains = append(chains, found...)
		}
	}
	slices.Sort(chains)
	return f.tell(strings.Join(slices.Compact(chains), ", ")), nil
}

// run asks again and again until ctx is done, and calls changed when there is something to tell.
func (f *firewall) run(
	ctx context.Context, dropping func(*forwardpolicy.Packet) ([]string, error), changed func(), logger logr.Logger,
) error {
	return watchEvery(ctx, firewallEvery, func() (bool, error) { return f.observe(dropping) }, changed, logger)
}

// problems are what the report says of firewalls.
func (f *firewall) problems() []string {
	if f.text() == "" {
		return nil
	}
	return []string{fmt.Sprintf("the policy of %s drops packets to or from pods, unless the CNI's own programs take them before: "+
		"accept what goes to and comes from the pod networks (docs/cni.md)", f.text())}
}
