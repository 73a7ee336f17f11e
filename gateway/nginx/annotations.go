// SPDX-License-Identifier: Apache-2.0

package nginx

type annotation struct {
	handling Handling
	note     string
	// read parses the value. It is nil if the function of another annotation parses the value, or if the
	// value has no effect.
	read func(*reader, string) error
	// isStrict is true if an invalid value refuses the Ingress.
	isStrict bool
}

const (
	noteSnippet    = "snippets are not supported and may restrict clients; headers: `custom-headers`, `configuration-snippet`"
	noteClientCert = "client certificates need a Gateway with `frontendValidation`"
	noteWAF        = "there is no web application firewall"
	noteStreams    = "bodies are streamed"
	noteNoClass    = "`tlsPolicy` of the class"
	noteTracing    = "tracing is a setting of the class"
	noteGlobal     = "limits apply per proxy: `limit-rps`, `limit-rpm`"
	noteBalance    = "requests are sent to the less busy of two endpoints"
	noteBackendTLS = "configured by a BackendTLSPolicy"
	noteFastCGI    = "FastCGI is not supported"
)

// annotations are the annotations of ingress-nginx up to 1.12, by name.
var annotations map[string]annotation

// init sets annotations, because the read functions refer to them and an initializer would be a cycle.
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

func strict(note string, read func(*reader, string) error) annotation {
	return annotation{handling: Supported, note: note, read: read, isStrict: true}
}

func ignored(note string) annotation     { return annotation{handling: Ignored, note: note} }
func unsupported(note string) annotation { return annotation{handling: Unsupported, note: note} }
func refused(note string) annotation     { return annotation{handling: Refused, note: note} }

func routing() map[string]annotation {
	return map[string]annotation{
		"ssl-redirect":            supported("default `true`, for hosts with TLS; status 308", (*reader).sslRedirect),
		"force-ssl-redirect":      supported("also for hosts without TLS", (*reader).forceSSLRedirect),
		"preserve-trailing-slash": ignored("a redirect keeps the path as it is"),
		"app-root":                strict("`/` is redirected, status 302", (*reader).appRoot),
		"permanent-redirect":      strict("with `$scheme`, `$host` and `$request_uri`, as in `https://example.com$request_uri`", (*reader).permanentRedirect),
		"permanent-redirect-code": supported("default 301", nil),
		"temporal-redirect":       strict("like `permanent-redirect`, and takes precedence over it", (*reader).temporalRedirect),
		"temporal-redirect-code":  supported("default 302", nil),
		"relative-redirects":      ignored("redirects have absolute URLs"),
		"from-to-www-redirect":    supported("if no Ingress has the other name; status 308", (*reader).fromToWWW),
		"rewrite-target":          strict("replaces the whole path; `$1` to `$9` are groups of the path", (*reader).rewriteTarget),
		"use-regex":               strict("paths of all Ingresses of the host are case-insensitive regular expressions (RE2)", (*reader).useRegex),
		"upstream-vhost":          strict("`$service_name`, `$service_port`, `$namespace` and `$ingress_name`; `$host` alone", (*reader).upstreamVhost),
		"x-forwarded-prefix":      supported("if `rewrite-target` is set", (*reader).forwardedPrefix),
		"server-alias":            supported("names and `*.` wildcards; regular expressions are reported", (*reader).serverAlias),
		"backend-protocol":        strict("HTTP, HTTPS, GRPC, GRPCS; certificates are verified only with a BackendTLSPolicy", (*reader).backendProtocol),
		"proxy-ssl-verify":        strict("`on` requires a BackendTLSPolicy", (*reader).verifyBackend),
		"ssl-passthrough":         strict("the backend of `/` gets the connections of the host", (*reader).sslPassthrough),
		"default-backend":         unsupported("a Service without endpoints answers 503"),
		"service-upstream":        ignored("requests are sent to endpoints, not to the ClusterIP"),
	}
}

func responses() map[string]annotation {
	return map[string]annotation{
		"enable-cors":                              supported("", (*reader).enableCORS),
		"cors-allow-origin":                        supported("the default is `*`, and then without credentials, as browsers require; `*.` is one label", nil),
		"cors-allow-methods":                       supported("", nil),
		"cors-allow-headers":                       supported("", nil),
		"cors-expose-headers":                      supported("", nil),
		"cors-allow-credentials":                   supported("default `true`", nil),
		"cors-max-age":                             supported("default 1728000", nil),
		"custom-headers":                           supported("a ConfigMap of the Ingress's namespace", (*reader).customHeaders),
		"custom-http-errors":                       unsupported("responses of backends are not modified"),
		"disable-proxy-intercept-errors":           ignored("responses of backends are not modified"),
		"connection-proxy-header":                  unsupported("the proxy sets `Connection`"),
		"http2-push-preload":                       ignored("browsers no longer support server push"),
		"proxy-cookie-domain":                      unsupported("cookies of backends are not modified"),
		"proxy-cookie-path":                        unsupported("cookies of backends are not modified"),
		"proxy-redirect-from":                      unsupported("`Location` is not modified"),
		"proxy-redirect-to":                        unsupported("`Location` is not modified"),
		"session-cookie-name":                      supported("the default is `INGRESSCOOKIE`; other Services of the host get a suffix", nil),
		"session-cookie-expires":                   supported("like `session-cookie-max-age`", nil),
		"session-cookie-max-age":                   supported("the session ends then, too", nil),
		"session-cookie-path":                      supported("the default is the path of the rule, and `/` for expressions", nil),
		"session-cookie-domain":                    unsupported("the cookie is limited to the host"),
		"session-cookie-samesite":                  {handling: Unsupported, note: "it is `Lax`", read: (*reader).sameSite},
		"session-cookie-conditional-samesite-none": ignored("it is `Lax`"),
		"session-cookie-secure":                    ignored("`Secure` is set over TLS"),
		"session-cookie-hash":                      ignored("the cookie is encrypted"),
		"session-cookie-change-on-failure":         ignored("a session ends with its endpoint"),
	}
}

