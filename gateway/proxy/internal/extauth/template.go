// SPDX-License-Identifier: Apache-2.0

package extauth

import (
	"fmt"
	"net/url"
	"strings"
)

// template is a URL with variables of a request.
type template struct {
	// texts are the literals around the variables: one more than words.
	texts []string
	words []word
}

// word is a variable.
type word int

const (
	wordScheme word = iota
	wordHost
	wordURI
	wordEscapedURI
	wordMethod
	wordPath
	wordQuery
	wordClient
)

// wordNames are tried in order.
var wordNames = []struct {
	name string
	word word
}{
	{"$scheme", wordScheme}, {"$host", wordHost}, {"$request_uri", wordURI}, {"$escaped_request_uri", wordEscapedURI},
	{"$request_method", wordMethod}, {"$uri", wordPath}, {"$args", wordQuery}, {"$remote_addr", wordClient},
}

// maxTemplate is the maximum length of a template in bytes.
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
		for _, each := range wordNames {
			rest, is := strings.CutPrefix(text, each.name)
			if is && (rest == "" || !isWord(rest[0])) {
				t.words, text, known = append(t.words, each.word), rest, true
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

// fill expands the template for a request.
func (t *template) fill(of *Request) string {
	var b strings.Builder
	for i, text := range t.texts {
		b.WriteString(text)
		if i == len(t.words) {
			break
		}
		switch t.words[i] {
		case wordScheme:
			b.WriteString(of.Scheme)
		case wordHost:
			b.WriteString(of.Host)
		case wordURI:
			b.WriteString(of.URI())
		case wordEscapedURI:
			b.WriteString(url.QueryEscape(of.URI()))
		case wordMethod:
			b.WriteString(url.QueryEscape(of.In.Method))
		case wordPath:
			b.WriteString((&url.URL{Path: of.Path, RawPath: of.RawPath}).EscapedPath())
		case wordQuery:
			b.WriteString(of.In.URL.RawQuery)
		case wordClient:
			b.WriteString(of.Client)
		}
	}
	return b.String()
}
