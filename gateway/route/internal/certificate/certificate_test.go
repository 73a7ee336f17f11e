// SPDX-License-Identifier: Apache-2.0

package certificate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/route/internal/certificate"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// TestProblems compiles versions of one Secret with one cache. The certificates are valid for 100 years.
func TestProblems(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	end := start.Add(100 * 365 * 24 * time.Hour)
	valid := "test/certificate: a.example, test/not-before: '2026-01-01T00:00:00Z'"
	cache := &certificate.Cache{}
	for _, step := range []struct {
		name, annotations string
		now               time.Time
		want              string
	}{
		{"valid", valid, start, ""},
		{"15 days before expiry", valid, end.Add(-15 * 24 * time.Hour), ""},
		{"13 days before expiry", valid, end.Add(-13 * 24 * time.Hour), "the certificate expires at 2125-12-08T00:00:00Z"},
		{"without a clock", valid, time.Time{}, ""},
		{"at expiry", valid, end.Add(time.Second), "the certificate expired at 2125-12-08T00:00:00Z"},
		{"another key", valid + ", test/key: other", start, "private key does not match public key; the previous certificate is still served"},
		{"repaired", valid, start, ""},
	} {
		objects, err := routetest.Parse([]byte("{apiVersion: v1, kind: Secret, metadata: {namespace: shop, name: tls, annotations: {" + step.annotations + "}}}"))
		if err != nil {
			t.Fatal(err)
		}
		cache.Begin()
		cache.Get(objects.Secrets[0], step.now)
		found := cache.List(step.now)
		cache.End()
		if len(found) != 1 || found[0].Problem != step.want && !strings.HasSuffix(found[0].Problem, step.want) || step.want == "" && found[0].Problem != "" {
			t.Errorf("%s: %+v, want %q", step.name, found, step.want)
		}
	}
}
