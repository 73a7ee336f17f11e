// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestEventsAbout(t *testing.T) {
	about := subjects{"Service": {"web": true}, "EndpointSlice": {}, "Pod": {}, "VIP": {}}
	about.addSlices([]discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{Name: "web-abc"},
		Endpoints: []discoveryv1.Endpoint{
			{TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-7d9c-x2x9z"}}, {},
			{TargetRef: &corev1.ObjectReference{Kind: "Node", Name: "web-9-9"}},
		},
	}})
	claims := func(name, service string) millracev1beta1.VIP {
		return millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: millracev1beta1.VIPSpec{
			Claims: []millracev1beta1.VIPClaim{{Namespace: "default", Name: service}},
		}}
	}
	about.addVIPs([]millracev1beta1.VIP{claims("203.0.113.1", "web"), claims("203.0.113.2", "dns")}, "default", "web")
	for of, want := range map[corev1.ObjectReference]bool{
		{Kind: "Service", Namespace: "default", Name: "web"}:           true,
		{Kind: "Service", Namespace: "other", Name: "web"}:             false,
		{Kind: "Service", Namespace: "default", Name: "dns"}:           false,
		{Kind: "EndpointSlice", Namespace: "default", Name: "web-abc"}: true,
		{Kind: "Pod", Namespace: "default", Name: "web-7d9c-x2x9z"}:    true,
		{Kind: "Pod", Namespace: "default", Name: "web-7d9c-gone1"}:    true,
		{Kind: "Pod", Namespace: "default", Name: "dns-7d9c-gone1"}:    false,
		{Kind: "Pod", Namespace: "default", Name: "web-9-8"}:           false,
		{Kind: "VIP", Name: "203.0.113.1"}:                             true,
		{Kind: "VIP", Name: "203.0.113.2"}:                             false,
		{Kind: "Node", Name: "node1"}:                                  true,
		{Kind: "LBPeer", Name: "tor1"}:                                 true,
		{Kind: "Deployment", Namespace: "default", Name: "web"}:        false,
	} {
		if got := about.has(&corev1.Event{InvolvedObject: of}, "default"); got != want {
			t.Errorf("%s %s/%s: selected %t, want %t", of.Kind, of.Namespace, of.Name, got, want)
		}
	}
}

func TestTimeOfEvent(t *testing.T) {
	at := time.Date(2026, 11, 26, 3, 12, 0, 0, time.UTC)
	for what, event := range map[string]corev1.Event{
		"series": {Series: &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(at)}, EventTime: metav1.NewMicroTime(at.Add(-time.Hour))},
		"last":   {LastTimestamp: metav1.NewTime(at), FirstTimestamp: metav1.NewTime(at.Add(-time.Hour))},
		"new":    {EventTime: metav1.NewMicroTime(at), ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at.Add(time.Hour))}},
		"none":   {ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at)}},
	} {
		if got := timeOf(&event); !got.Equal(at) {
			t.Errorf("%s: %s, want %s", what, got, at)
		}
	}
}
