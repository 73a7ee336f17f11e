// SPDX-License-Identifier: Apache-2.0

package write

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

const (
	us   = gatewayv1.GatewayController("millrace.io/gateway")
	them = gatewayv1.GatewayController("example.com/other")
)

var long = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

func condition(kind string, status metav1.ConditionStatus, at metav1.Time) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: "Because", LastTransitionTime: at}
}

func recent(c []metav1.Condition) []metav1.Condition {
	for i := range c {
		if time.Since(c[i].LastTransitionTime.Time) < time.Minute {
			c[i].LastTransitionTime = metav1.Time{}
		}
	}
	return c
}

func parent(of gatewayv1.GatewayController, name string, conditions ...metav1.Condition) gatewayv1.RouteParentStatus {
	return gatewayv1.RouteParentStatus{
		ControllerName: of, ParentRef: gatewayv1.ParentReference{Name: gatewayv1.ObjectName(name)}, Conditions: conditions,
	}
}

func TestMergeRoute(t *testing.T) {
	w := &Writer{Controller: us}
	status := gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{
		parent(us, "gone", condition("Accepted", "True", long)),
		parent(them, "theirs", condition("Accepted", "True", long)),
		parent(us, "kept", condition("Accepted", "True", long), condition("ResolvedRefs", "True", long), condition("PartiallyInvalid", "True", long), condition("example.com/Audited", "True", long)),
	}}
	w.mergeRoute(&status, gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{
		parent(us, "kept", condition("Accepted", "True", metav1.Time{}), condition("ResolvedRefs", "False", metav1.Time{})),
		parent(us, "new", condition("Accepted", "True", metav1.Time{})),
	}})
	for i := range status.Parents {
		status.Parents[i].Conditions = recent(status.Parents[i].Conditions)
	}
	want := []gatewayv1.RouteParentStatus{
		parent(them, "theirs", condition("Accepted", "True", long)),
		parent(us, "kept", condition("Accepted", "True", long), condition("ResolvedRefs", "False", metav1.Time{}),
			condition("example.com/Audited", "True", long)),
		parent(us, "new", condition("Accepted", "True", metav1.Time{})),
	}
	if difference := cmp.Diff(want, status.Parents); difference != "" {
		t.Error(difference)
	}

	// A route without own parents is unchanged, and a stale entry is removed.
	untouched := gatewayv1.RouteStatus{}
	w.mergeRoute(&untouched, gatewayv1.RouteStatus{})
	if untouched.Parents != nil {
		t.Errorf("an empty status was changed to %v", untouched.Parents)
	}
	cleaned := gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{parent(us, "gone")}}
	w.mergeRoute(&cleaned, gatewayv1.RouteStatus{})
	if cleaned.Parents == nil || len(cleaned.Parents) != 0 {
		t.Errorf("entries without conditions were changed to %v, want an empty list", cleaned.Parents)
	}
}

// TestConditionsOfOthers checks that only obsolete conditions of our own are removed.
func TestConditionsOfOthers(t *testing.T) {
	theirs := condition("example.com/Audited", "True", long)
	before := []metav1.Condition{theirs, condition("Programmed", "True", long), condition("ResolvedRefs", "False", long)}
	want := []metav1.Condition{theirs, condition("Programmed", "True", long)}
	wanted := []metav1.Condition{condition("Programmed", "True", metav1.Time{})}
	had := func() []metav1.Condition { return append([]metav1.Condition(nil), before...) }
	whole := gatewayState{}

	gateway := gatewayv1.GatewayStatus{Conditions: had(), Listeners: []gatewayv1.ListenerStatus{{Name: "web", Conditions: had()}}}
	mergeGateway(&gateway, gatewayv1.GatewayStatus{
		Conditions: wanted, Listeners: []gatewayv1.ListenerStatus{{Name: "web", Conditions: wanted}},
	}, whole)
	set := gatewayv1.ListenerSetStatus{Conditions: had(), Listeners: []gatewayv1.ListenerEntryStatus{{Name: "web", Conditions: had()}}}
	mergeListenerSet(&set, gatewayv1.ListenerSetStatus{
		Conditions: wanted, Listeners: []gatewayv1.ListenerEntryStatus{{Name: "web", Conditions: wanted}},
	}, whole)
	policy := gatewayv1.PolicyStatus{Ancestors: []gatewayv1.PolicyAncestorStatus{{ControllerName: us, Conditions: had()}}}
	(&Writer{Controller: us}).mergePolicy(&policy, gatewayv1.PolicyStatus{
		Ancestors: []gatewayv1.PolicyAncestorStatus{{ControllerName: us, Conditions: wanted}},
	})
	for name, got := range map[string][]metav1.Condition{
		"Gateway": gateway.Conditions, "its listener": gateway.Listeners[0].Conditions,
		"ListenerSet": set.Conditions, "its listener of a set": set.Listeners[0].Conditions,
		"policy": policy.Ancestors[0].Conditions,
	} {
		if difference := cmp.Diff(want, got); difference != "" {
			t.Errorf("%s: %s", name, difference)
		}
	}
}

func TestMergePolicyKeepsOthersAndTheLimit(t *testing.T) {
	w := &Writer{Controller: us}
	var status, wanted gatewayv1.PolicyStatus
	for range 10 {
		status.Ancestors = append(status.Ancestors, gatewayv1.PolicyAncestorStatus{ControllerName: them})
		wanted.Ancestors = append(wanted.Ancestors, gatewayv1.PolicyAncestorStatus{ControllerName: us})
	}
	w.mergePolicy(&status, wanted)
	if len(status.Ancestors) != 16 || status.Ancestors[9].ControllerName != them || status.Ancestors[10].ControllerName != us {
		t.Errorf("%d ancestors, want all foreign ones and 6 of ours", len(status.Ancestors))
	}
}

