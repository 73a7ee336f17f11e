// SPDX-License-Identifier: Apache-2.0

package write

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/controller/internal/nack"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// TestRejections checks that a rejection is an event and a condition of its owner only.
func TestRejections(t *testing.T) {
	owner := model.Object{Kind: "Gateway", Namespace: "edge", Name: "gw"}
	compiled := &Compiled{Result: &model.Result{Proxies: []*model.Proxy{{Owner: owner}}}}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: "gw", Annotations: map[string]string{
		infrastructure.AnnotationOwner: infrastructure.Key(owner),
		nack.Annotation:                `{"proxy":"edge/p","version":"1-a","message":"bad key"}`,
	}}}
	found := readRejections(compiled, map[objectKey]client.Object{objectKeyOf(deployment): deployment})
	problems := found.problems()
	if len(problems) != 1 || problems[0].Object != owner || !strings.Contains(problems[0].Message, "bad key") {
		t.Errorf("problems = %+v", problems)
	}
	gateway := &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: "edge", Name: "gw"}}
	if got := found.ofGateway(gateway); got == nil || !strings.Contains(got.Message, "bad key") || !model.OwnsCondition(got.Type) {
		t.Errorf("condition of the Gateway = %v", got)
	}
	gateway.Name = "other"
	if got := found.ofGateway(gateway); got != nil {
		t.Errorf("condition of another Gateway = %v, want none", got)
	}
}
