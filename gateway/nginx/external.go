// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// External configures external authorization: a request to a Service for each client request.
type External struct {
	// Service is empty if the Service is determined by the rules of the URL's host, or of the client
	// request's host.
	Namespace, Service string
	Port               int32
	TLS                bool
	// Host is the Host header of the authorization request; empty means the host of the client's request.
	// Path includes the query.
	Host, Path string
	// Method is the method of the authorization request; empty means GET.
	Method string
	// ResponseHeaders are the headers of the authorization response that are copied to the client's request.
	ResponseHeaders []string
	// SignIn is the URL to which clients are redirected after a 401. Redirect is the value of
	// X-Auth-Request-Redirect. Either may be empty, and may contain $scheme, $host, $request_uri and
	// $escaped_request_uri.
	SignIn, Redirect string
}

// WantedURL is the advice for an unsupported auth-url: a form that is always supported.
const WantedURL = "use the URL of a Service, as http://NAME.NAMESPACE.svc.cluster.local:PORT/oauth2/auth"

func (r *reader) authURL(text string) error {
	if IsOff(text) {
		return nil
	}
	found, err := parseExternal(text)
	if err != nil {
		return err
	}
	if found.Method, err = r.authMethod(); err != nil {
		return err
	}
	for _, name := range splitList(r.values["auth-response-headers"]) {
		if !isToken(name) || messageHeaders[strings.ToLower(name)] {
			return fmt.Errorf("auth-response-headers has %s, which cannot be set for the backend", quoted(name))
		}
		found.ResponseHeaders = append(found.ResponseHeaders, name)
	}
	found.SignIn = r.signIn()
	if text, is := r.values["auth-request-redirect"]; is {
		if found.Redirect, err = replaceVariables(text); err != nil {
			r.reportInvalid("auth-request-redirect", fmt.Errorf("%w: the path of the request is used", err))
		}
	}
	r.settings.External = found
	return nil
}

var ownHosts = regexp.MustCompile(`^(https?|\$scheme|\$pass_access_scheme)://\$(host|http_host|best_http_host)/`)

func parseExternal(text string) (*External, error) {
	if begin := ownHosts.FindString(text); begin != "" {
		target, err := parsePlainURL("http://own/" + text[len(begin):])
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, WantedURL)
		}
		return &External{Path: target.RequestURI()}, nil
	}
	target, err := parsePlainURL(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, WantedURL)
	}
	labels := strings.Split(strings.ToLower(target.Hostname()), ".")
	if _, err := netip.ParseAddr(target.Hostname()); err == nil || slices.Contains(labels, "") {
		return nil, fmt.Errorf("%s is not a name: %s", quoted(target.Hostname()), WantedURL)
	}
	if len(labels) < 3 || labels[2] != "svc" {
		if port := target.Port(); port != "" && port != map[string]string{"http": "80", "https": "443"}[target.Scheme] {
			return nil, fmt.Errorf("%s has a port that Ingresses do not have: %s", quoted(text), WantedURL)
		}
		return &External{Host: strings.ToLower(target.Hostname()), Path: target.RequestURI()}, nil
	}
	found := &External{
		Namespace: labels[1], Service: labels[0], Port: 80, TLS: target.Scheme == "https", Host: target.Hostname(), Path: target.RequestURI(),
	}
	if found.TLS {
		found.Port = 443
	}
	if text := target.Port(); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return nil, fmt.Errorf("%s has an invalid port", quoted(text))
		}
		found.Port = int32(port)
	}
	return found, nil
}

func parsePlainURL(text string) (*url.URL, error) {
	target, err := url.Parse(text)
	switch {
	case err != nil || target.Host == "" || target.User != nil || !isPrintable(text) || strings.ContainsAny(text, " #"):
		return nil, fmt.Errorf("%s is not a URL", quoted(text))
	case strings.Contains(text, "$"):
		return nil, fmt.Errorf("%s has variables of nginx", quoted(text))
	case target.Scheme != "http" && target.Scheme != "https":
		return nil, fmt.Errorf("%s is not an http or https URL", quoted(text))
	}
	for element := range strings.SplitSeq(target.Path, "/") {
		if element == "." || element == ".." {
			return nil, fmt.Errorf("%s has dot segments", quoted(target.Path))
		}
	}
	return target, nil
}

// authMethod parses auth-method. Unknown methods are rejected, because an authorization server might admit
// clients in response to them.
func (r *reader) authMethod() (string, error) {
	switch method := r.values["auth-method"]; method {
	case "", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return method, nil
	default:
		return "", fmt.Errorf("auth-method %s is not GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS", quoted(method))
	}
}

// messageHeaders are headers that would change the framing of a request to a backend if they were copied to
// it.
var messageHeaders = map[string]bool{
	"connection": true, "content-length": true, "expect": true, "host": true, "http2-settings": true, "keep-alive": true,
	"proxy-authenticate": true, "proxy-authorization": true, "proxy-connection": true, "te": true, "trailer": true,
	"transfer-encoding": true, "upgrade": true,
}

var parameterName = regexp.MustCompile(`^[A-Za-z0-9._~-]+$`)

