// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExternal(t *testing.T) {
	with := func(change func(*External)) *External {
		of := &External{Namespace: "auth", Service: "oauth2-proxy", Port: 80, Host: "oauth2-proxy.auth.svc", Path: "/oauth2/auth"}
		if change != nil {
			change(of)
		}
		return of
	}
	const service = "auth-url: http://oauth2-proxy.auth.svc/oauth2/auth"
	for _, test := range []struct {
		given []string
		want  *External
		// problems are annotation names with marks, as in TestReadProblems.
		problems string
	}{
		{[]string{service}, with(nil), ""},
		{[]string{"auth-url: http://oauth2-proxy.auth.svc.cluster.local:4180/oauth2/auth?allowed_groups=a"}, with(func(of *External) {
			of.Port, of.Host, of.Path = 4180, "oauth2-proxy.auth.svc.cluster.local", "/oauth2/auth?allowed_groups=a"
		}), ""},
		{[]string{"auth-url: https://oauth2-proxy.auth.svc"}, with(func(of *External) { of.Port, of.TLS, of.Path = 443, true, "/" }), ""},
		{[]string{"auth-url: off"}, nil, ""},
		{[]string{"auth-signin: https://a.example/", "auth-method: NONSENSE", "auth-snippet: x"}, nil, ""},
		{[]string{"auth-url: https://$host/oauth2/auth?a=b"}, &External{Path: "/oauth2/auth?a=b"}, ""},
		{[]string{"auth-url: $scheme://$http_host/auth"}, &External{Path: "/auth"}, ""},
		{[]string{"auth-url: https://$host.example/auth"}, nil, "auth-url?!"},
		{[]string{"auth-url: https://$host:8443/auth"}, nil, "auth-url?!"},
		{[]string{"auth-url: https://$host/auth$request_uri"}, nil, "auth-url?!"},
		{[]string{"auth-url: https://$host/a/../b"}, nil, "auth-url?!"},
		{[]string{"auth-url: http://oauth2-proxy.auth.svc/oauth2/auth?rd=$request_uri"}, nil, "auth-url?!"},
		{[]string{"auth-url: https://Auth.example/oauth2/auth"}, &External{Host: "auth.example", Path: "/oauth2/auth"}, ""},
		{[]string{"auth-url: https://auth.example:443/"}, &External{Host: "auth.example", Path: "/"}, ""},
		{[]string{"auth-url: https://auth.example:8443/"}, nil, "auth-url?!"},
		{[]string{"auth-url: https://auth..example/"}, nil, "auth-url?!"},
		{[]string{"auth-url: http://198.51.100.1/auth"}, nil, "auth-url?!"},
		{[]string{"auth-url: http://[2001:db8::1]/auth"}, nil, "auth-url?!"},
		{[]string{"auth-url: http://user:password@oauth2-proxy.auth.svc/"}, nil, "auth-url?!"},
		{[]string{"auth-url: oauth2-proxy.auth.svc/auth"}, nil, "auth-url?!"},
		{[]string{"auth-url: ftp://oauth2-proxy.auth.svc/auth"}, nil, "auth-url?!"},
		{[]string{"auth-url: http://oauth2-proxy.auth.svc:0/auth"}, nil, "auth-url?!"},
		{[]string{"auth-url: http://oauth2-proxy.auth.svc/a/../b"}, nil, "auth-url?!"},
		{[]string{"auth-url: http://oauth2-proxy.auth.svc/a#b"}, nil, "auth-url?!"},
		{[]string{service, "auth-method: POST"}, with(func(of *External) { of.Method = "POST" }), ""},
		{[]string{service, "auth-method: CONNECT"}, nil, "auth-url?!"},
		{[]string{service, "auth-response-headers: X-Auth-Request-User, Authorization"}, with(func(of *External) {
			of.ResponseHeaders = []string{"X-Auth-Request-User", "Authorization"}
		}), ""},
		{[]string{service, "auth-response-headers: Content-Length"}, nil, "auth-url?!"},
		{[]string{service, "auth-response-headers: X User"}, nil, "auth-url?!"},
		{[]string{service, "auth-proxy-set-headers: shop/headers"}, nil, "auth-proxy-set-headers!"},
		{[]string{service, "auth-snippet: return 200;"}, nil, "auth-snippet!"},
		{[]string{service, "auth-snippet: proxy_set_header X-Forwarded-Method $request_method;"}, with(nil), ""},
		{[]string{service, "auth-snippet: proxy_set_header X-Forwarded-Method GET;"}, nil, "auth-snippet!"},
		{[]string{service, "auth-snippet: proxy_set_header X-Forwarded-Method $request_method; deny all;"}, nil, "auth-snippet!"},
		{[]string{service, "auth-cache-key: $cookie_x", "auth-cache-duration: 200 5m", "auth-always-set-cookie: true", "auth-keepalive: 10"}, with(nil), ""},
		{[]string{service, "auth-signin: https://$host/oauth2/start?rd=$escaped_request_uri"}, with(func(of *External) {
			of.SignIn = "https://$host/oauth2/start?rd=$escaped_request_uri"
		}), ""},
		{[]string{service, "auth-signin: $pass_access_scheme://$http_host/start"}, with(func(of *External) {
			of.SignIn = "$scheme://$host/start?rd=$scheme://$host$escaped_request_uri"
		}), ""},
		{[]string{service, "auth-signin: /start?a=b", "auth-signin-redirect-param: back"}, with(func(of *External) {
			of.SignIn = "/start?a=b&back=$scheme://$host$escaped_request_uri"
		}), ""},
		{[]string{service, "auth-signin: /start", "auth-signin-redirect-param: a&b="}, with(func(of *External) {
			of.SignIn = "/start?rd=$scheme://$host$escaped_request_uri"
		}), "auth-signin-redirect-param?"},
		{[]string{service, "auth-signin: https://a.example?rm=$request_method&u=${uri}&q=$query_string&c=$remote_addr"}, with(func(of *External) {
			of.SignIn = "https://a.example?rm=$request_method&u=$uri&q=$args&c=$remote_addr&rd=$scheme://$host$escaped_request_uri"
		}), ""},
		{[]string{service, "auth-signin: javascript:alert(1)"}, with(nil), "auth-signin?"},
		{[]string{service, "auth-signin: https://a.example/$cookie_session"}, with(nil), "auth-signin?"},
		{[]string{service, "auth-signin: https://a.example/$"}, with(nil), "auth-signin?"},
		{[]string{service, "auth-request-redirect: https://$host$request_uri"}, with(func(of *External) { of.Redirect = "https://$host$request_uri" }), ""},
		{[]string{service, "auth-request-redirect: $arg_x"}, with(nil), "auth-request-redirect?"},
		{[]string{service, "satisfy: any", "whitelist-source-range: 198.51.100.1"}, with(nil), ""},
	} {
		settings, problems := Read(annotated(test.given...))
		var got []string
		refused := false
		for _, problem := range problems {
			text := problem.Name
			if problem.Invalid {
				text += "?"
			}
			if problem.Refuses {
				text += "!"
				refused = true
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != test.problems {
			t.Errorf("%q: %q, want %q: %+v", test.given, strings.Join(got, " "), test.problems, problems)
		}
		if diff := cmp.Diff(test.want, settings.External); diff != "" && !refused {
			t.Errorf("%q:\n%s", test.given, diff)
		}
	}
}