func denied(message string) *metav1.Condition {
	return &metav1.Condition{Type: "millrace.io/AddressAssigned", Status: metav1.ConditionFalse, Reason: "AddressInUse", Message: message}
}

func TestMergeGateway(t *testing.T) {
	programmed := condition("Programmed", "True", metav1.Time{})
	compiled := gatewayv1.GatewayStatus{
		Conditions: []metav1.Condition{condition("Accepted", "True", metav1.Time{}), programmed},
		Listeners: []gatewayv1.ListenerStatus{
			{Name: "web", SupportedKinds: []gatewayv1.RouteGroupKind{{Kind: "HTTPRoute"}}, Conditions: []metav1.Condition{programmed}},
			{Name: "tcp", SupportedKinds: []gatewayv1.RouteGroupKind{{Kind: "TCPRoute"}}, Conditions: []metav1.Condition{programmed}},
		},
	}
	kind := gatewayv1.IPAddressType
	addresses := []gatewayv1.GatewayStatusAddress{{Type: &kind, Value: "203.0.113.1"}, {Type: &kind, Value: "2001:db8::1"}}
	requested := []string{"203.0.113.1", "2001:DB8:0::1"}
	for name, test := range map[string]struct {
		at        gatewayState
		reason    string
		listeners [2]string
	}{
		"no VIP":                       {gatewayState{served: true, proxied: true, available: true}, "AddressNotAssigned", [2]string{"Pending", "Pending"}},
		"no proxy":                     {gatewayState{served: true, proxied: true, addresses: addresses}, "Pending", [2]string{"Pending", "Because"}},
		"whole":                        {gatewayState{served: true, proxied: true, addresses: addresses, available: true}, "Because", [2]string{"Because", "Because"}},
		"nothing served":               {gatewayState{}, "Because", [2]string{"Because", "Because"}},
		"layer 4":                      {gatewayState{served: true, addresses: addresses}, "Because", [2]string{"Because", "Because"}},
		"layer 4, no VIP":              {gatewayState{served: true}, "AddressNotAssigned", [2]string{"Pending", "Pending"}},
		"all requested addresses":      {gatewayState{served: true, addresses: addresses, requested: requested}, "Because", [2]string{"Because", "Because"}},
		"requested address missing":    {gatewayState{served: true, addresses: addresses[:1], requested: requested}, "AddressNotAssigned", [2]string{"Pending", "Pending"}},
		"requested address not usable": {gatewayState{served: true, addresses: addresses[:1], requested: requested, assigned: denied("x")}, "AddressNotUsable", [2]string{"Pending", "Pending"}},
		"name used by foreign objects": {gatewayState{served: true, addresses: addresses, failed: errNameInUse}, "Pending", [2]string{"Pending", "Pending"}},
	} {
		status := gatewayv1.GatewayStatus{
			Conditions: []metav1.Condition{condition("Accepted", "True", long)},
			Listeners: []gatewayv1.ListenerStatus{
				{Name: "gone"}, {Name: "web", Conditions: []metav1.Condition{condition("Programmed", "True", long)}},
			},
		}
		mergeGateway(&status, compiled, test.at)
		if got := status.Conditions[1].Reason; got != test.reason {
			t.Errorf("%s: reason of Programmed = %s, want %s", name, got, test.reason)
		}
		if !status.Conditions[0].LastTransitionTime.Equal(&long) {
			t.Errorf("%s: LastTransitionTime of Accepted = %s", name, status.Conditions[0].LastTransitionTime)
		}
		if len(status.Listeners) != 2 {
			t.Fatalf("%s: listeners = %+v", name, status.Listeners)
		}
		for i, want := range test.listeners {
			got := status.Listeners[i].Conditions[0]
			if got.Reason != want || (want == "Because") != (got.Status == metav1.ConditionTrue) {
				t.Errorf("%s: reason of listener %s = %s, want %s", name, status.Listeners[i].Name, got.Reason, want)
			}
		}
		if since := status.Listeners[0].Conditions[0].LastTransitionTime; test.listeners[0] == "Because" && !since.Equal(&long) {
			t.Errorf("%s: LastTransitionTime of the programmed listener = %s", name, since)
		}
		if len(status.Addresses) != len(test.at.addresses) {
			t.Errorf("%s: addresses = %v", name, status.Addresses)
		}
	}
	if compiled.Conditions[1].Status != metav1.ConditionTrue || compiled.Listeners[0].Conditions[0].Status != metav1.ConditionTrue {
		t.Error("the compiled status was modified")
	}
}

func TestMergeListenerSet(t *testing.T) {
	compiled := gatewayv1.ListenerSetStatus{
		Conditions: []metav1.Condition{condition("Programmed", "True", metav1.Time{})},
		Listeners: []gatewayv1.ListenerEntryStatus{{
			Name: "web", SupportedKinds: []gatewayv1.RouteGroupKind{{Kind: "HTTPRoute"}},
			Conditions: []metav1.Condition{condition("Programmed", "True", metav1.Time{})},
		}},
	}
	var status gatewayv1.ListenerSetStatus
	mergeListenerSet(&status, compiled, gatewayState{served: true})
	if status.Conditions[0].Reason != "Pending" || status.Listeners[0].Conditions[0].Reason != "Pending" {
		t.Errorf("without a VIP: %+v", status)
	}
	mergeListenerSet(&status, compiled, gatewayState{served: true, addresses: make([]gatewayv1.GatewayStatusAddress, 1)})
	if status.Conditions[0].Reason != "Because" || status.Listeners[0].Conditions[0].Reason != "Because" {
		t.Errorf("with a VIP: %+v", status)
	}
}
