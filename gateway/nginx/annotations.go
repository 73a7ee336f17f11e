// SPDX-License-Identifier: Apache-2.0

package nginx

// annotation describes the support of an annotation.
type annotation struct {
	handling Handling
	note     string
	// read is nil if there is nothing to parse, or another annotation's function parses it.
	read func(*reader, string) error
	// isStrict refuses the Ingress if the value is invalid.
	isStrict bool
}

const (
	noteSnippet    = "nginx's language means nothing here, and it may keep clients out; headers: `custom-headers`, `configuration-snippet`"
	noteClientCert = "an Ingress asks no client for a certificate: a Gateway with `frontendValidation` does"
	noteWAF        = "there is no web application firewall"
	noteStreams    = "bodies are passed on as they come"
	noteNoClass    = "the class has `tlsPolicy`"
	noteTracing    = "tracing is a setting of the class"
	noteGlobal     = "limits are of each proxy: `limit-rps`, `limit-rpm`"
	noteBalance    = "requests go to the less busy of two endpoints"
	noteBackendTLS = "a BackendTLSPolicy says whom to trust"
	noteFastCGI    = "backends speak HTTP"
)

// annotations are the annotations of ingress-nginx up to 1.12, by name.
var annotations map[string]annotation

// The read functions refer to known, so a plain initializer would be a cycle.
func init() {
	annotations = map[string]annotation{}
	for _, group := range []map[string]annotation{routing(), responses(), sharing(), restricting(), externalAuth(), performance()} {
		for name, each := range group {
			annotations[name] = each
		}
	}
}

func supported(note string, read func(*reader, string) error) annotation {
	return annotation{handling: Supported, note: note, read: read}
}

// strict refuses the Ingress if the value is invalid.
func strict(note string, read func(*reader, string) error) annotation {
	return annotation{handling: Supported, note: note, read: read, isStrict: true}
}

func ignored(note string) annotation     { return annotation{handling: Ignored, note: note} }
func unsupported(note string) annotation { return annotation{handling: Unsupported, note: note} }
func refused(note string) annotation     { return annotation{handling: Refused, note: note} }

// routing are annotations that select or change the destination of requests.
func routing() map[string]annotation {
	return map[string]annotation{
		"ssl-redirect":            supported("`true` where there is none, for hosts with TLS; status 308", (*reader).sslRedirect),
		"force-ssl-redirect":      supported("also for hosts without TLS", (*reader).forceSSLRedirect),
		"preserve-trailing-slash": ignored("a redirect keeps the path as it is"),
		"app-root":                strict("`/` is redirected, status 302", (*reader).appRoot),
		"permanent-redirect":      strict("`$scheme`, `$host` and `$request_uri` are known, as in `https://example.com$request_uri`", (*reader).permanentRedirect),
		"permanent-redirect-code": supported("301 where there is none", nil),
		"temporal-redirect":       strict("as `permanent-redirect`, and goes before it", (*reader).temporalRedirect),
		"temporal-redirect-code":  supported("302 where there is none", nil),
		"relative-redirects":      ignored("redirects are to whole URLs"),
		"from-to-www-redirect":    supported("where no Ingress has the other name; status 308", (*reader).fromToWWW),
		"rewrite-target":          strict("the whole path becomes it; `$1` to `$9` are groups of the path", (*reader).rewriteTarget),
		"use-regex":               strict("paths of all Ingresses of the host are regular expressions (RE2), without case", (*reader).useRegex),
		"upstream-vhost":          strict("`$service_name`, `$service_port`, `$namespace` and `$ingress_name`; `$host` alone", (*reader).upstreamVhost),
		"x-forwarded-prefix":      supported("where `rewrite-target` is set", (*reader).forwardedPrefix),
		"server-alias":            supported("names and `*.` wildcards; regular expressions are told", (*reader).serverAlias),
		"backend-protocol":        strict("HTTP, HTTPS, GRPC, GRPCS; certificates are not looked at, unless a BackendTLSPolicy says whom to trust", (*reader).backendProtocol),
		"proxy-ssl-verify":        strict("`on`: a BackendTLSPolicy has to say whom to trust", (*reader).verifyBackend),
		"ssl-passthrough":         strict("the backend of `/` gets the connections of the host", (*reader).sslPassthrough),
		"default-backend":         unsupported("a Service without endpoints answers 503"),
		"service-upstream":        ignored("endpoints are spoken with, not the ClusterIP"),
	}
}

