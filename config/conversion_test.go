// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// A third version of LBPeer, of another shape, to try how one would be added: docs/design.md,
// Versions. The stored version is the hub.

// tomorrowsPeer is an LBPeer of the third version.
type tomorrowsPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   tomorrowsSpec                `json:"spec"`
	Status millracev1beta1.LBPeerStatus `json:"status,omitempty"`
}

// tomorrowsSpec has one text for the router, and the timers together. It has no previous names.
type tomorrowsSpec struct {
	// Where is an address, with the interface of a link-local one, or a range, or a gateway's
	// family: 198.51.100.1, fe80::1%eth0, 198.51.100.0/28, IPv6.
	Where    string          `json:"where"`
	MaxPeers *int32          `json:"maxPeers,omitempty"`
	Timers   tomorrowsTimers `json:"timers,omitempty"`
	// Others are the fields that have not changed.
	Others millracev1beta1.LBPeerSpec `json:"others"`
}

type tomorrowsTimers struct {
	Hold      *metav1.Duration `json:"hold,omitempty"`
	Keepalive *metav1.Duration `json:"keepalive,omitempty"`
	Retry     *metav1.Duration `json:"retry,omitempty"`
}

func (p *tomorrowsPeer) DeepCopyObject() runtime.Object {
	copied := *p
	return &copied
}

// todaysPeer is v1beta1. Its type must differ from that of v1alpha1, as a scheme knows versions by
// types.
type todaysPeer struct{ millracev1beta1.LBPeer }

func (p *todaysPeer) DeepCopyObject() runtime.Object {
	return &todaysPeer{LBPeer: *p.DeepCopy()}
}

// calledByFormerNames is the annotation that says which previous names an LBPeer has, which the
// third version has no place for.
const calledByPreviousNames = "test.millrace.io/former-names"

// fromHub makes the third version of an LBPeer.
func fromHub(_ context.Context, hub *millracev1beta1.LBPeer, peer *tomorrowsPeer) error {
	hub = hub.DeepCopy()
	spec := &hub.Spec
	var previous []string
	router := millracev1beta1.Router{
		Address: spec.PeerAddress, Interface: spec.PeerInterface, Gateway: spec.PeerGateway, Range: spec.PeerRange, MaxPeers: spec.MaxPeers,
	}
	switch {
	case spec.Router != nil && !reflect.DeepEqual(router, millracev1beta1.Router{}):
		previous = append(previous, "both")
	case spec.Router == nil:
		previous = append(previous, "peerAddress")
	}
	if spec.Router != nil {
		router = *spec.Router
	}
	ttl := spec.MultihopTTL
	switch {
	case spec.EBGPMultiHop != nil && ttl != nil:
		previous = append(previous, "bothTTL")
	case spec.EBGPMultiHop != nil:
		previous, ttl = append(previous, "ebgpMultiHop"), spec.EBGPMultiHop
	}
	peer.ObjectMeta, peer.Status = hub.ObjectMeta, hub.Status
	if len(previous) > 0 {
		metav1.SetMetaDataAnnotation(&peer.ObjectMeta, calledByPreviousNames, strings.Join(previous, ","))
	}
	peer.Spec.Where, peer.Spec.MaxPeers = router.Address+router.Range+string(router.Gateway), router.MaxPeers
	if router.Interface != "" {
		peer.Spec.Where += "%" + router.Interface
	}
	peer.Spec.Timers = tomorrowsTimers{Hold: spec.HoldTime, Keepalive: spec.KeepaliveTime, Retry: spec.ConnectRetryTime}
	peer.Spec.Others = *spec
	others := &peer.Spec.Others
	others.Router, others.MultihopTTL, others.EBGPMultiHop = nil, ttl, nil
	others.PeerAddress, others.PeerInterface, others.PeerGateway, others.PeerRange, others.MaxPeers = "", "", "", "", nil
	others.HoldTime, others.KeepaliveTime, others.ConnectRetryTime = nil, nil, nil
	return nil
}

// toHub makes the stored version of an LBPeer.
func toHub(_ context.Context, peer *tomorrowsPeer, hub *millracev1beta1.LBPeer) error {
	copied := (&millracev1beta1.LBPeer{ObjectMeta: peer.ObjectMeta, Spec: peer.Spec.Others, Status: peer.Status}).DeepCopy()
	hub.ObjectMeta, hub.Spec, hub.Status = copied.ObjectMeta, copied.Spec, copied.Status
	spec := &hub.Spec
	router := &millracev1beta1.Router{MaxPeers: peer.Spec.MaxPeers}
	switch address, link, found := strings.Cut(peer.Spec.Where, "%"); {
	case found:
		router.Address, router.Interface = address, link
	case strings.Contains(address, "/"):
		router.Range = address
	case strings.HasPrefix(address, "IPv"):
		router.Gateway = millracev1beta1.AddressFamily(address)
	default:
		router.Address = address
	}
	spec.Router = router
	spec.HoldTime, spec.KeepaliveTime, spec.ConnectRetryTime = peer.Spec.Timers.Hold, peer.Spec.Timers.Keepalive, peer.Spec.Timers.Retry
	previous := hub.Annotations[calledByPreviousNames]
	delete(hub.Annotations, calledByPreviousNames)
	if len(hub.Annotations) == 0 {
		hub.Annotations = nil
	}
	for name := range strings.SplitSeq(previous, ",") {
		switch name {
		case "both", "peerAddress":
			spec.PeerAddress, spec.PeerInterface, spec.PeerGateway = router.Address, router.Interface, router.Gateway
			spec.PeerRange, spec.MaxPeers = router.Range, router.MaxPeers
			if name == "peerAddress" {
				spec.Router = nil
			}
		case "bothTTL":
			spec.EBGPMultiHop = spec.MultihopTTL
		case "ebgpMultiHop":
			spec.EBGPMultiHop, spec.MultihopTTL = spec.MultihopTTL, nil
		}
	}
	return nil
}

