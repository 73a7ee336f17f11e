// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Framing describes the header fields that delimit a request's body.
type Framing int

// Values of Framing.
const (
	// FramingUnknown is the framing of a header that ParseRequest cannot parse completely.
	FramingUnknown Framing = iota
	// FramingUnique is the framing of a request with at most one of the two fields.
	FramingUnique
	// FramingConflict is the framing of a request with both Content-Length and Transfer-Encoding, or with
	// Transfer-Encoding in HTTP/1.0 (RFC 9112, section 6.1).
	FramingConflict
)

// ParseRequest parses a request header, including the empty line, into r. isUsual is false if r is not valid, because
// the header is invalid or has a feature that ParseRequest does not implement. All accepted requests are identical to
// those of net/http.
func ParseRequest(header string, r *http.Request) (isUsual bool, framing Framing) {
	line, fields, _ := strings.Cut(header, "\r\n")
	isUsual = parseRequestLine(line, r)
	var count fieldCounts
	if !count.parseFields(fields, r) {
		return false, FramingUnknown
	}
	framing = FramingUnique
	if count.codings > 0 && (count.lengths > 0 || !strings.HasSuffix(line, " HTTP/1.1")) {
		framing = FramingConflict
	}
	return isUsual && count.areUsual() && r.Host != "" && httpguts.ValidHostHeader(r.Host) && setConnection(r), framing
}

// fieldCounts are the numbers of fields that need special treatment. others have a feature that is not implemented.
type fieldCounts struct{ hosts, lengths, codings, others int }

func (f *fieldCounts) areUsual() bool {
	return f.hosts == 1 && f.lengths <= 1 && f.codings == 0 && f.others == 0
}

// parseFields parses the field lines of a request (section 5), which is stricter than for responses.
func (f *fieldCounts) parseFields(text string, r *http.Request) bool {
	count := strings.Count(text, "\r\n")
	r.Header = make(http.Header, count)
	values := make([]string, 0, count)
	for {
		line, rest, found := strings.Cut(text, "\r\n")
		if text = rest; !found || line == "" {
			return true
		}
		name, value, found := strings.Cut(line, ":")
		value = trim(value)
		if !found || !isToken(name) || !isValue(value) {
			return false
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		f.add(name)
		if name == "Host" {
			r.Host = value
			continue
		}
		if list := r.Header[name]; list != nil {
			r.Header[name] = append(list, value)
			continue
		}
		values = append(values, value)
		r.Header[name] = values[len(values)-1 : len(values) : len(values)]
	}
}

func (f *fieldCounts) add(name string) {
	switch name {
	case "Host":
		f.hosts++
	case "Content-Length":
		f.lengths++
	case "Transfer-Encoding":
		f.codings++
	case "Expect", "Trailer", "Upgrade":
		f.others++
	}
}

// parseRequestLine parses a request line with a target in origin form (RFC 9112, section 3).
func parseRequestLine(line string, r *http.Request) bool {
	method, rest, _ := strings.Cut(line, " ")
	target, version, _ := strings.Cut(rest, " ")
	if !isUsualMethod(method) || version != "HTTP/1.1" || !strings.HasPrefix(target, "/") || !isTarget(target) {
		return false
	}
	parsed, err := url.ParseRequestURI(target)
	r.Method, r.RequestURI, r.URL = method, target, parsed
	r.Proto, r.ProtoMajor, r.ProtoMinor = version, 1, 1
	return err == nil
}

func isUsualMethod(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return true
	}
	return false
}

// setConnection sets the fields that net/http derives from the header.
func setConnection(r *http.Request) bool {
	length, err := contentLength(r.Header["Content-Length"])
	r.ContentLength = max(length, 0)
	r.Close = httpguts.HeaderValuesContainsToken(r.Header["Connection"], "close")
	if pragma := r.Header["Pragma"]; len(pragma) > 0 && pragma[0] == "no-cache" && r.Header["Cache-Control"] == nil {
		r.Header["Cache-Control"] = []string{"no-cache"}
	}
	return err == nil
}
