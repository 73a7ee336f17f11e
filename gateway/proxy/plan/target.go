// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/edge"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Prefix is what a rewritten prefix takes the place of; empty where a rule matches no prefix.
func Prefix(rule *resource.Rule) string {
	if path := rule.GetMatch().GetPath(); path.GetKind() == resource.PathMatch_PREFIX {
		// A value that cannot be decoded is refused with its rule.
		value, _ := url.PathUnescape(path.GetValue())
		return strings.TrimRight(value, "/")
	}
	return ""
}

// Tunnels reports whether a listener passes bytes on.
func Tunnels(listener *resource.Listener) bool {
	protocol := listener.GetProtocol()
	return protocol == resource.Listener_TLS_PASSTHROUGH || protocol == resource.Listener_TLS_TERMINATE
}

// ChangePath gives a path and its encoded form after a change. An encoded form that is
// empty is the default one.
func ChangePath(change *resource.PathChange, prefix string, u *url.URL) (path, raw string) {
	switch kind := change.GetKind().(type) {
	case *resource.PathChange_ReplaceFullPath:
		return kind.ReplaceFullPath, ""
	case *resource.PathChange_ReplacePrefix:
		path = replacePrefix(kind.ReplacePrefix, prefix, u.Path)
		if strings.HasPrefix(u.RawPath, prefix) {
			raw = replacePrefix(kind.ReplacePrefix, prefix, u.RawPath)
		}
		return path, raw
	default:
		return u.Path, u.RawPath
	}
}

func replacePrefix(replacement, prefix, path string) string {
	rest := strings.TrimPrefix(path, prefix)
	changed := strings.TrimRight(replacement, "/") + rest
	switch {
	case changed == "":
		return "/"
	case rest == "":
		// Nothing follows, so the replacement's own slash counts.
		return replacement
	case !strings.HasPrefix(changed, "/"):
		return "/" + changed
	}
	return changed
}

// IsForwardable reports whether a backend gets the path of a request as the client wrote it, although
// another form of it was matched.
func IsForwardable(path string) bool { return match.IsForwardable(path) }

// Target is the target of a request that is redirected.
type Target struct {
	TLS bool
	// Host and Path are normalised; RawPath is the encoded form of Path, or empty.
	Host, Path, RawPath, RawQuery string
	// Port is the listener's.
	Port uint32
}

// Location gives where a redirect leads. prefix is the rule's (Prefix).
func Location(redirect *resource.Redirect, prefix string, from *Target) string {
	if location := redirect.GetLocation(); location != "" {
		return location
	}
	target := url.URL{Scheme: redirect.GetScheme(), Host: redirect.GetHostname(), RawQuery: from.RawQuery}
	if target.Scheme == "" {
		target.Scheme = "http"
		if from.TLS {
			target.Scheme = "https"
		}
	}
	if target.Host == "" {
		target.Host = from.Host
	}
	if strings.Contains(target.Host, ":") {
		target.Host = "[" + target.Host + "]"
	}
	port := redirect.GetPort()
	if port == 0 && redirect.GetScheme() == "" {
		port = from.Port
	}
	standard := map[string]uint32{"http": 80, "https": 443}[target.Scheme]
	if port != 0 && port != standard {
		target.Host += ":" + strconv.FormatUint(uint64(port), 10)
	}
	target.Path, target.RawPath = ChangePath(redirect.GetPath(), prefix, &url.URL{Path: from.Path, RawPath: from.RawPath})
	return target.String()
}

// Redirects reports whether a redirect, which may be nil, answers a request. The header is without
// what a client may not say about itself (Find).
func Redirects(redirect *resource.Redirect, header http.Header, tls bool) bool {
	return redirect != nil && (!redirect.GetInsecureOnly() || edge.Scheme(header, tls) == "http")
}

// CheckRedirect reports what of a redirect cannot be carried out.
func CheckRedirect(redirect *resource.Redirect) error {
	if redirect.GetPath() != nil && redirect.GetPath().GetExpression() != nil {
		return errors.New("a redirect cannot change a path by an expression")
	}
	if redirect.GetLocation() == "" {
		return CheckPathChange(redirect.GetPath())
	}
	target, err := url.Parse(redirect.GetLocation())
	switch {
	case err != nil:
		return fmt.Errorf("redirect: %w", err)
	case target.Host == "" && (target.Scheme != "" || !strings.HasPrefix(target.Path, "/")),
		target.Host != "" && target.Scheme != "http" && target.Scheme != "https":
		return fmt.Errorf("redirect: %q is no URL of http or https, and no path", redirect.GetLocation())
	}
	return nil
}

// CheckPathChange reports whether a change of a path, which may be nil, is of a known kind.
func CheckPathChange(change *resource.PathChange) error {
	if change != nil && change.GetKind() == nil {
		return errors.New("the change of a path is of a kind that this proxy does not know")
	}
	return nil
}

// RedirectStatus is the status of a redirect.
func RedirectStatus(redirect *resource.Redirect) int {
	if status := int(redirect.GetStatus()); status != 0 {
		return status
	}
	return http.StatusFound
}
