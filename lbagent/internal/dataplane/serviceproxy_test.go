// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// TestMigrateFrontends claims frontends across restarts and changes of the mode.
func TestMigrateFrontends(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	cfg.ServiceProxy = ServiceProxyFrom
	d := openDataplane(t, cfg)
	reopen := func(mode ServiceProxy) {
		t.Helper()
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		cfg.ServiceProxy = mode
		d = openDataplane(t, cfg)
	}
	vip := netip.MustParseAddr("203.0.113.1")
	state := forwarding.NewState()
	add := func(port uint16, id forwarding.FrontendID) {
		key, frontend := forwarding.FrontendKey{VIP: vip, Port: port, Protocol: 6}, forwarding.Frontend{ID: id}
		apply(t, d, forwarding.PutFrontend{Key: key, Frontend: frontend})
		state.Frontends[key] = frontend
	}
	asked := 0
	ours := ProxiedFlow{Client: netip.MustParseAddrPort("198.51.100.200:40000"), VIP: netip.AddrPortFrom(vip, 80), Protocol: 6}
	others := ours
	others.VIP = netip.AddrPortFrom(vip, 79)
	take := func(wantAsked int, want ...forwarding.FrontendID) {
		t.Helper()
		err := d.MigrateFrontends(state, func() ([]ProxiedFlow, error) { asked++; return []ProxiedFlow{ours, others}, nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(taken(t, d))); !slices.Equal(got, want) || asked != wantAsked {
			t.Errorf("enabled frontends = %v, want %v; conntrack was listed %d times, want %d", got, want, asked, wantAsked)
		}
	}
	add(80, 1)
	if len(taken(t, d)) > 0 {
		t.Error("a new frontend is enabled immediately")
	}
	refused := errors.New("refused")
	if err := d.MigrateFrontends(state, func() ([]ProxiedFlow, error) { return nil, refused }); !errors.Is(err, refused) || len(taken(t, d)) > 0 {
		t.Errorf("error %v; frontends %v were enabled without the list of earlier connections", err, taken(t, d))
	}
	take(1, 1)
	if !isProxied(t, d, ours) || isProxied(t, d, others) {
		t.Error("want only connections to the frontend recorded")
	}
	take(1, 1)

	// The next agent claims new frontends only.
	reopen(ServiceProxyFrom)
	take(1, 1)
	add(81, 2)
	take(2, 1, 2)
	delete(state.Frontends, forwarding.FrontendKey{VIP: vip, Port: 80, Protocol: 6})
	take(2, 2)

	// Frontends served without a yielding service proxy are ours.
	reopen(ServiceProxyNone)
	add(82, 3)
	reopen(ServiceProxyFrom)
	if got := taken(t, d); !got[2] || !got[3] {
		t.Errorf("enabled frontends = %v, want 2 and 3", got)
	}
}

// TestSweepProxied deletes records of ended connections, and queries the service proxy only if there are
// records.
func TestSweepProxied(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	cfg.ServiceProxy = ServiceProxyFrom
	d := openDataplane(t, cfg)
	living := []ProxiedFlow{
		{Client: netip.MustParseAddrPort("198.51.100.200:40000"), VIP: netip.MustParseAddrPort("203.0.113.1:80"), Protocol: 6},
		{Client: netip.MustParseAddrPort("[2001:db8:1::7]:40000"), VIP: netip.MustParseAddrPort("[2001:db8:cafe::1]:53"), Protocol: 17},
	}
	ended := living[0]
	ended.Client = netip.MustParseAddrPort("198.51.100.200:40001")
	asked := 0
	has := func() ([]ProxiedFlow, error) { asked++; return living, nil }
	if err := d.SweepProxied(has); err != nil || asked != 0 {
		t.Errorf("%v; conntrack was listed %d times without recorded connections", err, asked)
	}
	for _, flow := range append(slices.Clone(living), ended) {
		if err := d.maps.ProxyConnections.Put(encodeFlow(flow), uint32(1)); err != nil {
			t.Fatal(err)
		}
	}
	refused := errors.New("refused")
	if err := d.SweepProxied(func() ([]ProxiedFlow, error) { return nil, refused }); !errors.Is(err, refused) || !isProxied(t, d, living[0]) {
		t.Errorf("error %v; want no deletion without a conntrack list", err)
	}
	if err := d.SweepProxied(has); err != nil {
		t.Fatal(err)
	}
	if !isProxied(t, d, living[0]) || !isProxied(t, d, living[1]) || isProxied(t, d, ended) {
		t.Error("want only the closed connection deleted")
	}
}

func taken(t *testing.T, d *Dataplane) map[forwarding.FrontendID]bool {
	t.Helper()
	all := map[forwarding.FrontendID]bool{}
	err := readMap(d.maps.MigratedFrontends, func(id, taken uint32) {
		if id != modePlace && taken != 0 {
			all[forwarding.FrontendID(id)] = true
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func isProxied(t *testing.T, d *Dataplane, flow ProxiedFlow) bool {
	t.Helper()
	var noted uint32
	err := d.maps.ProxyConnections.Lookup(encodeFlow(flow), &noted)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestServiceProxyServesNewConnections releases frontends to the stack of a node, which serves new
// connections: its SYN-ACKs assign them to it. Existing connections continue on the pods.
func TestServiceProxyServesNewConnections(t *testing.T) {
	n := startNetwork(t, false)
	node := n.nodes[0]
	n.routeVIP(t, node)
	vips := []netip.AddrPort{netip.AddrPortFrom(vip4, clusterPort), netip.AddrPortFrom(vip6, clusterPort)}
	var before []*session
	for _, vip := range vips {
		before = append(before, connect(t, vip))
	}
	if err := node.dataplane.Close(); err != nil {
		t.Fatal(err)
	}
	node.cfg.ServiceProxy = ServiceProxyTo
	node.dataplane = openDataplane(t, node.cfg)
	n.attach(t, node, node.uplink)

	in(t, node.name, "address add "+vip4.String()+"/32 dev lo\naddress add "+vip6.String()+"/128 dev lo nodad")
	for _, vip := range vips {
		inNamespace(t, node.name, func() error {
			listener, err := net.Listen("tcp", vip.String())
			if err != nil {
				return err
			}
			t.Cleanup(func() { listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go serveTCP(pod{name: "stack"}, conn)
				}
			}()
			return nil
		})
	}
	for i, vip := range vips {
		for range 20 {
			taken := connect(t, vip)
			if taken.pod != "stack" {
				t.Fatalf("%s: a new connection is served by %s, want the stack", vip, taken.pod)
			}
			if err := taken.exchange(50000, 50000); err != nil {
				t.Errorf("%s: connection served by the stack: %v", vip, err)
			}
		}
		if err := before[i].exchange(50000, 50000); err != nil {
			t.Errorf("%s: earlier connection served by %s: %v", vip, before[i].pod, err)
		}
	}
	if got := counters(t, node); got.Events["passed_to_proxy"] == 0 {
		t.Errorf("events = %v, want passed_to_proxy", got.Events)
	}
}
