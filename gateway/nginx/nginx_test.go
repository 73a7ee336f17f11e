// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func annotated(lines ...string) map[string]string {
	found := map[string]string{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		found[Prefix+name] = value
	}
	return found
}

func with(change func(*Settings)) *Settings {
	settings := &Settings{SSLRedirect: true}
	change(settings)
	return settings
}

var onlyAddresses = cmp.Options{
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestRead(t *testing.T) {
	for name, test := range map[string]struct {
		given map[string]string
		want  *Settings
	}{
		"nothing":                          {nil, with(func(*Settings) {})},
		"unrelated annotations":            {map[string]string{"example.com/auth-url": "x"}, with(func(*Settings) {})},
		"empty":                            {annotated("auth-url: ", "canary:  "), with(func(*Settings) {})},
		"ssl":                              {annotated("ssl-redirect: False", "force-ssl-redirect: 1"), &Settings{ForceSSLRedirect: true}},
		"app root":                         {annotated("app-root: /app?x=y"), with(func(s *Settings) { s.AppRoot = "/app?x=y" })},
		"redirect to a URL":                {annotated("permanent-redirect: https://a.example/x"), with(func(s *Settings) { s.Redirect = &Redirect{Location: "https://a.example/x", Status: 301} })},
		"redirect to a path":               {annotated("temporal-redirect: /x", "temporal-redirect-code: 307"), with(func(s *Settings) { s.Redirect = &Redirect{Location: "/x", Status: 307} })},
		"two redirects":                    {annotated("temporal-redirect: /x", "permanent-redirect: $nonsense"), with(func(s *Settings) { s.Redirect = &Redirect{Location: "/x", Status: 302} })},
		"redirect with the request path":   {annotated("permanent-redirect: https://a.example:8443/$request_uri"), with(func(s *Settings) { s.Redirect = &Redirect{Scheme: "https", Host: "a.example", Port: 8443, Status: 301} })},
		"redirect to HTTPS":                {annotated("permanent-redirect: https://$host$request_uri"), with(func(s *Settings) { s.Redirect = &Redirect{Scheme: "https", Status: 301} })},
		"redirect with the request scheme": {annotated("permanent-redirect: $scheme://a.example$request_uri"), with(func(s *Settings) { s.Redirect = &Redirect{Host: "a.example", Status: 301} })},
		"rewrite":                          {annotated("rewrite-target: /$1/x?y=$2", "use-regex: true"), with(func(s *Settings) { s.RewriteTarget, s.UseRegex = "/$1/x?y=$2", true })},
		"group without a pattern":          {annotated("rewrite-target: $2"), with(func(s *Settings) { s.RewriteTarget = "$2" })},
		"host and www":                     {annotated("upstream-vhost: a.example:80", "from-to-www-redirect: true"), with(func(s *Settings) { s.UpstreamVhost, s.FromToWWW = "a.example:80", true })},
		"host variables":                   {annotated("upstream-vhost: ${service_name}.$namespace.svc"), with(func(s *Settings) { s.UpstreamVhost = "$service_name.$namespace.svc" })},
		"host of the request":              {annotated("upstream-vhost: $http_host"), with(func(*Settings) {})},
		"snippet": {annotated("configuration-snippet: # a comment\nmore_set_headers 'A: b; c' \"D:\";\nproxy_set_header E \"f \\\"g\\\"\";\n\nproxy_set_header H \"\";add_header I j always; more_clear_headers K;"),
			with(func(s *Settings) {
				s.Headers = &Headers{
					SetRequest: []Header{{"E", `f "g"`}}, SetResponse: []Header{{"A", "b; c"}}, AddResponse: []Header{{"I", "j"}},
					RemoveRequest: []string{"H"}, RemoveResponse: []string{"D", "K"},
				}
			})},
		"satisfy any": {annotated("satisfy: any", "auth-type: basic", "auth-secret: a", "whitelist-source-range: 198.51.100.1"), with(func(s *Settings) {
			s.Allow, s.SatisfyAny = []netip.Prefix{netip.MustParsePrefix("198.51.100.1/32")}, true
			s.Auth = &Auth{Secret: "a", Realm: "Authentication Required"}
		})},
		"aliases":         {annotated("server-alias: a.example, *.b.example"), with(func(s *Settings) { s.Aliases = []string{"a.example", "*.b.example"} })},
		"protocol":        {annotated("backend-protocol: grpcs", "ssl-passthrough: true"), with(func(s *Settings) { s.Protocol, s.SSLPassthrough = GRPCS, true })},
		"tries":           {annotated("proxy-next-upstream-tries: 2"), with(func(s *Settings) { s.Retry = &Retry{Attempts: 1} })},
		"unlimited tries": {annotated("proxy-next-upstream-tries: 0", "proxy-next-upstream: http_502 timeout"), with(func(s *Settings) { s.Retry = &Retry{Attempts: 10, Statuses: []uint32{502}} })},
		"no tries":        {annotated("proxy-next-upstream: off"), with(func(s *Settings) { s.Retry = &Retry{} })},
		"cors": {annotated("enable-cors: true", "cors-allow-credentials: true", "cors-allow-methods: GET", "cors-allow-headers: A, b", "cors-expose-headers: *"),
			with(func(s *Settings) {
				s.CORS = &CORS{Origins: []string{"*"}, Methods: []string{"GET"}, Headers: []string{"A", "b"}, Expose: []string{"*"}, MaxAge: 1728000}
			})},
		"cors off": {annotated("enable-cors: false", "cors-max-age: x"), with(func(*Settings) {})},
		"session":  {annotated("affinity: cookie", "session-cookie-expires: 60"), with(func(s *Settings) { s.Session = &Session{Cookie: "INGRESSCOOKIE", MaxAge: time.Minute} })},
		"canary": {annotated("canary: true", "canary-weight: 5", "canary-weight-total: 10", "canary-by-header: x", "canary-by-header-value: y", "canary-by-header-pattern: z"),
			with(func(s *Settings) { s.Canary = &Canary{Header: "x", Value: "y", Weight: 5, Total: 10} })},
		"no canary": {annotated("canary: false", "canary-weight: 5"), with(func(*Settings) {})},
		"mirror":    {annotated("mirror-target: http://a.b/$request_uri"), with(func(s *Settings) { s.Mirror = &Mirror{Namespace: "b", Service: "a", Port: 80} })},
		"addresses": {annotated("whitelist-source-range: 198.51.100.1, 203.0.113.7/24,", "denylist-source-range: 2001:db8::1"), with(func(s *Settings) {
			s.Allow = []netip.Prefix{netip.MustParsePrefix("198.51.100.1/32"), netip.MustParsePrefix("203.0.113.0/24")}
			s.Deny = []netip.Prefix{netip.MustParsePrefix("2001:db8::1/128")}
		})},
		"password": {annotated("auth-type: basic", "auth-secret: a/b", "auth-secret-type: auth-map"), with(func(s *Settings) { s.Auth = &Auth{Secret: "a/b", Realm: "Authentication Required", IsMap: true} })},
		"limits":   {annotated("limit-rps: 1", "limit-rpm: 2", "limit-connections: 3"), with(func(s *Settings) { s.Limits = Limits{PerSecond: 1, PerMinute: 2, Connections: 3, Burst: 5} })},
		"body":     {annotated("proxy-body-size: 8M"), with(func(s *Settings) { s.BodyLimit = 8 << 20 })},
		"any body": {annotated("proxy-body-size: 0"), with(func(*Settings) {})},
		"ignored":  {annotated("proxy-buffering: on", "auth-signin: https://a.example", "proxy-read-timeout: 60"), with(func(*Settings) {})},
		"off":      {annotated("enable-modsecurity: false", "custom-http-errors: off"), with(func(*Settings) {})},
	} {
		t.Run(name, func(t *testing.T) {
			got, problems := Read(test.given)
			if len(problems) > 0 {
				t.Errorf("problems: %v", problems)
			}
			if diff := cmp.Diff(test.want, got, onlyAddresses); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestReadProblems checks that unsupported annotations that restrict clients or change requests refuse the
// Ingress.
func TestReadProblems(t *testing.T) {
	for _, test := range []struct {
		given []string
		// want contains annotation names: "!" marks a problem that refuses the Ingress, "?" an invalid value.
		want string
	}{
		{[]string{"ssl-redirect: maybe"}, "ssl-redirect?"},
		{[]string{"app-root: app"}, "app-root?!"},
		{[]string{"app-root: //evil.example"}, "app-root?!"},
		{[]string{"permanent-redirect: javascript:x"}, "permanent-redirect?!"},
		{[]string{"permanent-redirect: https://$arg_x/"}, "permanent-redirect?!"},
		{[]string{"permanent-redirect: https://a@b$request_uri"}, "permanent-redirect?!"},
		{[]string{"permanent-redirect: /x", "permanent-redirect-code: 304"}, "permanent-redirect-code?"},
		{[]string{"rewrite-target: x"}, "rewrite-target?!"},
		{[]string{"rewrite-target: /$0"}, "rewrite-target?!"},
		{[]string{"rewrite-target: /$"}, "rewrite-target?!"},
		{[]string{"rewrite-target: https://a.example/"}, "rewrite-target?!"},
		{[]string{"use-regex: x"}, "use-regex?!"},
		{[]string{"upstream-vhost: $service_names"}, "upstream-vhost?!"},
		{[]string{"upstream-vhost: a.$host"}, "upstream-vhost?!"},
		{[]string{"server-alias: ~^a"}, "server-alias"},
		{[]string{"backend-protocol: AUTO_HTTP"}, "backend-protocol?!"},
		{[]string{"enable-cors: true", "cors-allow-origin: a.example", "cors-allow-methods: G T"}, "cors-allow-methods? cors-allow-origin?"},
		{[]string{"affinity: ip"}, "affinity?"},
		{[]string{"affinity: cookie", "session-cookie-name: a;b", "session-cookie-samesite: None"}, "session-cookie-name? session-cookie-samesite"},
		{[]string{"canary: true", "canary-weight: 101", "canary-by-header-pattern: (", "canary-by-cookie: a=b"}, "canary-by-cookie? canary-by-header-pattern? canary-weight?"},
		{[]string{"mirror-target: https://a.example"}, "mirror-target"},
		{[]string{"proxy-next-upstream: http_200"}, "proxy-next-upstream"},
		{[]string{"whitelist-source-range: 198.51.100.1/33"}, "whitelist-source-range?!"},
		{[]string{"whitelist-source-range: ,"}, "whitelist-source-range?!"},
		{[]string{"denylist-source-range: x"}, "denylist-source-range?!"},
		{[]string{"auth-type: basic"}, "auth-type?!"},
		{[]string{"auth-type: digest", "auth-secret: a"}, "auth-type?!"},
		{[]string{"auth-type: basic", "auth-secret: a/b/c"}, "auth-secret?!"},
		{[]string{"satisfy: any", "auth-type: basic", "auth-secret: a", "denylist-source-range: 198.51.100.1"}, "satisfy"},
		{[]string{"satisfy: any", "auth-type: basic", "auth-secret: a", "auth-url: http://a.b.svc/", "allowlist-source-range: 198.51.100.1"}, "satisfy"},
		{[]string{"satisfy: some"}, "satisfy?"},
		{[]string{"configuration-snippet: deny all;"}, "configuration-snippet?!"},
		{[]string{"configuration-snippet: more_set_headers \"X-A: b\"; return 403;"}, "configuration-snippet?!"},
		{[]string{"configuration-snippet: more_set_headers \"X-A: $host\";"}, "configuration-snippet?!"},
		{[]string{"configuration-snippet: more_set_headers -s 404 \"X-A: b\";"}, "configuration-snippet?!"},
		{[]string{"configuration-snippet: proxy_set_header Transfer-Encoding chunked;"}, "configuration-snippet?!"},
		{[]string{"configuration-snippet: proxy_set_header X-A \"b"}, "configuration-snippet?!"},
		{[]string{"configuration-snippet: proxy_set_header X-A \"b\"c;"}, "configuration-snippet?!"},
		{[]string{"configuration-snippet: proxy_set_header X-A b"}, "configuration-snippet?!"},
		{[]string{"configuration-snippet: if ($a) { add_header X-A b; }"}, "configuration-snippet?!"},
		{[]string{"affinity: cookie", "session-cookie-path: /a;b"}, "session-cookie-path?"},
		{[]string{"limit-rps: -1"}, "limit-rps?!"},
		{[]string{"proxy-body-size: 8q"}, "proxy-body-size?!"},
		{[]string{"proxy-body-size: 9999999999g"}, "proxy-body-size?!"},
		{[]string{"auth-url: https://192.0.2.1"}, "auth-url?!"},
		{[]string{"auth-tls-secret: a"}, "auth-tls-secret!"},
		{[]string{"auth-tls-secret: a", "auth-tls-verify-client: off"}, ""},
		{[]string{"server-snippet: x", "enable-modsecurity: true", "modsecurity-snippet: x"}, "enable-modsecurity! modsecurity-snippet! server-snippet!"},
		{[]string{"jwt-check: x", "new-thing: x"}, "jwt-check! new-thing"},
		{[]string{"proxy-read-timeout: 3600"}, "proxy-read-timeout"},
	} {
		_, problems := Read(annotated(test.given...))
		var got []string
		for _, problem := range problems {
			text := problem.Name
			if problem.Invalid {
				text += "?"
			}
			if problem.Refuses {
				text += "!"
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%q: %q, want %q", test.given, strings.Join(got, " "), test.want)
		}
	}
}

// TestRestrictingAnnotationsAreKnown checks that each annotation with a restricting name is supported or
// refused, or has a note.
func TestRestrictingAnnotationsAreKnown(t *testing.T) {
	all := Annotations()
	if !slices.IsSortedFunc(all, func(a, b Annotation) int { return strings.Compare(a.Name, b.Name) }) || len(all) < 100 {
		t.Errorf("%d annotations, too few or not sorted", len(all))
	}
	for _, each := range all {
		if each.Handling == Unsupported && Protects(each.Name) {
			t.Errorf("%s restricts access, but is ignored", each.Name)
		}
		if each.Handling != Supported && each.Note == "" {
			t.Errorf("%s is not supported and has no note", each.Name)
		}
	}
}

// FuzzRead checks the bounds of settings, and that each refusal has a reason.
func FuzzRead(f *testing.F) {
	for _, each := range Annotations() {
		f.Add(each.Name, "true", "rewrite-target", "/$1")
		f.Add(each.Name, "https://a.example:80/$request_uri", "auth-type", "basic")
		f.Add(each.Name, "198.51.100.0/24,::", "canary", "true")
	}
	f.Fuzz(func(t *testing.T, name, value, other, text string) {
		settings, problems := Read(map[string]string{Prefix + name: value, Prefix + other: text})
		for _, problem := range problems {
			if problem.Message == "" || len(problem.Message) > 500 {
				t.Errorf("%s: message of %d bytes", problem.Name, len(problem.Message))
			}
		}
		if of := settings.Redirect; of != nil && (of.Status < 301 || of.Status > 308 || strings.ContainsAny(of.Location+of.Host, "$\r\n ")) {
			t.Errorf("invalid redirect to %+v", of)
		}
		if of := settings.Retry; of != nil && of.Attempts > maxAttempts {
			t.Errorf("%d attempts exceed the limit", of.Attempts)
		}
		if of := settings.Canary; of != nil && of.Weight > of.Total {
			t.Errorf("invalid canary weight %d/%d", of.Weight, of.Total)
		}
		if settings.BodyLimit < 0 || len(settings.Aliases) > maxAliases || strings.ContainsAny(settings.AppRoot+settings.RewriteTarget, "\r\n ") {
			t.Errorf("%+v", settings)
		}
	})
}
