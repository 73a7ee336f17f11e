// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func withCanaries(name, router string, canaries ...string) millracev1beta1.LBPeer {
	return millracev1beta1.LBPeer{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: millracev1beta1.LBPeerSpec{
		Router: millracev1beta1.Router{Address: router}, PeerASN: 64512, LocalASN: 64513, Canaries: canaries,
	}}
}

func TestCanaries(t *testing.T) {
	for name, test := range map[string]struct {
		canaries []string
		problems int
	}{
		"none":              {nil, 0},
		"one":               {[]string{"203.0.113.250"}, 0},
		"no address":        {[]string{"203.0.113"}, 1},
		"loopback":          {[]string{"127.0.0.1"}, 1},
		"another family":    {[]string{"2001:db8::250"}, 1},
		"two of one family": {[]string{"203.0.113.250", "203.0.113.251"}, 1},
	} {
		peer := withCanaries("tor1", "198.51.100.1", test.canaries...)
		if _, problems := ParsePeer(&peer); len(problems) != test.problems {
			t.Errorf("%s: problems %v, want %d", name, problems, test.problems)
		}
	}
}

// TestCanariesAreOwned checks that a canary belongs to one LBPeer and is not assigned from a pool.
func TestCanariesAreOwned(t *testing.T) {
	peers := []millracev1beta1.LBPeer{
		withCanaries("tor1", "198.51.100.1", "203.0.113.250"), withCanaries("tor2", "198.51.100.2", "203.0.113.250"),
	}
	if problems := Peers(peers); len(problems) != 1 || problems[0].Object.Name != "tor2" {
		t.Errorf("problems %v, want one of tor2", problems)
	}
	canary := netip.MustParseAddr("203.0.113.250")
	occupied := OccupiedByPeer(&peers[0])
	at := slices.IndexFunc(occupied, func(o Occupied) bool { return o.Range.Contains(canary) })
	if at < 0 || occupied[at].Host {
		t.Errorf("occupied: %v, want the canary included, which no host has", occupied)
	}
}
