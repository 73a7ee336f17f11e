// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestDisabledTracingIsFree(t *testing.T) {
	x := &transaction{proxy: New(Defaults()), in: httptest.NewRequest(http.MethodGet, "http://a.example/x", nil)}
	if allocations := testing.AllocsPerRun(100, func() {
		x.startServerSpan()
		x.startClientSpan(x.in)
		x.received(nil, nil)
		x.finished(http.StatusOK)
	}); allocations != 0 {
		t.Errorf("%v allocations per request", allocations)
	}
}
