// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// VersionKey is the key of the proxy's current version in the stream's metadata.
const VersionKey = "millrace-version"

// NewVersion formats "ORDER-DIGEST": the highest resourceVersion seen and the content's digest. Both are equal
// on all replicas, so their versions can be compared.
func NewVersion(order uint64, digest []byte) string {
	return strconv.FormatUint(order, 10) + "-" + hex.EncodeToString(digest)
}

// Order returns a version's order, or 0, the lowest, for another format.
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
