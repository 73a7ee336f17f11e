// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// TestTakeFrontends takes frontends as they come, over restarts of the agent and changes of the mode.
func TestTakeFrontends(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	cfg.ServiceProxy = ServiceProxyYields
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
		err := d.TakeFrontends(state, func() ([]ProxiedFlow, error) { asked++; return []ProxiedFlow{ours, others}, nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(taken(t, d))); !slices.Equal(got, want) || asked != wantAsked {
			t.Errorf("frontends %v are taken, want %v; netfilter was asked %d times, want %d", got, want, asked, wantAsked)
		}
	}
	add(80, 1)
	if len(taken(t, d)) > 0 {
		t.Error("a frontend is taken as it comes")
	}
	refused := errors.New("refused")
	if err := d.TakeFrontends(state, func() ([]ProxiedFlow, error) { return nil, refused }); !errors.Is(err, refused) || len(taken(t, d)) > 0 {
		t.Errorf("error %v; taken %v without what began before", err, taken(t, d))
	}
	take(1, 1)
	if !isProxied(t, d, ours) || isProxied(t, d, others) {
		t.Error("not the connections to the frontend are noted, and no others")
	}
	take(1, 1)

	// The next agent takes what came after the one before, and asks for nothing else again.
	reopen(ServiceProxyYields)
	take(1, 1)
	add(81, 2)
	take(2, 1, 2)
	delete(state.Frontends, forwarding.FrontendKey{VIP: vip, Port: 80, Protocol: 6})
	take(2, 2)

	// What is served while nobody is to yield is ours.
	reopen(ServiceProxyNone)
	add(82, 3)
	reopen(ServiceProxyYields)
	if got := taken(t, d); !got[2] || !got[3] {
		t.Errorf("frontends %v are taken, want 2 and 3", got)
	}
}

func taken(t *testing.T, d *Dataplane) map[forwarding.FrontendID]bool {
	t.Helper()
	all := map[forwarding.FrontendID]bool{}
	err := readMap(d.maps.TakenFrontends, func(id, taken uint32) {
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
	err := d.maps.Proxied.Lookup(encodeFlow(flow), &noted)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	return err == nil
}
