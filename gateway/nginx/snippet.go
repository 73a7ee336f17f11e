// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Header is a header field.
type Header struct{ Name, Value string }

// Headers are changes of request and response headers.
type Headers struct {
	SetRequest, SetResponse, AddResponse []Header
	RemoveRequest, RemoveResponse        []string
}

// configurationSnippet parses configuration-snippet. It refuses the Ingress unless all directives set headers
// to fixed values.
func (r *reader) configurationSnippet(text string) error {
	if IsOff(text) {
		return nil
	}
	directives, err := parseDirectives(text)
	if err != nil {
		return err
	}
	headers := &Headers{}
	for _, words := range directives {
		if err := headers.add(words); err != nil {
			return err
		}
	}
	r.settings.Headers = headers
	return nil
}

func (h *Headers) add(words []string) error {
	name, arguments := words[0], words[1:]
	hasNoOptions := len(arguments) > 0 && !strings.HasPrefix(arguments[0], "-")
	switch {
	case name == "more_set_headers" && hasNoOptions, name == "more_clear_headers" && hasNoOptions:
		for _, argument := range arguments {
			field, value, _ := strings.Cut(argument, ":")
			if name == "more_clear_headers" {
				field, value = argument, ""
			}
			if err := addChange(field, strings.TrimSpace(value), &h.SetResponse, &h.RemoveResponse); err != nil {
				return err
			}
		}
		return nil
	case name == "add_header" && (len(arguments) == 2 || len(arguments) == 3 && arguments[2] == "always"):
		return addChange(arguments[0], arguments[1], &h.AddResponse, nil)
	case name == "proxy_set_header" && len(arguments) == 2:
		return addChange(arguments[0], arguments[1], &h.SetRequest, &h.RemoveRequest)
	}
	return fmt.Errorf("%s is not supported: only more_set_headers, more_clear_headers, add_header and proxy_set_header with fixed values are",
		quoted(strings.Join(words, " ")))
}

// addChange adds a header change. An empty value removes the header.
func addChange(name, value string, set *[]Header, remove *[]string) error {
	switch {
	case !isToken(name) || messageHeaders[strings.ToLower(name)] && !strings.EqualFold(name, "host"):
		return fmt.Errorf("%s is not a header that can be changed", quoted(name))
	case strings.Contains(value, "$"):
		return fmt.Errorf("%s of the header %s has a variable: only fixed values are supported", quoted(value), name)
	case !isPrintable(value):
		return fmt.Errorf("%s is not the value of a header", quoted(value))
	case value == "" && remove != nil:
		*remove = append(*remove, name)
	case value != "":
		*set = append(*set, Header{Name: name, Value: value})
	}
	return nil
}

// sentHeaders maps the headers of each authorization request to the nginx variables with the same value.
var sentHeaders = map[string]string{
	"x-forwarded-method": "$request_method", "x-original-method": "$request_method",
	"x-forwarded-uri": "$request_uri", "x-original-uri": "$request_uri",
	"x-forwarded-host": "$host $http_host $best_http_host", "x-forwarded-proto": "$scheme $pass_access_scheme",
	"x-forwarded-for": "$remote_addr $proxy_add_x_forwarded_for", "x-real-ip": "$remote_addr",
	"x-original-url": "$scheme://$http_host$request_uri $scheme://$host$request_uri",
}

// authSnippet parses auth-snippet. It refuses the Ingress unless each directive sets a header that
// authorization requests contain anyway.
func (r *reader) authSnippet(text string) error {
	if IsOff(r.values["auth-url"]) || IsOff(text) {
		return nil
	}
	directives, err := parseDirectives(text)
	for _, words := range directives {
		if len(words) != 3 || words[0] != "proxy_set_header" ||
			!slices.Contains(strings.Fields(sentHeaders[strings.ToLower(words[1])]), strings.NewReplacer("{", "", "}", "").Replace(words[2])) {
			err = errors.New("it has an unsupported directive")
		}
	}
	if err != nil {
		r.refuse("it is not supported: %s", annotations[r.name].note)
	}
	return nil
}

// parseDirectives splits a text into simple nginx directives, each a list of words. It returns an error for
// blocks.
func parseDirectives(text string) (all [][]string, err error) {
	var words []string
	for {
		if text = strings.TrimLeft(text, " \t\r\n"); text == "" {
			break
		}
		var word string
		switch text[0] {
		case '#':
			_, text, _ = strings.Cut(text, "\n")
			continue
		case ';':
			if len(words) > 0 {
				all = append(all, words)
			}
			words, text = nil, text[1:]
			continue
		case '{', '}':
			return nil, errors.New("blocks are not supported")
		case '"', '\'':
			if word, text, err = parseQuoted(text); err != nil {
				return nil, err
			}
		default:
			end := strings.IndexAny(text, " \t\r\n;")
			if end < 0 {
				end = len(text)
			}
			if word, text = text[:end], text[end:]; strings.ContainsAny(word, `"'\`) {
				return nil, fmt.Errorf("%s is not supported", quoted(word))
			}
		}
		words = append(words, word)
	}
	if len(words) > 0 {
		return nil, fmt.Errorf("no semicolon after %s", quoted(strings.Join(words, " ")))
	}
	return all, nil
}

// parseQuoted parses a quoted word. A backslash escapes a quote or a backslash.
func parseQuoted(text string) (word, rest string, err error) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text) && strings.IndexByte(`"'\`, text[i+1]) >= 0:
			i++
			b.WriteByte(text[i])
		case c == text[0]:
			if rest = text[i+1:]; rest != "" && strings.IndexByte(" \t\r\n;", rest[0]) < 0 {
				return "", "", errors.New("text follows a closing quotation mark")
			}
			return b.String(), rest, nil
		default:
			b.WriteByte(c)
		}
	}
	return "", "", errors.New("a quotation mark is not closed")
}
