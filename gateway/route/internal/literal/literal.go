// SPDX-License-Identifier: Apache-2.0

// Package literal extracts literal prefixes from regular expressions, including expressions that RE2 does
// not support. It is pure.
package literal

import (
	"strings"
	"unicode/utf8"
)

// maxLength limits the length of a prefix in bytes, and thereby the size of an expression for it.
const maxLength = 128

// Prefix returns the literal prefix of all texts that match a regular expression in Perl syntax, or "".
func Prefix(expression string) string {
	expression = strings.TrimPrefix(expression, "^")
	if hasAlternatives(expression) {
		return ""
	}
	var prefix strings.Builder
	for rest := expression; rest != "" && prefix.Len() < maxLength; {
		char, size := utf8.DecodeRuneInString(rest)
		if char == '\\' && len(rest) > 1 && isPunctuation(rest[1]) {
			char, size = rune(rest[1]), 2
		} else if strings.ContainsRune(`\.+*?()|[]{}^$`, char) || char == utf8.RuneError {
			break
		}
		if rest = rest[size:]; rest != "" && strings.ContainsRune("*?{", rune(rest[0])) {
			break
		}
		prefix.WriteRune(char)
	}
	return prefix.String()
}

func isPunctuation(c byte) bool {
	return c < utf8.RuneSelf && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
}

// hasAlternatives reports whether an expression has a "|" outside of parentheses, or parentheses that cannot
// be matched.
func hasAlternatives(expression string) bool {
	depth, isClass := 0, false
	for i := 0; i < len(expression); i++ {
		switch c := expression[i]; {
		case c == '\\':
			if i++; i < len(expression) && expression[i] == 'Q' {
				return true
			}
		case isClass && c == '[':
			// The end of a nested class cannot be determined by a simple scan.
			return true
		case isClass:
			isClass = c != ']'
		case c == '[':
			isClass = true
			// "]" at the start of a class is a character of the class.
			i += len(expression[i+1:]) - len(strings.TrimPrefix(strings.TrimPrefix(expression[i+1:], "^"), "]"))
		case c == '(':
			depth++
		case c == ')':
			if depth--; depth < 0 {
				return true
			}
		case c == '|' && depth == 0:
			return true
		}
	}
	return false
}
