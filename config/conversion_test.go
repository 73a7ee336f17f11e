// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// A next version of LBPeer with another shape demonstrates docs/design/api-versions.md.

type nextPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   nextSpec                     `json:"spec"`
	Status millracev1beta1.LBPeerStatus `json:"status,omitempty"`
}

// nextSpec has one string for the router, and groups the timers. It has no field for maxPeers.
type nextSpec struct {
	// Where is an address with an interface if link-local, a range, or the family of the node's gateway:
	// 198.51.100.1, fe80::1%eth0, 198.51.100.0/28, IPv6.
	Where     string                     `json:"where"`
	Timers    nextTimers                 `json:"timers,omitempty"`
	Unchanged millracev1beta1.LBPeerSpec `json:"unchanged"`
}

type nextTimers struct {
	Hold      *metav1.Duration `json:"hold,omitempty"`
	Keepalive *metav1.Duration `json:"keepalive,omitempty"`
	Retry     *metav1.Duration `json:"retry,omitempty"`
}

func (p *nextPeer) DeepCopyObject() runtime.Object {
	copied := *p
	return &copied
}

// maxPeersAnnotation retains a field that the next version cannot express.
const maxPeersAnnotation = "test.millrace.io/max-peers"

func fromHub(_ context.Context, hub *millracev1beta1.LBPeer, peer *nextPeer) error {
	hub = hub.DeepCopy()
	spec := &hub.Spec
	peer.ObjectMeta, peer.Status = hub.ObjectMeta, hub.Status
	router := &spec.Router
	peer.Spec.Where = router.Address + router.Range + string(router.Gateway)
	if router.Interface != "" {
		peer.Spec.Where += "%" + router.Interface
	}
	if router.MaxPeers != nil {
		metav1.SetMetaDataAnnotation(&peer.ObjectMeta, maxPeersAnnotation, strconv.Itoa(int(*router.MaxPeers)))
	}
	peer.Spec.Timers = nextTimers{Hold: spec.HoldTime, Keepalive: spec.KeepaliveTime, Retry: spec.ConnectRetryTime}
	peer.Spec.Unchanged = *spec
	unchanged := &peer.Spec.Unchanged
	unchanged.Router = millracev1beta1.Router{}
	unchanged.HoldTime, unchanged.KeepaliveTime, unchanged.ConnectRetryTime = nil, nil, nil
	return nil
}

func toHub(_ context.Context, peer *nextPeer, hub *millracev1beta1.LBPeer) error {
	copied := (&millracev1beta1.LBPeer{ObjectMeta: peer.ObjectMeta, Spec: peer.Spec.Unchanged, Status: peer.Status}).DeepCopy()
	hub.ObjectMeta, hub.Spec, hub.Status = copied.ObjectMeta, copied.Spec, copied.Status
	router := millracev1beta1.Router{}
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
	if text, found := hub.Annotations[maxPeersAnnotation]; found {
		number, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return fmt.Errorf("annotation %s: %w", maxPeersAnnotation, err)
		}
		router.MaxPeers = new(int32(number))
		delete(hub.Annotations, maxPeersAnnotation)
		if len(hub.Annotations) == 0 {
			hub.Annotations = nil
		}
	}
	spec, timers := &hub.Spec, peer.Spec.Timers
	spec.Router, spec.HoldTime, spec.KeepaliveTime, spec.ConnectRetryTime = router, timers.Hold, timers.Keepalive, timers.Retry
	return nil
}

func converter() (http.Handler, error) {
	scheme := runtime.NewScheme()
	kind := millracev1beta1.GroupVersion.WithKind("LBPeer")
	scheme.AddKnownTypeWithName(kind, &millracev1beta1.LBPeer{})
	scheme.AddKnownTypeWithName(kind.GroupKind().WithVersion("v1"), &nextPeer{})
	spoke := conversion.NewSpokeConverter(&nextPeer{}, fromHub, toHub)
	created, err := conversion.NewHubSpokeConverter(&millracev1beta1.LBPeer{}, spoke)(scheme)
	if err != nil {
		return nil, fmt.Errorf("creating the converter: %w", err)
	}
	registry := conversion.NewRegistry()
	if err := registry.RegisterConverter(kind.GroupKind(), created); err != nil {
		return nil, fmt.Errorf("registering the converter: %w", err)
	}
	return conversion.NewWebhookHandler(scheme, registry), nil
}

// drawPeer draws an LBPeer that is valid in the fields that the next version changes.
func drawPeer(t *rapid.T) *millracev1beta1.LBPeer {
	number := func(name string) *int32 {
		if rapid.Bool().Draw(t, "has "+name) {
			return new(rapid.Int32Range(1, 64).Draw(t, name))
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
	return &millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: rapid.SampledFrom([]map[string]string{nil, {"team": "a"}}).Draw(t, "annotations")},
		Spec: millracev1beta1.LBPeerSpec{
			Router: router, LocalASN: 64513, PeerASN: rapid.Int64Range(1, 1<<32-1).Draw(t, "peerASN"), PeerPort: 179,
			HoldTime: seconds("hold"), KeepaliveTime: seconds("keepalive"), ConnectRetryTime: seconds("retry"),
			MultihopTTL: number("multihopTTL"),
			Families:    rapid.SampledFrom([][]millracev1beta1.AddressFamily{nil, {"IPv4"}, {"IPv6", "IPv4"}}).Draw(t, "families"),
		},
	}
}

// TestConversionRoundTrip converts to the next version and back, from each end.
func TestConversionRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawPeer(t)
		original := want.DeepCopy()
		next, back, again := &nextPeer{}, &millracev1beta1.LBPeer{}, &nextPeer{}
		for _, err := range []error{
			fromHub(t.Context(), want, next), toHub(t.Context(), next, back), fromHub(t.Context(), back, again),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(back, want) || !reflect.DeepEqual(want, original) {
			t.Fatalf("%+v became %+v, and then %+v", original, next, back)
		}
		if !reflect.DeepEqual(again, next) {
			t.Fatalf("%+v became %+v", next, again)
		}
	})
}
