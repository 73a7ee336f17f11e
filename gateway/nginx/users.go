// SPDX-License-Identifier: Apache-2.0

package nginx

import (
	"maps"
	"slices"
	"strings"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
)

// UsersKey is the key of the htpasswd file in a Secret.
const UsersKey = "auth"

// Users returns the users in a Secret in htpasswd format, and the number of lines with unsupported hashes.
func Users(data map[string][]byte, isMap bool) (text []byte, left int) {
	lines := strings.Split(string(data[UsersKey]), "\n")
	if isMap {
		lines = nil
		for _, name := range slices.Sorted(maps.Keys(data)) {
			lines = append(lines, name+":"+strings.TrimSpace(string(data[name])))
		}
	}
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, hash, found := strings.Cut(line, ":")
		if !found || name == "" || !IsHash(hash) || plan.CheckUsers([]byte(line)) != nil {
			left++
			continue
		}
		text = append(append(text, line...), '\n')
	}
	return text, left
}

// IsHash reports whether a text is a password hash that proxies support.
func IsHash(text string) bool {
	text = strings.TrimSpace(text)
	for _, prefix := range []string{"$apr1$", "{SHA}", "{SSHA}"} {
		if strings.HasPrefix(text, prefix) {
			return !strings.ContainsFunc(text, isSpace)
		}
	}
	for _, prefix := range []string{"$2a$", "$2b$", "$2y$"} {
		if cost, is := strings.CutPrefix(text, prefix); is {
			return len(text) == 60 && cost[:2] >= "04" && cost[:2] <= "12" && !strings.ContainsFunc(text, isSpace)
		}
	}
	return false
}

func isSpace(c rune) bool { return c <= ' ' || c == 0x7f || c == '\uFFFD' }
