// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func (w *Writer) recordBackends(ctx context.Context, services map[types.NamespacedName]bool) infrastructure.Backends {
	return func(of model.ServicePort, protocol corev1.Protocol) (string, []*discoveryv1.EndpointSlice, bool, error) {
		services[types.NamespacedName{Namespace: of.Namespace, Name: of.Name}] = true
		return w.Backends(ctx, of, protocol)
	}
}
