// SPDX-License-Identifier: Apache-2.0

package write

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/controller/internal/nack"
	"github.com/millrace-lb/millrace/gateway/route"
)

// TestRefusedPartsAreTold checks that rejections are reported on their objects only.
func TestRefusedPartsAreTold(t *testing.T) {
	owner := route.Object{Kind: "Gateway", Namespace: "edge", Name: "gw"}
	compiled := &Compiled{
		Result:  &route.Result{Proxies: []*route.Proxy{{Owner: owner}}},
		Objects: &route.Objects{ListenerSets: []*gatewayv1.ListenerSet{listenerSet("set", "gw"), listenerSet("far", "other")}},
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: "gw", Annotations: map[string]string{
		infrastructure.AnnotationOwner: infrastructure.Key(owner),
		nack.Annotation: `{"proxy":"edge/p","version":"1-a","total":4,"parts":[
			{"resource":"group/a","route":"httproute/shop/cart","reason":"bad filter","retained":true},
			{"resource":"group/b","route":"httproute/shop/new","reason":"bad match"},
			{"resource":"group/c","route":"ingress/shop/old","reason":"bad path"},
			{"resource":"certificate/shop/x","reason":"bad key"}]}`,
	}}}
	found := readRejections(compiled, map[objectKey]client.Object{objectKeyOf(deployment): deployment})

	told := map[route.Object]string{}
	for _, problem := range found.problems() {
		told[problem.Object] += problem.Reason + " " + problem.Message
	}
	ingress := route.Object{Kind: "Ingress", Namespace: "shop", Name: "old"}
	if len(told) != 2 || !strings.Contains(told[ingress], "bad path") || !strings.Contains(told[owner], "bad key") || strings.Contains(told[owner], "bad path") {
		t.Errorf("events are %q", told)
	}

	gateway := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: "gw"}}
	if got := found.ofGateway(gateway); got == nil || !strings.Contains(got.Message, "rejects 4 resources") || !route.OwnsCondition(got.Type) {
		t.Errorf("the Gateway's condition is %v", got)
	}
	gateway.Name = "other"
	if got := found.ofGateway(gateway); got != nil {
		t.Errorf("another Gateway has the condition %v", got)
	}

	edge, set := gatewayv1.Namespace("edge"), gatewayv1.Kind("ListenerSet")
	wanted := gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{
		{ParentRef: gatewayv1.ParentReference{Namespace: &edge, Name: "gw"}},
		{ParentRef: gatewayv1.ParentReference{Namespace: &edge, Name: "other"}},
		{ParentRef: gatewayv1.ParentReference{Kind: &set, Name: "set"}},
		{ParentRef: gatewayv1.ParentReference{Kind: &set, Name: "far"}},
		// A ListenerSet with the Gateway's name, which does not exist.
		{ParentRef: gatewayv1.ParentReference{Kind: &set, Namespace: &edge, Name: "gw"}},
	}}
	for name, want := range map[string][]string{
		"cart": {"Fall Back: ", "", "Fall Back: ", "", ""},
		"new":  {"Dropped Rule: ", "", "Dropped Rule: ", "", ""},
		"good": {"", "", "", "", ""},
	} {
		status := found.ofRoute(&gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}, wanted)
		for i, parent := range status.Parents {
			condition := meta.FindStatusCondition(parent.Conditions, "PartiallyInvalid")
			if (condition != nil) != (want[i] != "") || condition != nil && !strings.HasPrefix(condition.Message, want[i]) {
				t.Errorf("route %s at parent %d has %v; want %q", name, i, condition, want[i])
			}
		}
	}
	if len(wanted.Parents[0].Conditions) != 0 {
		t.Error("what was compiled has changed")
	}
}

func listenerSet(name, gateway string) *gatewayv1.ListenerSet {
	edge := gatewayv1.Namespace("edge")
	return &gatewayv1.ListenerSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       gatewayv1.ListenerSetSpec{ParentRef: gatewayv1.ParentGatewayReference{Namespace: &edge, Name: gatewayv1.ObjectName(gateway)}},
	}
}
