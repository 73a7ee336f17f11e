// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"net/netip"
	"time"
)

// Settings are what the annotations of one Ingress ask for.
type Settings struct {
	// SSLRedirect is for hosts with TLS, ForceSSLRedirect for all.
	SSLRedirect, ForceSSLRedirect bool
	// AppRoot is where "/" is redirected to, or empty.
	AppRoot string
	// Redirect answers all requests; nil: none.
	Redirect *Redirect
	// FromToWWW redirects from "www." before the host, or to it.
	FromToWWW bool
	// RewriteTarget is what the whole path becomes, with $1 to $9 for groups of the rule's path.
	RewriteTarget string
	// UseRegex makes regular expressions of all paths of the Ingress's hosts.
	UseRegex bool
	// UpstreamVhost is the Host that backends get. It may include $service_name, $service_port, $namespace and
	// $ingress_name.
	UpstreamVhost string
	// ForwardedPrefix is X-Forwarded-Prefix where the path is rewritten.
	ForwardedPrefix string
	// Aliases are further names of the Ingress's hosts.
	Aliases  []string
	Protocol Protocol
	// VerifyBackend says that a backend has to prove who it is, where it is spoken with over TLS.
	VerifyBackend  bool
	Retry          *Retry
	CORS           *CORS
	Session        *Session
	Canary         *Canary
	Mirror         *Mirror
	SSLPassthrough bool
	// Headers are the changes of configuration-snippet, or nil.
	Headers *Headers
	// CustomHeaders is a ConfigMap of headers for answers, "name" or "namespace/name".
	CustomHeaders string

	// Allow and Deny are addresses of clients. Where Allow is not empty nobody else is let in.
	Allow, Deny []netip.Prefix
	// SatisfyAny lets clients of Allow in without Auth and External, and others with them.
	SatisfyAny bool
	Auth       *Auth
	// External is asked for each request; nil: nobody is.
	External *External
	// BodyLimit is the largest body in bytes; 0: none is asked for.
	BodyLimit int64
	Limits    Limits
}

// Protocol is how backends are spoken with.
type Protocol int

// Protocols of backends.
const (
	HTTP Protocol = iota
	HTTPS
	GRPC
	GRPCS
)

// Redirect answers with another URL.
type Redirect struct {
	// Location is the URL; empty where the request's own path and query are kept. Then Scheme, Host
	// and Port are those of the URL, each empty or 0 where it is the request's.
	Location     string
	Scheme, Host string
	Port         uint32
	Status       uint32
}

// Retry sends a request again.
type Retry struct {
	// Attempts are those after the first.
	Attempts uint32
	// Statuses are answers after which it is sent again, beside failures.
	Statuses []uint32
}

// CORS is who may use answers from other origins.
type CORS struct {
	Origins, Methods, Headers, Expose []string
	Credentials                       bool
	MaxAge                            uint32
}

// Session keeps a client at one endpoint by a cookie.
type Session struct {
	Cookie string
	// Path is the cookie's; empty is the path of the rule.
	Path string
	// MaxAge is 0 where the cookie ends with the browser.
	MaxAge time.Duration
}

// Canary makes the Ingress a second backend of another one's paths. The header decides, then the
// cookie, then the weight.
type Canary struct {
	// Header, with "always" or "never" where neither Value nor Pattern is set. Value goes before
	// Pattern, which is RE2 and is searched.
	Header, Value, Pattern string
	Cookie                 string
	// Weight of Total requests go to it.
	Weight, Total uint32
}

// Mirror gets a copy of each request. It is a Service of the Ingress's namespace.
type Mirror struct {
	Namespace, Service string
	Port               int32
}

// Auth asks for a password.
type Auth struct {
	// Secret is "name" or "namespace/name".
	Secret, Realm string
	// IsMap says that each key of the Secret is a user; else its key "auth" is a file of htpasswd.
	IsMap bool
}

// Limits bound what each client may ask for; 0 is none.
type Limits struct {
	PerSecond, PerMinute, Connections uint32
	// Burst is how many times the rate may come at once.
	Burst uint32
	// Exempt are clients without these limits.
	Exempt []netip.Prefix
}
