// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/retention"
	"github.com/millrace-lb/millrace/lbagent/internal/uplink"
)

// others is a Nodes with node 2 down, without probes, and withheld endpoints are in EndpointSlice seen.
type others struct{}

var withheld = []*discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Name: "seen"}}}

func (others) Answers(*model.Snapshot) func(string) bool { return nil }

func (others) Annotate(objects *model.Snapshot, _ time.Time) *model.Snapshot {
	seen := *objects
	seen.Down, seen.EndpointSlices = map[forwarding.NodeID]bool{2: true}, withheld
	return &seen
}

func peer(name string) *millracev1beta1.LBPeer {
	return &millracev1beta1.LBPeer{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
}

// Mass removals are held and reported. Local observations are in Objects but not in Checkpoint.
func TestRead(t *testing.T) {
	const hold = time.Minute
	objects := &model.Snapshot{Peers: []*millracev1beta1.LBPeer{peer("a"), peer("b"), peer("c"), peer("d")}}
	network := netdev.Network{Interface: "eth0", Prefix: netip.MustParsePrefix("198.51.100.0/24")}
	failure := errors.New("no netlink")
	var networksErr error
	networks := uplink.NewNetworks(
		func() ([]netdev.Network, error) { return []netdev.Network{network}, networksErr },
		func() (map[int][]netip.Addr, error) { return nil, nil },
	)
	in := New(func() *model.Snapshot { copied := *objects; return &copied }, nil, hold, networks, logr.Discard())
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	read := in.Assemble(others{}, start)
	if len(read.Objects.Peers) != 4 || !read.Objects.Down[2] || len(read.Objects.OnLink) != 1 || len(read.Held) != 0 || read.RequeueAfter != 0 {
		t.Errorf("snapshot = %+v", read)
	}
	if read.Checkpoint.Down != nil || read.Checkpoint.OnLink != nil {
		t.Errorf("the checkpoint contains local observations: %+v", read.Checkpoint)
	}
	if !slices.Equal(read.Checkpoint.EndpointSlices, withheld) {
		t.Errorf("the checkpoint does not withhold endpoints: %+v", read.Checkpoint.EndpointSlices)
	}
	objects, networksErr = &model.Snapshot{}, failure
	read = in.Assemble(others{}, start.Add(time.Second))
	if len(read.Objects.Peers) != 4 || len(read.Checkpoint.Peers) != 4 || len(read.Held) != 1 || read.RequeueAfter == 0 || read.RequeueAfter > hold {
		t.Errorf("after the removal of all peers: %+v", read)
	}
	if !errors.Is(read.NetworksErr, failure) || len(read.Objects.OnLink) != 1 {
		t.Errorf("networks = %v, error %v; want the previous ones and %v", read.Objects.OnLink, read.NetworksErr, failure)
	}
	if read = in.Assemble(others{}, start.Add(2*hold)); len(read.Objects.Peers) != 0 || len(read.Held) != 0 {
		t.Errorf("after the hold time: %+v", read)
	}
}

type allUp struct{ others }

func (allUp) Annotate(objects *model.Snapshot, _ time.Time) *model.Snapshot { return objects }

// Endpoints of a Service that releases its VIP are not retained while the removal guard holds its
// EndpointSlices, also after a restart. Retained endpoints are last.
func TestRetentionFollowsGuard(t *testing.T) {
	deleted := metav1.Now()
	port := int32(80)
	slice := func(service string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Ports:      []discoveryv1.EndpointPort{{Port: &port}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"pod-of-" + service}}},
		}
	}
	released := slice("released")
	objects := model.Snapshot{
		Services: []*corev1.Service{{ObjectMeta: metav1.ObjectMeta{Name: "released", UID: "1", DeletionTimestamp: &deleted}}},
		VIPs: []*millracev1beta1.VIP{{Spec: millracev1beta1.VIPSpec{
			Claims: []millracev1beta1.VIPClaim{{Name: "released", UID: "1"}, {Name: "other", UID: "2"}},
		}}},
		EndpointSlices: []*discoveryv1.EndpointSlice{released, slice("other")},
	}
	networks := uplink.NewNetworks(
		func() ([]netdev.Network, error) { return nil, nil }, func() (map[int][]netip.Addr, error) { return nil, nil },
	)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	read := Input{Checkpoint: &objects}
	for i := range 3 {
		present := objects
		if i > 0 {
			present.EndpointSlices = nil
		}
		in := New(func() *model.Snapshot { return &present }, read.Checkpoint, time.Minute, networks, logr.Discard())
		in.Retention = retention.New(read.Checkpoint.EndpointSlices, retention.Limits{Timeout: time.Hour, Endpoints: 9})
		in.IsAddressGone = func(netip.Addr) bool { return false }
		read = in.Assemble(allUp{}, start.Add(time.Duration(i)*time.Second))
		listed := retention.Listed(read.Objects.EndpointSlices)
		retained := read.Objects.EndpointSlices[len(listed):]
		if i == 0 {
			continue
		}
		if !slices.Equal(listed, []*discoveryv1.EndpointSlice{released}) || len(retained) != 1 || retained[0].Labels[discoveryv1.LabelServiceName] != "other" {
			t.Errorf("pass %d: listed = %+v, retained = %+v", i, listed, retained)
		}
	}
}
