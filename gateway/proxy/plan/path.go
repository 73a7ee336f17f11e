// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
)

// CanonicalPath returns the value of a PathMatch of the kinds EXACT and PREFIX for a path as an object
// has it. The path of an object may be percent-encoded; "%" without two hexadecimal digits behind it
// stands for itself.
func CanonicalPath(path string) string {
	decoded, err := url.PathUnescape(path)
	if err != nil {
		decoded = path
	}
	return encode(match.Path(decoded))
}

// encode encodes what a value of a PathMatch cannot have: "%", and bytes that are not UTF-8.
func encode(path string) string {
	if utf8.ValidString(path) && !strings.Contains(path, "%") {
		return path
	}
	var encoded strings.Builder
	for at := 0; at < len(path); {
		char, size := utf8.DecodeRuneInString(path[at:])
		if char == '%' || char == utf8.RuneError && size == 1 {
			fmt.Fprintf(&encoded, "%%%02X", path[at])
		} else {
			encoded.WriteString(path[at : at+size])
		}
		at += size
	}
	return encoded.String()
}
