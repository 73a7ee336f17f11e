// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"net/netip"
	"time"
)

// Settings are the parsed annotations of one Ingress.
type Settings struct {
	// SSLRedirect applies to hosts with TLS, ForceSSLRedirect to all.
	SSLRedirect, ForceSSLRedirect bool
	// AppRoot is the redirect target of path "/", or empty.
	AppRoot string
	// Redirect answers all requests, if not nil.
	Redirect *Redirect
	// FromToWWW redirects the host name with "www." added or removed to the host.
	FromToWWW bool
	// RewriteTarget replaces the whole path; $1 to $9 are groups of the rule's path.
	RewriteTarget string
	// UseRegex makes all paths of the Ingress's hosts regular expressions.
	UseRegex bool
	// UpstreamVhost is the Host header for backends. It may contain $service_name, $service_port,
	// $namespace and $ingress_name.
	UpstreamVhost string
	// ForwardedPrefix is the X-Forwarded-Prefix header of rewritten requests.
	ForwardedPrefix string
	// Aliases are additional names of the Ingress's hosts.
	Aliases  []string
	Protocol Protocol
	// VerifyBackend requires verification of backend certificates.
	VerifyBackend  bool
	Retry          *Retry
	CORS           *CORS
	Session        *Session
	Canary         *Canary
	Mirror         *Mirror
	SSLPassthrough bool
	// Headers are the changes of configuration-snippet, or nil.
	Headers *Headers
	// CustomHeaders is a ConfigMap with response headers, "name" or "namespace/name".
	CustomHeaders string

	// Allow and Deny are client addresses. If Allow is not empty, all other clients are rejected.
	Allow, Deny []netip.Prefix
	// SatisfyAny admits clients of Allow without Auth and External, and other clients with both.
	SatisfyAny bool
	Auth       *Auth
	External   *External
	// BodyLimit is the maximum size of a request body in bytes; 0 means no limit.
	BodyLimit int64
	Limits    Limits
}

// Protocol is the protocol of connections to backends.
type Protocol int

// Protocols of backends.
const (
	HTTP Protocol = iota
	HTTPS
	GRPC
	GRPCS
)

// Redirect is a redirect for all requests.
type Redirect struct {
	// Location is empty to keep the request's URL except for a Scheme, Host and Port that are set.
	Location     string
	Scheme, Host string
	Port         uint32
	Status       uint32
}

// Retry configures retries.
type Retry struct {
	Attempts uint32
	// Statuses are response statuses that are retried, in addition to failures.
	Statuses []uint32
}

// CORS configures which origins may read responses.
type CORS struct {
	Origins, Methods, Headers, Expose []string
	Credentials                       bool
	MaxAge                            uint32
}

// Session is session persistence by a cookie.
type Session struct {
	Cookie string
	// Path is the path of the cookie; empty means the path of the rule.
	Path string
	// MaxAge is 0 for a session cookie.
	MaxAge time.Duration
}

// Canary adds the Ingress's backend to another Ingress's paths: by header, by cookie, then by weight.
type Canary struct {
	// Header selects by "always" or "never" if neither Value nor Pattern is set. Value takes precedence
	// over Pattern, an RE2 expression that is searched in the value.
	Header, Value, Pattern string
	Cookie                 string
	// Weight of Total requests are forwarded to the canary.
	Weight, Total uint32
}

// Mirror is a Service of the Ingress's namespace that gets a copy of each request.
type Mirror struct {
	Namespace, Service string
	Port               int32
}

// Auth is basic authentication.
type Auth struct {
	// Secret is "name" or "namespace/name".
	Secret, Realm string
	// IsMap is true if each key of the Secret is a user; otherwise its key "auth" is an htpasswd file.
	IsMap bool
}

// Limits apply to each client; 0 means no limit.
type Limits struct {
	PerSecond, PerMinute, Connections uint32
	// Burst is the multiple of the rate that is admitted at once.
	Burst uint32
	// Exempt are clients without these limits.
	Exempt []netip.Prefix
}
