// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func byExpression(pattern, substitution string) *resource.Filter {
	return rewriteTo(&resource.Rewrite{Path: expressionPath(pattern, substitution)})
}

func TestRewriteByExpression(t *testing.T) {
	port := freePort(t)
	host := rewriteTo(&resource.Rewrite{Path: expressionPath(`^/host/(.*)`, "/$1"), Hostname: "other.example.com"})
	redirected := toward("/shared", "a", byExpression(`^/shared`, "/x"))
	redirected.Backends[0].Filters = []*resource.Filter{redirectTo(&resource.Redirect{})}
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil,
		toward("/api", "a", byExpression(`^/api(/|$)(.*)`, "/$2")),
		toward("/static", "a", byExpression(`^/static(.*)`, "/files/$1")),
		toward("/user", "a", byExpression(`(?i)^/user/([a-z]+)`, "/index.php?name=$1")),
		toward("/long", "a", byExpression(`^(.*)$`, strings.Repeat("$1", 100))),
		toward("/slow", "a", byExpression(`^/slow/([a-z]{1,40}){20}b`, "/$1")),
		toward("/host", "a", host), redirected,
	)), backend("a", serve(t, echo("a"))))...)
	for _, test := range []struct {
		target string
		status int
		want   string
	}{
		{"/api", 200, "GET / a.example.com"},
		{"/api/v1/x?q=%2F&a;b", 200, "GET /v1/x?q=%2F&a;b a.example.com"},
		{"/apix", 404, ""},
		{"/user/1%2F2", 200, "GET /user/1%2F2 a.example.com"},
		{"/user/../api/%2e%2e/api/y", 200, "GET /y a.example.com"},
		{"/api//evil.example/x", 200, "GET /evil.example/x a.example.com"},
		{"/api/%0d%0aX-Y:%20z%3fq", 200, "GET /%0D%0AX-Y:%20z%3Fq a.example.com"},
		{"/user/Ab?x=y", 200, "GET /index.php?name=Ab&x=y a.example.com"},
		{"/static/%2e%2e/secret", 404, ""},
		{"/static/..%2fx", 404, ""},
		{"/static/a/..;x", 400, ""},
		{"/static/.well-known", 200, "GET /files//.well-known a.example.com"},
		{"/long/" + strings.Repeat("x", 1000), 400, ""},
		{"/slow/" + strings.Repeat("x", 3000), 503, ""},
		{"/host/x", 200, "GET /x other.example.com"},
		{"/shared/y", 302, ""},
	} {
		for protocol, c := range both(t, port) {
			got := get(t, c, "http://a.example.com"+test.target)
			line, _, _ := strings.Cut(got.body, "\n")
			if got.StatusCode != test.status || test.want != "" && line != test.want {
				t.Errorf("%.100s over %s: %d %.100q; want %d %q", test.target, protocol, got.StatusCode, line, test.status, test.want)
			}
			if test.status == 302 && got.Header.Get("Location") != "http://a.example.com/shared/y" {
				t.Errorf("%s: redirect to %s", test.target, got.Header.Get("Location"))
			}
		}
	}
	// "/static../secret" does not match the prefix "/static", but may match an expression.
	wide := toward("", "a", byExpression(`^/static(.*)`, "/files/$1"))
	wide.Match.Path = &resource.PathMatch{Kind: resource.PathMatch_REGULAR_EXPRESSION, Value: "/static.*"}
	f.apply(all(one(httpListener("l", port, nil), routes("r", "l", nil, wide)), backend("a", serve(t, echo("a"))))...)
	for protocol, c := range both(t, port) {
		if got := get(t, c, "http://a.example.com/static../secret"); got.StatusCode != 400 {
			t.Errorf("dot segment that leaves a group, over %s: %d %.60q; want 400", protocol, got.StatusCode, got.body)
		}
	}
	awaitMetric(t, f, fmt.Sprintf(`millrace_proxy_denied_total{reason="path"} %d`, 6))
}