// signIn parses auth-signin. If the URL is invalid, clients get the response 401.
func (r *reader) signIn() string {
	text, is := r.values["auth-signin"]
	if !is || IsOff(text) {
		return ""
	}
	found, err := replaceVariables(text)
	if err == nil {
		err = checkClientURL(found)
	}
	if err != nil {
		r.reportInvalid("auth-signin", fmt.Errorf("%w: clients get 401", err))
		return ""
	}
	parameter := "rd"
	if name, is := r.values["auth-signin-redirect-param"]; is {
		if parameterName.MatchString(name) {
			parameter = name
		} else {
			r.reportInvalid("auth-signin-redirect-param", fmt.Errorf("%s is not the name of a parameter: rd is used", quoted(name)))
		}
	}
	_, query, usesSignIn := strings.Cut(found, "?")
	for part := range strings.SplitSeq(query, "&") {
		if name, value, _ := strings.Cut(part, "="); name == parameter && value != "" {
			return found
		}
	}
	separator := "?"
	if usesSignIn {
		separator = "&"
	}
	return found + separator + parameter + "=$scheme://$host$escaped_request_uri"
}

// checkClientURL returns an error if a text is neither an HTTP URL nor a path, after replacing its variables.
func checkClientURL(text string) error {
	plain := strings.NewReplacer("$escaped_request_uri", "/", "$request_uri", "/", "$request_method", "GET", "$remote_addr", "192.0.2.1",
		"$scheme", "https", "$host", "a.example", "$uri", "/", "$args", "").Replace(text)
	target, err := url.Parse(plain)
	if err != nil || target.Host == "" && !strings.HasPrefix(plain, "/") || target.Scheme != "" && target.Scheme != "http" && target.Scheme != "https" {
		return fmt.Errorf("%s is not an http or https URL", quoted(text))
	}
	return nil
}

var variable = regexp.MustCompile(`\$(\{\w*\}|\w*)`)

var knownVariables = map[string]string{
	"$scheme": "$scheme", "$pass_access_scheme": "$scheme",
	"$host": "$host", "$http_host": "$host", "$best_http_host": "$host", "$server_name": "$host",
	"$request_uri": "$request_uri", "$escaped_request_uri": "$escaped_request_uri",
	"$uri": "$uri", "$document_uri": "$uri", "$args": "$args", "$query_string": "$args",
	"$request_method": "$request_method", "$remote_addr": "$remote_addr", "$the_real_ip": "$remote_addr",
}

// maxURL is the maximum length of a URL in responses, in bytes.
const maxURL = 2048

func replaceVariables(text string) (string, error) {
	switch {
	case !isPrintable(text) || strings.Contains(text, " "):
		return "", errors.New("it has a space or a control character")
	case len(text) > maxURL:
		return "", fmt.Errorf("it is longer than %d bytes", maxURL)
	}
	var unknown error
	found := variable.ReplaceAllStringFunc(text, func(name string) string {
		known, is := knownVariables[strings.NewReplacer("{", "", "}", "").Replace(name)]
		if !is {
			unknown = fmt.Errorf("%s is not supported: $scheme, $host, $request_uri, $escaped_request_uri, $request_method, $uri, $args "+
				"and $remote_addr are", quoted(name))
		}
		return known
	})
	if unknown != nil {
		return "", unknown
	}
	return found, nil
}

func (r *reader) refuseWithAuthURL(text string) error {
	if !IsOff(r.values["auth-url"]) && !IsOff(text) {
		r.refuse("it is not supported: %s", annotations[r.name].note)
	}
	return nil
}

func externalAuth() map[string]annotation {
	group := map[string]annotation{
		"auth-url": strict("sends an authorization request for each request; to a Service, as `http://NAME.NAMESPACE.svc:PORT/PATH`, of another namespace with a ReferenceGrant; or to `https://$host/PATH` or `https://NAME/PATH`, if another Ingress of the class serves it",
			(*reader).authURL),
		"auth-method":                supported("default `GET`", nil),
		"auth-response-headers":      supported("headers of clients with these names are removed", nil),
		"auth-signin":                supported("target of the redirect for 401; `$scheme`, `$host`, `$request_uri`, `$escaped_request_uri`, `$request_method`, `$uri`, `$args`, `$remote_addr`", nil),
		"auth-signin-redirect-param": supported("default `rd`", nil),
		"auth-request-redirect":      supported("default `$request_uri`", nil),
		"auth-always-set-cookie":     ignored("cookies of the service are always sent to clients"),
		"auth-proxy-set-headers": {
			handling: Refused, note: "the service may depend on these headers", read: (*reader).refuseWithAuthURL,
		},
		"auth-snippet": {handling: Refused, note: "only headers that the service gets by default, such as `X-Forwarded-Method`, can be set", read: (*reader).authSnippet},
	}
	for _, name := range []string{"auth-cache-duration", "auth-cache-key"} {
		group[name] = ignored("responses are not cached")
	}
	for _, name := range []string{"auth-keepalive", "auth-keepalive-requests", "auth-keepalive-share-vars", "auth-keepalive-timeout"} {
		group[name] = ignored("connections to the service are reused, like those to backends")
	}
	return group
}
