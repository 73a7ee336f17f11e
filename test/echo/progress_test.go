// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestFailureReportsProgress(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for url, want := range map[string]string{silent.URL: "request sent: ", gone.URL: ": no connection: "} {
		got, _ := runJSON[report](t, load, "--url", url, "--requests", "1", "--timeout", "200ms")
		if len(got.FirstErrors) != 1 || !strings.Contains(got.FirstErrors[0], want) {
			t.Errorf("errors = %q, want %q", got.FirstErrors, want)
		}
	}
}
