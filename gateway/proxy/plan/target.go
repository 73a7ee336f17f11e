// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Prefix returns the decoded prefix that a rule matches and a rewrite replaces, or "".
func Prefix(rule *resource.Rule) string {
	if path := rule.GetMatch().GetPath(); path.GetKind() == resource.PathMatch_PREFIX {
		// Invalid encodings were rejected with the rule.
		value, _ := url.PathUnescape(path.GetValue())
		return strings.TrimRight(value, "/")
	}
	return ""
}

// Tunnels reports whether a listener forwards a byte stream.
func Tunnels(listener *resource.Listener) bool {
	protocol := listener.GetProtocol()
	return protocol == resource.Listener_TLS_PASSTHROUGH || protocol == resource.Listener_TLS_TERMINATE
}

// ChangePath returns the path and its encoding after a change. An empty encoding is the default one.
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
		// The replacement keeps its trailing slash if nothing follows.
		return replacement
	case !strings.HasPrefix(changed, "/"):
		return "/" + changed
	}
	return changed
}

// IsForwardable reports whether the request path can be forwarded unchanged although it is not canonical.
func IsForwardable(path string) bool { return match.IsForwardable(path) }

// Target is the original target of a redirected request.
type Target struct {
	TLS bool
	// Host and Path are normalized; RawPath is the encoding of Path, or empty.
	Host, Path, RawPath, RawQuery string
	// Port is the listener's port.
	Port uint32
}

// Location returns the URL of a redirect. prefix is the result of Prefix for the rule.
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

// Redirects reports whether a redirect or nil applies. Untrusted headers must have been removed (Find).
func Redirects(redirect *resource.Redirect, header http.Header, tls bool) bool {
	return redirect != nil && (!redirect.GetInsecureOnly() || canonical.Scheme(header, tls) == "http")
}

// CheckRedirect validates a redirect.
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
		return fmt.Errorf("redirect: %q is neither an http or https URL nor a path", redirect.GetLocation())
	}
	return nil
}

// CheckPathChange validates a path change, which may be nil.
func CheckPathChange(change *resource.PathChange) error {
	if change != nil && change.GetKind() == nil {
		return errors.New("unknown kind of path change")
	}
	return nil
}

// RedirectStatus returns the status code of a redirect.
func RedirectStatus(redirect *resource.Redirect) int {
	if status := int(redirect.GetStatus()); status != 0 {
		return status
	}
	return http.StatusFound
}
