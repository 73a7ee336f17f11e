// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestOneHost(t *testing.T) {
	for name, test := range map[string]struct {
		fields []string
		want   int
	}{
		"none":      {nil, 0},
		"equal":     {[]string{"Public.example.com"}, 0},
		"different": {[]string{"internal.example.com"}, http.StatusBadRequest},
		"a port":    {[]string{"public.example.com:80"}, http.StatusBadRequest},
		"the second": {[]string{"public.example.com", "internal.example.com"},
			http.StatusBadRequest},
		"empty": {[]string{""}, http.StatusBadRequest},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://public.example.com/", nil)
		if test.fields != nil {
			r.Header["Host"] = test.fields
		}
		got := Canonical(r)
		if got != test.want || got == 0 && (r.Header["Host"] != nil || r.Host != "public.example.com") {
			t.Errorf("%s: status %d, host %q, fields %q; want status %d", name, got, r.Host, r.Header["Host"], test.want)
		}
	}
}
