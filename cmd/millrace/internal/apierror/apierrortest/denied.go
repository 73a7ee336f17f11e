// SPDX-License-Identifier: Apache-2.0

// Package apierrortest provides the answers of an API server for tests.
package apierrortest

import (
	"fmt"
	"strings"
)

// Denied returns RBAC's rejection of listing a path such as /apis/millrace.io/v1beta1/vips.
func Denied(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	group, rest := "", parts[2:]
	if parts[0] == "apis" {
		group, rest = parts[1], parts[3:]
	}
	if len(rest) == 0 {
		return fmt.Sprintf("User %q cannot get path %q", "jane", path)
	}
	where := "at the cluster scope"
	if len(rest) > 2 {
		where, rest = fmt.Sprintf("in the namespace %q", rest[1]), rest[2:]
	}
	return fmt.Sprintf("%s is forbidden: User %q cannot list resource %q in API group %q %s", rest[0], "jane", rest[0], group, where)
}
