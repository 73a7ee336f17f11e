// SPDX-License-Identifier: Apache-2.0

package write

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

var expiries = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "millrace_gateway_certificate_expiry_timestamp_seconds",
	Help: "Unix time at which the served certificate of a Secret expires; at the leader.",
}, []string{"namespace", "secret"})

func init() { metrics.Registry.MustRegister(expiries) }

// setExpiries deletes the series of unused Secrets.
func (w *Writer) setExpiries(certificates []model.Certificate) {
	current := make(map[types.NamespacedName]bool, len(certificates))
	for _, each := range certificates {
		current[types.NamespacedName{Namespace: each.Namespace, Name: each.Name}] = true
		expiries.WithLabelValues(each.Namespace, each.Name).Set(float64(each.NotAfter.Unix()))
	}
	for secret := range w.expiring {
		if !current[secret] {
			expiries.DeleteLabelValues(secret.Namespace, secret.Name)
		}
	}
	w.expiring = current
}
