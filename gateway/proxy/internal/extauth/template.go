// SPDX-License-Identifier: Apache-2.0

package extauth

import (
	"fmt"
	"net/url"
	"strings"
)

type template struct {
	// texts are the literals around the variables: one more than variables.
	texts     []string
	variables []variable
}

type variable int

const (
	varScheme variable = iota
	varHost
	varURI
	varEscapedURI
	varMethod
	varPath
	varQuery
	varClient
)

// variables are tried in order.
var variables = []struct {
	name string
	word variable
}{
	{"$scheme", varScheme}, {"$host", varHost}, {"$request_uri", varURI}, {"$escaped_request_uri", varEscapedURI},
	{"$request_method", varMethod}, {"$uri", varPath}, {"$args", varQuery}, {"$remote_addr", varClient},
}

const maxTemplate = 4096

// newTemplate parses a template. It rejects control characters, which are invalid in header values.
func newTemplate(text string) (*template, error) {
	if len(text) > maxTemplate {
		return nil, fmt.Errorf("a URL has at most %d bytes, this one has %d", maxTemplate, len(text))
	}
	for _, c := range text {
		if c <= ' ' || c == 0x7f || c == '\uFFFD' {
			return nil, fmt.Errorf("%q has a space or a control character", text)
		}
	}
	t := &template{}
	for {
		before, _, found := strings.Cut(text, "$")
		t.texts = append(t.texts, before)
		if !found {
			return t, nil
		}
		text = text[len(before):]
		known := false
		for _, each := range variables {
			rest, is := strings.CutPrefix(text, each.name)
			if is && (rest == "" || !isWord(rest[0])) {
				t.variables, text, known = append(t.variables, each.word), rest, true
				break
			}
		}
		if !known {
			return nil, fmt.Errorf("%q has a $ of an unknown variable", text)
		}
	}
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

func (t *template) expand(of *Request) string {
	var b strings.Builder
	for i, text := range t.texts {
		b.WriteString(text)
		if i == len(t.variables) {
			break
		}
		switch t.variables[i] {
		case varScheme:
			b.WriteString(of.Scheme)
		case varHost:
			b.WriteString(of.Host)
		case varURI:
			b.WriteString(of.URI())
		case varEscapedURI:
			b.WriteString(url.QueryEscape(of.URI()))
		case varMethod:
			b.WriteString(url.QueryEscape(of.In.Method))
		case varPath:
			b.WriteString((&url.URL{Path: of.Path, RawPath: of.RawPath}).EscapedPath())
		case varQuery:
			b.WriteString(of.In.URL.RawQuery)
		case varClient:
			b.WriteString(of.Client)
		}
	}
	return b.String()
}
