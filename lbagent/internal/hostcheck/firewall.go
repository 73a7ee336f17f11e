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

// firewallEvery is the interval for reading the rules. kube-proxy in nftables mode adds many.
const firewallEvery = time.Minute

type firewall struct {
	served atomic.Pointer[servedPods]
	problemText
}

type servedPods struct {
	model   *model.Model
	uplinks []string
}

func (f *firewall) setModel(m *model.Model, uplinks []string) {
	f.served.Store(&servedPods{m, uplinks})
}

// packets returns the packets that must pass. One pod of each family represents all.
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

// podsOf returns the lowest address of each family among the endpoints on this node, without the node's
// own addresses, whose packets are not forwarded.
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
	return f.set(strings.Join(slices.Compact(chains), ", ")), nil
}

func (f *firewall) run(
	ctx context.Context, dropping func(*forwardpolicy.Packet) ([]string, error), changed func(), logger logr.Logger,
) error {
	return watchEvery(ctx, firewallEvery, func() (bool, error) { return f.observe(dropping) }, changed, logger)
}

func (f *firewall) problems() []string {
	if f.text() == "" {
		return nil
	}
	return []string{fmt.Sprintf("the policy of %s drops packets to or from pods, unless the CNI's own programs take them before: "+
		"accept what goes to and comes from the pod networks (docs/cni.md)", f.text())}
}