// converter answers the API server's questions for versions of LBPeer.
func converter() (http.Handler, error) {
	scheme := runtime.NewScheme()
	group := millracev1beta1.GroupVersion.Group
	kind := func(version string) schema.GroupVersionKind {
		return schema.GroupVersionKind{Group: group, Version: version, Kind: "LBPeer"}
	}
	scheme.AddKnownTypeWithName(kind("v1alpha1"), &millracev1beta1.LBPeer{})
	scheme.AddKnownTypeWithName(kind("v1beta1"), &todaysPeer{})
	scheme.AddKnownTypeWithName(kind("v1"), &tomorrowsPeer{})
	making := conversion.NewHubSpokeConverter(&millracev1beta1.LBPeer{},
		conversion.NewSpokeConverter(&tomorrowsPeer{}, fromHub, toHub),
		conversion.NewSpokeConverter(&todaysPeer{},
			func(_ context.Context, hub *millracev1beta1.LBPeer, peer *todaysPeer) error {
				kept := peer.TypeMeta
				peer.LBPeer, peer.TypeMeta = *hub.DeepCopy(), kept
				return nil
			},
			func(_ context.Context, peer *todaysPeer, hub *millracev1beta1.LBPeer) error {
				kept := hub.TypeMeta
				*hub, hub.TypeMeta = *peer.LBPeer.DeepCopy(), kept
				return nil
			}))
	made, err := making(scheme)
	if err != nil {
		return nil, fmt.Errorf("making the converter: %w", err)
	}
	registry := conversion.NewRegistry()
	if err := registry.RegisterConverter(kind("v1").GroupKind(), made); err != nil {
		return nil, fmt.Errorf("registering the converter: %w", err)
	}
	return conversion.NewWebhookHandler(scheme, registry), nil
}

// drawPeer draws an LBPeer that its schema accepts, as far as the shape differs.
func drawPeer(t *rapid.T) *millracev1beta1.LBPeer {
	number := func(name string) *int32 {
		if rapid.Bool().Draw(t, "has "+name) {
			value := rapid.Int32Range(1, 64).Draw(t, name)
			return &value
		}
		return nil
	}
	seconds := func(name string) *metav1.Duration {
		if value := number(name); value != nil {
			return &metav1.Duration{Duration: time.Duration(*value) * time.Second}
		}
		return nil
	}
	router := rapid.SampledFrom([]millracev1beta1.Router{
		{Address: "198.51.100.1"}, {Address: "2001:db8::1"}, {Address: "fe80::1", Interface: "eth0.100"},
		{Gateway: "IPv4"}, {Gateway: "IPv6"}, {Range: "198.51.100.0/28"}, {Range: "2001:db8::/64"},
	}).Draw(t, "router")
	if router.Range != "" {
		router.MaxPeers = number("maxPeers")
	}
	peer := &millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: rapid.SampledFrom([]map[string]string{nil, {"team": "a"}}).Draw(t, "annotations")},
		Spec: millracev1beta1.LBPeerSpec{
			LocalASN: 64513, PeerASN: rapid.Int64Range(1, 1<<32-1).Draw(t, "peerASN"), PeerPort: 179,
			HoldTime: seconds("hold"), KeepaliveTime: seconds("keepalive"), ConnectRetryTime: seconds("retry"),
			Families: rapid.SampledFrom([][]millracev1beta1.AddressFamily{nil, {"IPv4"}, {"IPv6", "IPv4"}}).Draw(t, "families"),
		},
	}
	spec := &peer.Spec
	names := rapid.SampledFrom([]string{"now", "former", "both"}).Draw(t, "names")
	if names != "former" {
		spec.Router = router.DeepCopy()
	}
	if names != "now" {
		spec.PeerAddress, spec.PeerInterface, spec.PeerGateway = router.Address, router.Interface, router.Gateway
		spec.PeerRange, spec.MaxPeers = router.Range, router.MaxPeers
	}
	spec.MultihopTTL = number("multihopTTL")
	if spec.MultihopTTL == nil || rapid.Bool().Draw(t, "ebgpMultiHop, too") {
		spec.EBGPMultiHop = spec.MultihopTTL
		if spec.EBGPMultiHop == nil {
			spec.EBGPMultiHop = number("ebgpMultiHop")
		}
	}
	return peer
}

// What goes to the third version and back is what it was, from each end.
func TestConversionThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawPeer(t)
		before := want.DeepCopy()
		there, back, again := &tomorrowsPeer{}, &millracev1beta1.LBPeer{}, &tomorrowsPeer{}
		for _, err := range []error{
			fromHub(t.Context(), want, there), toHub(t.Context(), there, back), fromHub(t.Context(), back, again),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(back, want) || !reflect.DeepEqual(want, before) {
			t.Fatalf("%+v became %+v, and that %+v", before, there, back)
		}
		if !reflect.DeepEqual(again, there) {
			t.Fatalf("%+v became %+v", there, again)
		}
	})
}
