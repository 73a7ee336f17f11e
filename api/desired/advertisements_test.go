// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestAdvertisements(t *testing.T) {
	type spec = millracev1beta1.VIPAdvertisementSpec
	tooHigh, tooLow := int64(1<<32), int64(-1)
	tests := []struct {
		name     string
		spec     spec
		problems []string
	}{
		{"everything", spec{}, nil},
		{"valid", spec{Pools: []string{"pool"}, Peers: []string{"peer"}, Communities: []string{"64512:100", "0:65535", "4200000000:1:4294967295"}}, nil},
		{"references", spec{Pools: []string{"pool", "none"}, Peers: []string{"nobody"}}, []string{
			`adv Invalid spec.pools[1]: VIPPool "none" does not exist`,
			`adv Invalid spec.peers[0]: LBPeer "nobody" does not exist`,
		}},
		{"selectors", spec{ServiceSelector: badSelector, NodeSelector: badSelector}, []string{
			"adv Invalid spec.nodeSelector: ", "adv Invalid spec.serviceSelector: ",
		}},
		{"extended communities", spec{Communities: []string{"rt:1:4294967296", "rt:70000:65536", "soo:x:1", "rt:1"}}, []string{
			`adv Invalid spec.communities[0]: "rt:1:4294967296": "4294967296" must be a number from 0 to 4294967295`,
			`adv Invalid spec.communities[1]: "rt:70000:65536": "65536" must be a number from 0 to 65535`,
			`adv Invalid spec.communities[2]: "soo:x:1": "x" must be a number from 0 to 4294967295`,
			`adv Invalid spec.communities[3]: "rt:1": an extended community has two numbers after its name`,
		}},
		{"MED and prepend", spec{MED: &tooLow, ASPathPrepend: 17}, []string{
			"adv Invalid spec.med: -1 is not between 0 and 4294967295",
			"adv Invalid spec.asPathPrepend: 17 is not between 0 and 16",
		}},
		{"communities", spec{Communities: []string{"65536:1", "1:2:4294967296", "1", "1:2:3:4", "a:b", "-1:1"}}, []string{
			`adv Invalid spec.communities[0]: "65536:1": "65536" must be a number from 0 to 65535`,
			`adv Invalid spec.communities[1]: "1:2:4294967296": "4294967296" must be a number from 0 to 4294967295`,
			`adv Invalid spec.communities[2]: "1" is not a community`,
			`adv Invalid spec.communities[3]: "1:2:3:4" is not a community`,
			`adv Invalid spec.communities[4]: "a:b": "a" must be`,
			`adv Invalid spec.communities[5]: "-1:1": "-1" must be`,
		}},
		{"link bandwidth", spec{LinkBandwidth: millracev1beta1.LinkBandwidthEndpoints}, nil},
		{"aggregation", spec{AggregationLength: ptr(24), AggregationLengthV6: ptr(64)}, nil},
		{"aggregation too short", spec{AggregationLength: ptr(7), AggregationLengthV6: ptr(129)}, []string{
			"adv Invalid spec.aggregationLength: 7 is not between 8 and 32",
			"adv Invalid spec.aggregationLengthV6: 129 is not between 32 and 128",
		}},
		{"no aggregation beside link bandwidth", spec{
			LinkBandwidth: millracev1beta1.LinkBandwidthEndpoints, AggregationLength: ptr(32), AggregationLengthV6: ptr(128),
		}, nil},
		{"aggregation beside link bandwidth", spec{
			LinkBandwidth: millracev1beta1.LinkBandwidthEndpoints, AggregationLengthV6: ptr(64),
		}, []string{"adv Invalid spec.linkBandwidth: is mutually exclusive with aggregation"}},
		{"unknown link bandwidth", spec{LinkBandwidth: "Pods"}, []string{`adv Invalid spec.linkBandwidth: "Pods" is unknown: must be Endpoints`}},
		{"local preference", spec{LocalPreference: &tooHigh}, []string{"adv Invalid spec.localPreference: 4294967296 is not between 0 and 4294967295"}},
	}
	pools := []millracev1beta1.VIPPool{poolAged("pool", 0)}
	peers := []millracev1beta1.LBPeer{peerAged("peer", 0, nil)}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			object := millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "adv"}, Spec: test.spec}
			checkProblems(t, Advertisements([]millracev1beta1.VIPAdvertisement{object}, pools, peers), test.problems)
		})
	}
}

func ptr(length int32) *int32 { return &length }

func TestParseAdvertisement(t *testing.T) {
	preference, med := int64(200), int64(0)
	object := &millracev1beta1.VIPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: "adv"},
		Spec: millracev1beta1.VIPAdvertisementSpec{
			Pools: []string{"b", "a"}, Peers: []string{"r"}, LocalPreference: &preference,
			Communities: []string{
				"graceful-shutdown", "65535:0", "64512:1:2", "64512:100", "64512:100", "soo:70000:1", "rt:64512:100000", "rt:64512:100000",
			},
			MED: &med, ASPathPrepend: 3,
		},
	}
	got, problems := ParseAdvertisement(object)
	if got.Services != nil || !got.Nodes.Matches(nil) {
		t.Errorf("absent selectors are %v and %v, want all VIPs and all nodes", got.Services, got.Nodes)
	}
	got.Nodes = nil
	low := uint32(200)
	want := Advertisement{
		Name: "adv", Pools: []string{"a", "b"}, Peers: []string{"r"}, LocalPreference: &low,
		Communities: []uint32{64512<<16 | 100, 65535 << 16}, LargeCommunities: [][3]uint32{{64512, 1, 2}},
		ExtendedCommunities: []ExtendedCommunity{{RouteTarget, 64512, 100000}, {SiteOfOrigin, 70000, 1}}, MED: new(uint32), Prepend: 3,
	}
	if len(problems) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("ParseAdvertisement = %+v, %v, want %+v", got, problems, want)
	}
	object.Spec.ServiceSelector, object.Spec.NodeSelector = rack("1"), badSelector
	got, problems = ParseAdvertisement(object)
	if len(problems) != 1 || got.Nodes != nil || got.Services.Matches(labels.Set{"rack": "2"}) || !got.Services.Matches(labels.Set{"rack": "1"}) {
		t.Errorf("with selectors: %+v, %v", got, problems)
	}
}

func TestAdvertisementSelects(t *testing.T) {
	front, back := labels.Set{"tier": "front"}, labels.Set{"tier": "back"}
	backOnly := labels.SelectorFromSet(back)
	tests := []struct {
		name          string
		advertisement Advertisement
		services      []labels.Set
		want          bool
	}{
		{"everything", Advertisement{}, []labels.Set{front}, true},
		{"everything, a VIP without a Service", Advertisement{}, nil, true},
		{"the pool", Advertisement{Pools: []string{"other", "public"}}, []labels.Set{front}, true},
		{"another pool", Advertisement{Pools: []string{"other"}}, []labels.Set{front}, false},
		{"other labels", Advertisement{Services: backOnly}, []labels.Set{front}, false},
		{"labels of one of two Services", Advertisement{Services: backOnly}, []labels.Set{front, back}, true},
		{"labels, but another pool", Advertisement{Pools: []string{"other"}, Services: backOnly}, []labels.Set{back}, false},
		{"a selector of everything, a VIP without a Service", Advertisement{Services: labels.Everything()}, nil, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.advertisement.Selects("public", test.services); got != test.want {
				t.Errorf("Selects = %t, want %t", got, test.want)
			}
		})
	}
}
