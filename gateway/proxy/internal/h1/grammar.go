// SPDX-License-Identifier: Apache-2.0

package h1

import "strings"

// Classes of bytes in fields (RFC 9110, sections 5.5 and 5.6.2).
const (
	inToken = 1 << iota
	inValue
)

var classes = func() (table [256]byte) {
	for c := range 256 {
		if c >= ' ' && c != 0x7f || c == '\t' {
			table[c] |= inValue
		}
		if isDigit(byte(c)) || 'a' <= c|0x20 && c|0x20 <= 'z' || c < 0x80 && strings.IndexByte("!#$%&'*+-.^_`|~", byte(c)) >= 0 {
			table[c] |= inToken
		}
	}
	return table
}()

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isToken(text string) bool { return text != "" && consistsOf(text, inToken) }

// isValue reports whether text contains no control byte but tabs.
func isValue(text string) bool { return consistsOf(text, inValue) }

func consistsOf(text string, class byte) bool {
	for i := range len(text) {
		if classes[text[i]]&class == 0 {
			return false
		}
	}
	return true
}

// trim removes optional whitespace, OWS.
func trim(text string) string { return strings.Trim(text, " \t") }
