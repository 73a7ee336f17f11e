// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// ServiceProxy is the service proxy's part of the VIPs' connections (bpf/src/service_proxy.h).
type ServiceProxy uint32

// Values of ServiceProxy.
const (
	// ServiceProxyNone means that the service proxy has no connections of VIPs.
	ServiceProxyNone = ServiceProxy(bpf.DatapathServiceProxyModeSERVICE_PROXY_NONE)
	// ServiceProxyFrom leaves existing connections to the service proxy and serves new ones.
	ServiceProxyFrom = ServiceProxy(bpf.DatapathServiceProxyModeSERVICE_PROXY_FROM)
	// ServiceProxyTo leaves new TCP connections to the service proxy and keeps existing ones.
	ServiceProxyTo = ServiceProxy(bpf.DatapathServiceProxyModeSERVICE_PROXY_TO)
)

var serviceProxies = map[string]ServiceProxy{"none": ServiceProxyNone, "from": ServiceProxyFrom, "to": ServiceProxyTo}

// Set implements pflag.Value.
func (p *ServiceProxy) Set(name string) error {
	value, known := serviceProxies[name]
	if !known {
		return fmt.Errorf("want none, from or to, not %q", name)
	}
	*p = value
	return nil
}

// String implements pflag.Value.
func (p *ServiceProxy) String() string {
	for name, value := range serviceProxies {
		if value == *p {
			return name
		}
	}
	return fmt.Sprintf("ServiceProxy(%d)", *p)
}

// Type implements pflag.Value.
func (p *ServiceProxy) Type() string { return "none|from|to" }

// proxiedConnections is the capacity for the service proxy's connections, an LRU of about 120 bytes each.
const proxiedConnections = 1 << 17

// proxyOffers is the capacity for connections between SYN-ACK and ACK. A SYN flood evicts the oldest.
const proxyOffers = 1 << 16

// modePlace is the index of the ServiceProxy value in map migrated_frontends; it is no valid frontend id.
const modePlace uint32 = 0

// ProxiedFlow is a connection or UDP flow that the kernel translated to another address.
type ProxiedFlow struct {
	Client, VIP netip.AddrPort
	Protocol    uint8
}

func (p ServiceProxy) proxied() uint32 {
	if p == ServiceProxyNone {
		return lruSize(minOthers)
	}
	return lruSize(proxiedConnections)
}

func (p ServiceProxy) offers() uint32 {
	if p == ServiceProxyNone {
		return lruSize(minOthers)
	}
	return lruSize(proxyOffers)
}

// restoreMigrated reads the migrated frontends: all present ones if the previous mode was not from.
func (d *Dataplane) restoreMigrated() error {
	d.migrated = map[forwarding.FrontendID]bool{}
	var mode uint32
	if err := d.maps.MigratedFrontends.Lookup(modePlace, &mode); err != nil {
		return fmt.Errorf("read map migrated_frontends: %w", err)
	}
	if mode == uint32(ServiceProxyFrom) && d.config.ServiceProxy == ServiceProxyFrom {
		return readMap(d.maps.MigratedFrontends, func(id, taken uint32) {
			if id != modePlace && taken != 0 {
				d.migrated[forwarding.FrontendID(id)] = true
			}
		})
	}
	if d.config.ServiceProxy == ServiceProxyFrom {
		have := forwarding.NewState()
		if err := d.dumpFrontends(have); err != nil {
			return fmt.Errorf("read map frontends: %w", err)
		}
		served := map[forwarding.FrontendID]bool{}
		for _, frontend := range have.Frontends {
			served[frontend.ID] = true
		}
		if err := d.setMigrated(served); err != nil {
			return err
		}
	}
	if err := d.maps.MigratedFrontends.Put(modePlace, uint32(d.config.ServiceProxy)); err != nil {
		return fmt.Errorf("write map migrated_frontends: %w", err)
	}
	return nil
}

// MigrateFrontends claims new connections of the frontends. The service proxy's connections are listed after the
// frontends were written, because from then on the program records new ones. It does nothing unless the
// mode is from.
func (d *Dataplane) MigrateFrontends(have *forwarding.State, proxied func() ([]ProxiedFlow, error)) error {
	if d.config.ServiceProxy != ServiceProxyFrom || have == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	want, isNew := map[forwarding.FrontendID]bool{}, false
	for _, frontend := range have.Frontends {
		want[frontend.ID] = true
		isNew = isNew || !d.migrated[frontend.ID]
	}
	if isNew {
		flows, err := proxied()
		if err != nil {
			return fmt.Errorf("list the connections of the node's service proxy: %w", err)
		}
		for _, flow := range flows {
			key := forwarding.FrontendKey{VIP: flow.VIP.Addr(), Port: flow.VIP.Port(), Protocol: flow.Protocol}
			if _, found := have.Frontends[key]; !found {
				continue
			}
			if err := d.maps.ProxyConnections.Update(encodeFlow(flow), uint32(1), ebpf.UpdateAny); err != nil {
				return fmt.Errorf("write map proxied: %w", err)
			}
		}
	}
	return d.setMigrated(want)
}

// SweepProxied deletes recorded connections that the service proxy no longer has; otherwise a client that
// reuses a port would be sent to it. living lists its connections. It is called after the records are read
// and only if there are any, so that a connection that starts meanwhile keeps its record.
func (d *Dataplane) SweepProxied(living func() ([]ProxiedFlow, error)) error {
	var noted []bpf.DatapathFlow
	if err := readMap(d.maps.ProxyConnections, func(flow bpf.DatapathFlow, _ uint32) { noted = append(noted, flow) }); err != nil {
		return fmt.Errorf("read map proxied: %w", err)
	}
	if len(noted) == 0 {
		return nil
	}
	flows, err := living()
	if err != nil {
		return fmt.Errorf("list the connections of the node's service proxy: %w", err)
	}
	has := make(map[bpf.DatapathFlow]bool, len(flows))
	for _, flow := range flows {
		has[encodeFlow(flow)] = true
	}
	for _, flow := range noted {
		if has[flow] {
			continue
		}
		if err := d.maps.ProxyConnections.Delete(flow); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete from map proxied: %w", err)
		}
	}
	return nil
}

func (d *Dataplane) setMigrated(want map[forwarding.FrontendID]bool) error {
	write := func(id forwarding.FrontendID, taken uint32) error {
		if err := d.maps.MigratedFrontends.Put(uint32(id), taken); err != nil {
			return fmt.Errorf("write map migrated_frontends: %w", err)
		}
		return nil
	}
	for id := range d.migrated {
		if want[id] {
			continue
		}
		if err := write(id, 0); err != nil {
			return err
		}
		delete(d.migrated, id)
	}
	for id := range want {
		if d.migrated[id] {
			continue
		}
		if err := write(id, 1); err != nil {
			return err
		}
		d.migrated[id] = true
	}
	return nil
}

func encodeFlow(flow ProxiedFlow) bpf.DatapathFlow {
	family := uint8(unix.AF_INET)
	if flow.VIP.Addr().Is6() {
		family = unix.AF_INET6
	}
	return bpf.DatapathFlow{
		Client: encodeAddress(flow.Client.Addr()), Vip: encodeAddress(flow.VIP.Addr()),
		ClientPort: networkPort(flow.Client.Port()), VipPort: networkPort(flow.VIP.Port()),
		Protocol: flow.Protocol, Family: family,
	}
}
