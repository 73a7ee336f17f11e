// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
)

// CanonicalPath returns the PathMatch value (EXACT or PREFIX) of an API object's path; "%" without two
// hexadecimal digits is literal.
func CanonicalPath(path string) string {
	decoded, err := url.PathUnescape(path)
	if err != nil {
		decoded = path
	}
	return encode(match.Path(decoded))
}

// encode percent-encodes "%" and invalid UTF-8, which a PathMatch value cannot contain.
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