func sharing() map[string]annotation {
	return map[string]annotation{
		"affinity":                     supported("`cookie`", (*reader).affinity),
		"affinity-mode":                ignored("sessions are `persistent`"),
		"affinity-canary-behavior":     {handling: Unsupported, note: "sessions are `sticky`", read: (*reader).canaryBehavior},
		"canary":                       supported("for paths of an older Ingress of the namespace", (*reader).canary),
		"canary-by-header":             supported("`always` and `never`", nil),
		"canary-by-header-value":       supported("", nil),
		"canary-by-header-pattern":     supported("RE2", nil),
		"canary-by-cookie":             supported("`always` and `never`", nil),
		"canary-weight":                supported("", nil),
		"canary-weight-total":          supported("default 100", nil),
		"mirror-target":                supported("a Service of the Ingress's namespace, by its DNS name", (*reader).mirrorTarget),
		"mirror-request-body":          ignored("bodies up to a size are mirrored"),
		"mirror-host":                  ignored("mirrored requests have the request's `Host`"),
		"proxy-next-upstream":          supported("for requests that may be retried: `error`, `timeout` and statuses", (*reader).nextUpstream),
		"proxy-next-upstream-tries":    supported("default 3; at most 11, which is the meaning of 0", (*reader).nextUpstream),
		"proxy-next-upstream-timeout":  ignored("the number of tries is limited"),
		"load-balance":                 ignored(noteBalance),
		"upstream-hash-by":             unsupported(noteBalance + "; sessions: `affinity`"),
		"upstream-hash-by-subset":      unsupported(noteBalance),
		"upstream-hash-by-subset-size": unsupported(noteBalance),
	}
}

func restricting() map[string]annotation {
	group := map[string]annotation{
		"whitelist-source-range": strict("other clients get 403", (*reader).allow),
		"allowlist-source-range": strict("other clients get 403", (*reader).allow),
		"denylist-source-range":  strict("these clients get 403", (*reader).deny),
		"satisfy":                supported("`any`: clients of `allowlist-source-range` need neither password nor `auth-url`", (*reader).satisfy),
		"configuration-snippet": strict("`more_set_headers`, `more_clear_headers`, `add_header` and `proxy_set_header` with fixed values; anything else refuses the Ingress",
			(*reader).configurationSnippet),

		"auth-type":          strict("`basic`", (*reader).authType),
		"auth-secret":        strict("a Secret of the Ingress's namespace and type `Opaque`; bcrypt, `$apr1$`, `{SHA}` and `{SSHA}`", (*reader).authSecret),
		"auth-secret-type":   supported("`auth-file` (default) or `auth-map`", nil),
		"auth-realm":         supported("", nil),
		"auth-tls-secret":    {handling: Refused, note: noteClientCert, read: (*reader).authTLS},
		"enable-global-auth": ignored("the ConfigMap of ingress-nginx is not read"),

		"limit-rps":              strict("per proxy; excess requests get 503", (*reader).limitRPS),
		"limit-rpm":              strict("per proxy; excess requests get 503", (*reader).limitRPM),
		"limit-connections":      strict("concurrent requests, per proxy; excess requests get 503", (*reader).limitConnections),
		"limit-burst-multiplier": supported("default 5", nil),
		"limit-whitelist":        supported("", (*reader).limitExempt),
		"limit-rate":             unsupported("responses are not throttled"),
		"limit-rate-after":       ignored("responses are not throttled"),
		"proxy-body-size":        strict("no limit by default; the default of ingress-nginx is 1m", (*reader).bodySize),
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
		"without effect; `auth-tls-secret` refuses the Ingress": {
			"auth-tls-error-page", "auth-tls-match-cn", "auth-tls-pass-certificate-to-upstream", "auth-tls-verify-client",
			"auth-tls-verify-depth",
		},
		"without effect": {"modsecurity-transaction-id"},
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

func performance() map[string]annotation {
	group := map[string]annotation{
		"proxy-connect-timeout": ignored("connection attempts time out after seconds"),
		"proxy-send-timeout":    ignored("writes to a backend time out after 20 seconds"),
		"proxy-read-timeout":    {handling: Unsupported, note: "the class's `responseTimeout` limits the wait for response headers; bodies have no limit", read: (*reader).readTimeout},
		"proxy-http-version":    ignored("HTTP/1.1, or HTTP/2 by `backend-protocol`"),
		"enable-access-log":     ignored("the class's `accessLog`"),
		"enable-rewrite-log":    ignored("there is no rewrite log"),
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
