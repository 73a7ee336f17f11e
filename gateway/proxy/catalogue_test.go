// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"
	"time"

	"github.com/millrace-lb/millrace/hack/catalogue"
)

// TestCatalogue checks that the documentation lists all exported metrics.
func TestCatalogue(t *testing.T) {
	m := newMetrics(true)
	m.listener("l").observe(200, time.Millisecond)
	m.listener("l").tunnel()("passed")
	m.backend("b").tried(200, nil)
	m.route("httproute/shop/web/0", 200)
	m.abuse.WithLabelValues("reset").Inc()
	m.shed.WithLabelValues("request").Inc()
	m.denied.WithLabelValues("client_address").Inc()
	m.version.WithLabelValues("1").Set(1)
	catalogue.Own(t, "proxy", m.registry)
}
