// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// VersionKey is the key of the proxy's current version in the stream's metadata.
const VersionKey = "millrace-version"

// NewVersion formats a version, "ORDER-DIGEST". The digest is that of the content, the order is the highest
// resourceVersion that the controller had seen. Both are the same on all replicas, so that versions of
// different replicas can be compared.
func NewVersion(order uint64, digest []byte) string {
	return strconv.FormatUint(order, 10) + "-" + hex.EncodeToString(digest)
}

// Order parses the order of a version. It returns 0, the lowest order, for any other format.
func Order(version string) uint64 {
	order, _, isVersion := strings.Cut(version, "-")
	if !isVersion {
		return 0
	}
	parsed, err := strconv.ParseUint(order, 10, 64)
	if err != nil {
		return 0
	}
	return parsed
}
