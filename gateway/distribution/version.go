// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// VersionKey is the metadata key of a stream with the proxy's current version.
const VersionKey = "millrace-version"

// NewVersion returns the version "ORDER-DIGEST": the highest resourceVersion seen, and a digest of the
// content. Both are the same on all replicas, so that their versions can be compared.
func NewVersion(order uint64, digest []byte) string {
	return strconv.FormatUint(order, 10) + "-" + hex.EncodeToString(digest)
}

// Order returns the order of a version. It returns 0, the lowest order, for other formats.
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
