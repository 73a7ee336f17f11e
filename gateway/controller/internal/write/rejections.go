// SPDX-License-Identifier: Apache-2.0

package write

import (
	"cmp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/controller/internal/nack"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// rejections are by owner.
type rejections map[model.Object]nack.Rejection

func readRejections(compiled *Compiled, live map[objectKey]client.Object) rejections {
	owners := make(map[string]model.Object, len(compiled.Result.Proxies))
	for _, proxy := range compiled.Result.Proxies {
		owners[infrastructure.Key(proxy.Owner)] = proxy.Owner
	}
	found := rejections{}
	for _, object := range live {
		deployment, is := object.(*appsv1.Deployment)
		if !is {
			continue
		}
		owner, known := owners[deployment.Annotations[infrastructure.AnnotationOwner]]
		if refused := nack.Read(deployment); known && !refused.IsZero() {
			found[owner] = refused
		}
	}
	return found
}

// problems has a stable order, so that repeated passes write the same.
func (r rejections) problems() []model.Problem {
	found := make([]model.Problem, 0, len(r))
	for owner, refused := range r {
		found = append(found, model.Problem{Object: owner, Reason: model.ReasonConfigurationRejected, Message: refused.Text()})
	}
	slices.SortFunc(found, func(a, b model.Problem) int {
		return cmp.Compare(infrastructure.Key(a.Object), infrastructure.Key(b.Object))
	})
	return found
}

func (r rejections) ofGateway(gateway *gatewayv1.Gateway) *metav1.Condition {
	refused := r[objectOfGateway(gateway.Namespace, gateway.Name)]
	if refused.IsZero() {
		return nil
	}
	return &metav1.Condition{
		Type: model.ConditionResourcesRejected, Status: metav1.ConditionTrue, Reason: model.ReasonConfigurationRejected,
		Message: refused.Text(), ObservedGeneration: gateway.Generation,
	}
}

func objectOfGateway(namespace, name string) model.Object {
	return model.Object{Kind: "Gateway", Namespace: namespace, Name: name}
}
