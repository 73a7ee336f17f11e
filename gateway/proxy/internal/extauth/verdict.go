// SPDX-License-Identifier: Apache-2.0

package extauth

import "net/http"

// Verdict is the interpretation of a response.
type Verdict int

const (
	// Failed rejects the request because of an unusable response.
	Failed Verdict = iota
	// Allowed admits the request.
	Allowed
	// Denied forwards the response to the client.
	Denied
	// SignIn redirects the client to the sign-in URL.
	SignIn
)

// Evaluate interprets a status code.
func (f *Filter) Evaluate(status int) Verdict {
	switch {
	case status == http.StatusOK, !f.onlyOK && status >= 200 && status <= 299:
		return Allowed
	case status == http.StatusUnauthorized && f.signIn != nil:
		return SignIn
	case f.onlyOK && status >= 200, status == http.StatusUnauthorized, status == http.StatusForbidden:
		return Denied
	}
	return Failed
}

// Location returns the sign-in URL.
func (f *Filter) Location(of *Request) string { return f.signIn.expand(of) }

// Grant contains headers of an allowing response.
type Grant struct {
	removed []string
	set     http.Header
	// Cookies are added to the response to the client.
	Cookies []string
}

// Grant extracts the headers of an allowing response.
func (f *Filter) Grant(answer http.Header) *Grant {
	g := &Grant{removed: f.response, set: http.Header{}}
	for _, name := range f.response {
		if values := answer[name]; len(values) > 0 {
			g.set[name] = values
		}
	}
	if f.allResponse {
		for name, values := range answer {
			if !isHopByHop(name) && !isBodyHeader(name) && name != "Date" && name != "Server" && name != "Set-Cookie" {
				g.set[name] = values
			}
		}
	}
	if f.SetCookies {
		g.Cookies = answer["Set-Cookie"]
	}
	return g
}

// Apply modifies the header of the backend request. The grant may be nil.
func (g *Grant) Apply(header http.Header) {
	if g == nil {
		return
	}
	for _, name := range g.removed {
		delete(header, name)
	}
	for name, values := range g.set {
		// Copy the slice, because later filters may append to it.
		header[name] = append([]string(nil), values...)
	}
}

// Bytes returns the approximate memory used.
func (g *Grant) Bytes() (bytes int64) {
	for name, values := range g.set {
		for _, value := range values {
			bytes += int64(len(name) + len(value))
		}
	}
	for _, value := range g.Cookies {
		bytes += int64(len(value))
	}
	return bytes
}

// CopyResponseHeaders copies those headers of a response that are intended for the client.
func CopyResponseHeaders(answer, client http.Header) {
	for _, name := range []string{
		"Www-Authenticate", "Set-Cookie", "Location", "Content-Type", "Content-Language", "Cache-Control", "Retry-After",
	} {
		if values := answer[name]; len(values) > 0 {
			client[name] = values
		}
	}
}
