// SPDX-License-Identifier: Apache-2.0

package extauth

import "net/http"

// Verdict is what an answer means.
type Verdict int

const (
	// Fails is an answer that says nothing: the request does not pass.
	Fails Verdict = iota
	// Passes lets the request go on.
	Passes
	// Answers is an answer for the client.
	Answers
	// SignsIn leads the client to where it signs in.
	SignsIn
)

// Judge gives the verdict of a status.
func (f *Filter) Judge(status int) Verdict {
	switch {
	case status == http.StatusOK, !f.onlyOK && status >= 200 && status <= 299:
		return Passes
	case status == http.StatusUnauthorized && f.signIn != nil:
		return SignsIn
	case f.onlyOK && status >= 200, status == http.StatusUnauthorized, status == http.StatusForbidden:
		return Answers
	}
	return Fails
}

// Location is where a client signs in.
func (f *Filter) Location(of *Request) string { return f.signIn.fill(of) }

// Grant is what a request that passes brings along.
type Grant struct {
	// removed are the names under which the client may have sent something.
	removed []string
	set     http.Header
	// Cookies are for the client.
	Cookies []string
}

// Grant makes what an answer gives to its request.
func (f *Filter) Grant(answer http.Header) *Grant {
	g := &Grant{removed: f.response, set: http.Header{}}
	for _, name := range f.response {
		if values := answer[name]; len(values) > 0 {
			g.set[name] = values
		}
	}
	if f.allResponse {
		for name, values := range answer {
			if !ofMessage(name) && !aboutBody(name) && name != "Date" && name != "Server" && name != "Set-Cookie" {
				g.set[name] = values
			}
		}
	}
	if f.SetCookies {
		g.Cookies = answer["Set-Cookie"]
	}
	return g
}

// Apply changes the header of the request for the backend. A grant may be nil.
func (g *Grant) Apply(header http.Header) {
	if g == nil {
		return
	}
	for _, name := range g.removed {
		delete(header, name)
	}
	for name, values := range g.set {
		// A copy: what follows may add to it.
		header[name] = append([]string(nil), values...)
	}
}

// Bytes is about how much is kept.
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

// Relay copies the headers of an answer that the client gets. Others are not for clients.
func Relay(answer, client http.Header) {
	for _, name := range []string{
		"Www-Authenticate", "Set-Cookie", "Location", "Content-Type", "Content-Language", "Cache-Control", "Retry-After",
	} {
		if values := answer[name]; len(values) > 0 {
			client[name] = values
		}
	}
}
