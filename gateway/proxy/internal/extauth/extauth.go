// SPDX-License-Identifier: Apache-2.0

// Package extauth builds authorization requests and interprets responses, without I/O.
package extauth

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/millrace-lb/millrace/gateway/resource"
)

const (
	defaultTimeout = 5 * time.Second
	maxTimeout     = time.Minute
)

// Filter is an immutable external authorization filter that may be shared.
type Filter struct {
	// Backend is the name of the authorization service's backend.
	Backend string
	// Timeout applies to the whole exchange.
	Timeout time.Duration
	// SetCookies forwards the cookies of an allowing response to the client.
	SetCookies bool

	// target is the URL to request; asRequested appends the path of the client's request.
	target                  *url.URL
	asRequested             bool
	method                  string
	host                    string
	request, response       []string
	allRequest, allResponse bool
	onlyOK                  bool
	// signIn is nil if a 401 response is forwarded to the client.
	signIn, redirect *template
}

// New rejects invalid fields, because ignoring one might admit requests.
func New(from *resource.ExternalAuthorization) (*Filter, error) {
	f := &Filter{
		Backend: from.GetBackend(), Timeout: time.Duration(from.GetTimeout()) * time.Millisecond, SetCookies: from.GetSetCookies(),
		asRequested: from.GetAsRequested(), method: from.GetMethod(), host: from.GetHost(), onlyOK: from.GetOnlyOk(),
	}
	if f.Timeout == 0 {
		f.Timeout = defaultTimeout
	}
	if f.method == "" {
		f.method = http.MethodGet
	}
	err := f.check(from)
	if err != nil {
		return nil, err
	}
	if f.target, err = f.readPath(from.GetPath()); err != nil {
		return nil, err
	}
	if f.request, f.allRequest, err = names(from.GetRequestHeaders()); err != nil {
		return nil, err
	}
	if f.response, f.allResponse, err = names(from.GetResponseHeaders()); err != nil {
		return nil, err
	}
	if from.GetSignIn() != "" {
		if f.signIn, err = newTemplate(from.GetSignIn()); err != nil {
			return nil, fmt.Errorf("sign-in: %w", err)
		}
	}
	redirect := from.GetRedirect()
	if redirect == "" {
		redirect = "$request_uri"
	}
	if f.redirect, err = newTemplate(redirect); err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	return f, nil
}

func (f *Filter) check(from *resource.ExternalAuthorization) error {
	switch {
	case f.Backend == "":
		return errors.New("the backend is empty")
	case from.GetTimeout() > uint64(maxTimeout.Milliseconds()):
		return fmt.Errorf("a timeout of %d ms is longer than %v", from.GetTimeout(), maxTimeout)
	case !httpguts.ValidHeaderFieldName(f.method) || f.method == http.MethodConnect:
		return fmt.Errorf("%q is not a valid method", f.method)
	case !httpguts.ValidHostHeader(f.host):
		return fmt.Errorf("%q is not a host", f.host)
	}
	return nil
}

func (f *Filter) readPath(text string) (*url.URL, error) {
	if text == "" && f.asRequested {
		return &url.URL{}, nil
	}
	target, err := url.ParseRequestURI(text)
	if err != nil || !strings.HasPrefix(text, "/") || strings.Contains(text, "#") {
		return nil, fmt.Errorf("%q is not a path", text)
	}
	for element := range strings.SplitSeq(target.Path, "/") {
		if element == "." || element == ".." {
			return nil, fmt.Errorf("%q has dot segments", text)
		}
	}
	if f.asRequested && (target.RawQuery != "" || target.ForceQuery) {
		return nil, fmt.Errorf("%q has a query, which conflicts with the request's", text)
	}
	return target, nil
}

// names parses a list of header names, or "*" for all.
func names(list []string) (canonical []string, all bool, err error) {
	if len(list) == 1 && list[0] == "*" {
		return nil, true, nil
	}
	for _, name := range list {
		key := textproto.CanonicalMIMEHeaderKey(name)
		if !httpguts.ValidHeaderFieldName(name) || isHopByHop(key) {
			return nil, false, fmt.Errorf("%q is not a header that can be forwarded", name)
		}
		canonical = append(canonical, key)
	}
	return canonical, false, nil
}

func isHopByHop(key string) bool {
	switch key {
	case "Connection", "Content-Length", "Expect", "Host", "Http2-Settings", "Keep-Alive", "Proxy-Authenticate",
		"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// isBodyHeader reports headers of bodies: the authorization request has none, and its response is not the
// client's.
func isBodyHeader(key string) bool {
	return strings.HasPrefix(key, "Content-") || strings.HasPrefix(key, "If-") || key == "Range" || key == "Accept-Encoding"
}

// Request is the client request to authorize.
type Request struct {
	// In is the client's request. Only its header is used.
	In *http.Request
	// Path is the matched path, RawPath its original encoding, which may be empty.
	Path, RawPath string
	// Scheme and Host are those used by the client, according to trusted proxies.
	Scheme, Host string
	// Client is the client's address, Chain the value of X-Forwarded-For.
	Client, Chain string
}

// URI returns the path and query before rewrites.
func (r *Request) URI() string {
	return (&url.URL{Path: r.Path, RawPath: r.RawPath, RawQuery: r.In.URL.RawQuery}).RequestURI()
}

// NewRequest returns the authorization request, without a context.
func (f *Filter) NewRequest(of *Request) *http.Request {
	target := *f.target
	question := &http.Request{
		Method: f.method, Host: f.host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody,
		Header: f.header(of), URL: &target,
	}
	if f.asRequested {
		question.Method, question.Host = of.In.Method, of.In.Host
		raw := &url.URL{Path: of.Path, RawPath: of.RawPath}
		target.Path, target.RawPath = f.target.Path+of.Path, f.target.EscapedPath()+raw.EscapedPath()
		target.RawQuery = of.In.URL.RawQuery
	}
	if question.Host == "" {
		question.Host = of.In.Host
	}
	return question
}

// endToEnd omits framing, hop-by-hop and body headers.
func endToEnd(in http.Header) http.Header {
	out, hop := make(http.Header, len(in)), map[string]bool{}
	for _, value := range in["Connection"] {
		for name := range strings.SplitSeq(value, ",") {
			hop[textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	for name, values := range in {
		if !hop[name] && !isHopByHop(name) && !isBodyHeader(name) {
			out[name] = values
		}
	}
	return out
}

func (f *Filter) header(of *Request) http.Header {
	in, out := of.In.Header, http.Header{}
	if f.allRequest {
		out = endToEnd(in)
	}
	for _, name := range f.request {
		if values := in[name]; values != nil {
			out[name] = values
		}
	}
	if values := in["Authorization"]; values != nil {
		out["Authorization"] = values
	}
	// The client must not set headers by which the service decides.
	for name := range out {
		if strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "X-Original-") || name == "Forwarded" {
			delete(out, name)
		}
	}
	uri := of.URI()
	for name, value := range map[string]string{
		"X-Original-Url": of.Scheme + "://" + of.Host + uri, "X-Original-Uri": uri, "X-Original-Method": of.In.Method,
		"X-Forwarded-For": of.Chain, "X-Forwarded-Host": of.Host, "X-Forwarded-Proto": of.Scheme,
		"X-Forwarded-Method": of.In.Method, "X-Forwarded-Uri": uri,
		"X-Real-Ip": of.Client, "X-Auth-Request-Redirect": f.redirect.expand(of),
	} {
		out[name] = []string{value}
	}
	if out["User-Agent"] == nil {
		// A nil value prevents net/http from adding its default.
		out["User-Agent"] = nil
	}
	return out
}
