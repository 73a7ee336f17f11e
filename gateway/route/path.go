// SPDX-License-Identifier: Apache-2.0

package route

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// validPath reports what is wrong with the path of a rule. A path that no request can have
// would be a rule that silently matches nothing.
func validPath(path string) error {
	if !strings.HasPrefix(path, "/") {
		return fmt.Errorf("%q does not begin with /", path)
	}
	if len(path) > maxPath {
		return fmt.Errorf("a path has at most %d characters, this one has %d", maxPath, len(path))
	}
	if !utf8.ValidString(path) {
		// Nor could it be sent to proxies: they would get nothing more of anybody.
		return fmt.Errorf("%q is no UTF-8", path)
	}
	for i := range len(path) {
		if path[i] <= ' ' || path[i] == 0x7f {
			return fmt.Errorf("%q has a space or a control character", path)
		}
	}
	if strings.ContainsAny(path, "?#") {
		return errors.New("a path has no ? and no #")
	}
	return nil
}

// maxPath is Gateway API's limit, which Ingress does not have.
const maxPath = 1024

// trimPrefix cuts the slash at the end of a prefix: /a/ and /a match the same.
func trimPrefix(path string) string {
	if trimmed := strings.TrimRight(path, "/"); trimmed != "" {
		return trimmed
	}
	return "/"
}
