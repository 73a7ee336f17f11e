// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// TestNetworks checks that a family without a gateway, or whose routes cannot be read, keeps its previous
// gateway.
func TestNetworks(t *testing.T) {
	first, second := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	var found []netip.Addr
	var fails error
	n := NewNetworks(
		func() ([]netdev.Network, error) { return nil, nil },
		func() (map[int][]netip.Addr, error) { return map[int][]netip.Addr{unix.AF_INET: found}, fails },
	)
	for _, step := range []struct {
		name        string
		found, want []netip.Addr
		fails       error
	}{
		{"none yet", nil, nil, nil},
		{"one", []netip.Addr{first}, []netip.Addr{first}, nil},
		{"lost", nil, []netip.Addr{first}, nil},
		{"another", []netip.Addr{second}, []netip.Addr{second}, nil},
		{"not read", nil, []netip.Addr{second}, errors.New("no netlink")},
	} {
		found, fails = step.found, step.fails
		var objects model.Snapshot
		err := n.Add(&objects)
		if got := objects.Gateways[millracev1beta1.FamilyIPv4]; !slices.Equal(got, step.want) || !errors.Is(err, step.fails) {
			t.Errorf("%s: %v, %v, want %v, %v", step.name, got, err, step.want, step.fails)
		}
	}
	if err := (*Networks)(nil).Add(&model.Snapshot{}); err != nil {
		t.Errorf("without networks: %v", err)
	}
}
