// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"net/netip"
	"time"
)

// Settings are the parsed annotations of one Ingress.
type Settings struct {
	// SSLRedirect redirects hosts with TLS to HTTPS, ForceSSLRedirect all hosts.
	SSLRedirect, ForceSSLRedirect bool
	// AppRoot is the redirect target of path "/"; empty means no redirect.
	AppRoot string
	// Redirect redirects all requests; nil means no redirect.
	Redirect *Redirect
	// FromToWWW redirects the other form of the host name, with "www." added or removed, to the host.
	FromToWWW bool
	// RewriteTarget replaces the request path; $1 to $9 refer to groups of the rule's path.
	RewriteTarget string
	// UseRegex makes all paths of the Ingress's hosts regular expressions.
	UseRegex bool
	// UpstreamVhost is the Host header for backends. It may contain $service_name, $service_port,
	// $namespace and $ingress_name.
	UpstreamVhost string
	// ForwardedPrefix is the value of header X-Forwarded-Prefix in rewritten requests.
	ForwardedPrefix string
	Aliases         []string
	Protocol        Protocol
	VerifyBackend   bool
	Retry           *Retry
	CORS            *CORS
	Session         *Session
	Canary          *Canary
	Mirror          *Mirror
	SSLPassthrough  bool
	// Headers are the header changes of configuration-snippet, or nil.
	Headers *Headers
	// CustomHeaders is the ConfigMap with response headers: "name" or "namespace/name".
	CustomHeaders string

	// Allow and Deny are prefixes of client addresses. If Allow is not empty, all other clients are rejected.
	Allow, Deny []netip.Prefix
	// SatisfyAny admits clients in Allow without Auth and External. Other clients must satisfy both.
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
	// Location is the target URL. If it is empty, the request's URL is kept, except for Scheme, Host and Port
	// that are set.
	Location     string
	Scheme, Host string
	Port         uint32
	Status       uint32
}

// Retry configures retries of requests.
type Retry struct {
	Attempts uint32
	// Statuses are the response statuses that are retried, in addition to connection failures.
	Statuses []uint32
}

// CORS configures cross-origin resource sharing.
type CORS struct {
	Origins, Methods, Headers, Expose []string
	Credentials                       bool
	MaxAge                            uint32
}

// Session configures session persistence by a cookie.
type Session struct {
	Cookie string
	// Path is the path attribute of the cookie; empty means the path of the rule.
	Path string
	// MaxAge is the lifetime of the cookie; 0 means a session cookie.
	MaxAge time.Duration
}

// Canary adds the backend of this Ingress to the paths of another Ingress. Requests are selected by header,
// then by cookie, then by weight.
type Canary struct {
	// Header is the name of the selecting header. Without Value and Pattern, its values "always" and "never"
	// decide. Value takes precedence over Pattern, an RE2 expression that matches any part of the header's
	// value.
	Header, Value, Pattern string
	Cookie                 string
	// Weight of each Total requests are forwarded to the canary.
	Weight, Total uint32
}

// Mirror is a Service in the Ingress's namespace that receives a copy of each request.
type Mirror struct {
	Namespace, Service string
	Port               int32
}

// Auth configures basic authentication.
type Auth struct {
	// Secret contains the users: "name" or "namespace/name".
	Secret, Realm string
	// IsMap is true if each key of the Secret is a user name. Otherwise key "auth" is an htpasswd file.
	IsMap bool
}

// Limits apply to each client address; 0 means no limit.
type Limits struct {
	PerSecond, PerMinute, Connections uint32
	// Burst is the multiple of the rate that is admitted as a burst.
	Burst  uint32
	Exempt []netip.Prefix
}