// responses are annotations that change responses.
func responses() map[string]annotation {
	return map[string]annotation{
		"enable-cors":                              supported("", (*reader).enableCORS),
		"cors-allow-origin":                        supported("the default is `*`, and then without credentials, as browsers require; `*.` is one label", nil),
		"cors-allow-methods":                       supported("", nil),
		"cors-allow-headers":                       supported("", nil),
		"cors-expose-headers":                      supported("", nil),
		"cors-allow-credentials":                   supported("`true` where there is none", nil),
		"cors-max-age":                             supported("1728000 where there is none", nil),
		"custom-headers":                           supported("a ConfigMap of the Ingress's namespace", (*reader).customHeaders),
		"custom-http-errors":                       unsupported("answers of backends pass as they are"),
		"disable-proxy-intercept-errors":           ignored("answers of backends pass as they are"),
		"connection-proxy-header":                  unsupported("the proxy decides on `Connection`"),
		"http2-push-preload":                       ignored("browsers have given up server push"),
		"proxy-cookie-domain":                      unsupported("cookies of backends pass as they are"),
		"proxy-cookie-path":                        unsupported("cookies of backends pass as they are"),
		"proxy-redirect-from":                      unsupported("`Location` passes as it is"),
		"proxy-redirect-to":                        unsupported("`Location` passes as it is"),
		"session-cookie-name":                      supported("the default is `INGRESSCOOKIE`; other Services of the host get a suffix", nil),
		"session-cookie-expires":                   supported("as `session-cookie-max-age`", nil),
		"session-cookie-max-age":                   supported("the session ends then, too", nil),
		"session-cookie-path":                      supported("the default is the path of the rule, and `/` for expressions", nil),
		"session-cookie-domain":                    unsupported("the cookie is of the host"),
		"session-cookie-samesite":                  {handling: Unsupported, note: "it is `Lax`", read: (*reader).sameSite},
		"session-cookie-conditional-samesite-none": ignored("it is `Lax`"),
		"session-cookie-secure":                    ignored("`Secure` is set over TLS"),
		"session-cookie-hash":                      ignored("the cookie is sealed"),
		"session-cookie-change-on-failure":         ignored("a session ends with its endpoint"),
	}
}

// sharing are annotations that distribute requests to several backends.
func sharing() map[string]annotation {
	return map[string]annotation{
		"affinity":                     supported("`cookie`", (*reader).affinity),
		"affinity-mode":                ignored("a session stays where it is, as with `persistent`"),
		"affinity-canary-behavior":     {handling: Unsupported, note: "a session stays with its backend, as with `sticky`", read: (*reader).canaryBehavior},
		"canary":                       supported("for paths of an older Ingress of the namespace", (*reader).canary),
		"canary-by-header":             supported("`always` and `never`", nil),
		"canary-by-header-value":       supported("", nil),
		"canary-by-header-pattern":     supported("RE2", nil),
		"canary-by-cookie":             supported("`always` and `never`", nil),
		"canary-weight":                supported("", nil),
		"canary-weight-total":          supported("100 where there is none", nil),
		"mirror-target":                supported("a Service of the Ingress's namespace, by its name in DNS", (*reader).mirrorTarget),
		"mirror-request-body":          ignored("bodies up to a size are mirrored"),
		"mirror-host":                  ignored("the copy has the request's `Host`"),
		"proxy-next-upstream":          supported("requests that may be sent again: `error`, `timeout` and statuses", (*reader).nextUpstream),
		"proxy-next-upstream-tries":    supported("3 where there is none; 11 at most, which 0 stands for", (*reader).nextUpstream),
		"proxy-next-upstream-timeout":  ignored("tries are bounded"),
		"load-balance":                 ignored(noteBalance),
		"upstream-hash-by":             unsupported(noteBalance + "; sessions: `affinity`"),
		"upstream-hash-by-subset":      unsupported(noteBalance),
		"upstream-hash-by-subset-size": unsupported(noteBalance),
	}
}

// restricting are annotations that restrict clients.
func restricting() map[string]annotation {
	group := map[string]annotation{
		"whitelist-source-range": strict("others get 403", (*reader).allow),
		"allowlist-source-range": strict("others get 403", (*reader).allow),
		"denylist-source-range":  strict("they get 403", (*reader).deny),
		"satisfy":                supported("`any`: an address of `allowlist-source-range` replaces the password and `auth-url`", (*reader).satisfy),
		"configuration-snippet": strict("`more_set_headers`, `more_clear_headers`, `add_header` and `proxy_set_header` with fixed values; anything else refuses the Ingress",
			(*reader).configurationSnippet),

		"auth-type":          strict("`basic`", (*reader).authType),
		"auth-secret":        strict("of the Ingress's namespace, of type `Opaque`; bcrypt, `$apr1$`, `{SHA}` and `{SSHA}`", (*reader).authSecret),
		"auth-secret-type":   supported("`auth-file` where there is none, or `auth-map`", nil),
		"auth-realm":         supported("", nil),
		"auth-tls-secret":    {handling: Refused, note: noteClientCert, read: (*reader).authTLS},
		"enable-global-auth": ignored("the ConfigMap of ingress-nginx is not read"),

		"limit-rps":              strict("by each proxy; others get 503", (*reader).limitRPS),
		"limit-rpm":              strict("by each proxy; others get 503", (*reader).limitRPM),
		"limit-connections":      strict("requests at once, by each proxy; others get 503", (*reader).limitConnections),
		"limit-burst-multiplier": supported("5 where there is none", nil),
		"limit-whitelist":        supported("", (*reader).limitExempt),
		"limit-rate":             unsupported("bytes are not held back"),
		"limit-rate-after":       ignored("bytes are not held back"),
		"proxy-body-size":        strict("none where there is none, which is 1m there", (*reader).bodySize),
	}
	for note, names := range map[string][]string{
		noteSnippet: {"server-snippet", "stream-snippet"},
		noteWAF:     {"enable-modsecurity", "enable-owasp-core-rules", "modsecurity-snippet", "lua-resty-waf"},
	} {
		for _, name := range names {
			group[name] = refused(note)
		}
	}
	for note, names := range map[string][]string{
		"`auth-tls-secret` refuses the Ingress; alone it does nothing": {
			"auth-tls-error-page", "auth-tls-match-cn", "auth-tls-pass-certificate-to-upstream", "auth-tls-verify-client",
			"auth-tls-verify-depth",
		},
		"alone it does nothing": {"modsecurity-transaction-id"},
	} {
		for _, name := range names {
			group[name] = ignored(note)
		}
	}
	for _, name := range []string{"global-rate-limit", "global-rate-limit-window", "global-rate-limit-key", "global-rate-limit-ignored-cidrs"} {
		group[name] = unsupported(noteGlobal)
	}
	return group
}

// performance are annotations that affect performance only.
func performance() map[string]annotation {
	group := map[string]annotation{
		"proxy-connect-timeout": ignored("an endpoint that does not answer is left after seconds"),
		"proxy-send-timeout":    ignored("a backend that takes nothing is given up after 20 seconds"),
		"proxy-read-timeout":    {handling: Unsupported, note: "the class's `responseTimeout` bounds the wait; an answer that has begun has no limit", read: (*reader).readTimeout},
		"proxy-http-version":    ignored("HTTP/1.1, or HTTP/2 by `backend-protocol`"),
		"enable-access-log":     ignored("the class's `accessLog`"),
		"enable-rewrite-log":    ignored("there is none"),
	}
	for note, names := range map[string][]string{
		noteStreams: {
			"client-body-buffer-size", "proxy-buffering", "proxy-buffers-number", "proxy-buffer-size", "proxy-busy-buffers-size",
			"proxy-max-temp-file-size", "proxy-request-buffering",
		},
		noteTracing: {
			"enable-opentelemetry", "opentelemetry-operation-name", "opentelemetry-trust-incoming-span", "enable-opentracing",
			"opentracing-trust-incoming-span",
		},
		noteNoClass:                       {"ssl-ciphers", "ssl-prefer-server-ciphers"},
		"`options` of a BackendTLSPolicy": {"proxy-ssl-ciphers", "proxy-ssl-protocols"},
		noteBackendTLS: {
			"proxy-ssl-secret", "proxy-ssl-name", "proxy-ssl-server-name",
			"proxy-ssl-verify-depth",
		},
		noteFastCGI: {"fastcgi-index", "fastcgi-params-configmap"},
	} {
		for _, name := range names {
			group[name] = ignored(note)
		}
	}
	return group
}
