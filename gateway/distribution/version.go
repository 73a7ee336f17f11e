// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// VersionKey is where a proxy says, in the metadata of its stream, which version it has.
const VersionKey = "millrace-version"

// NewVersion names a configuration: "ORDER-DIGEST". The digest is of the content. The order is the
// highest resourceVersion that a controller had seen by then: all controllers agree on both, so
// that they know which of two versions is older.
func NewVersion(order uint64, digest []byte) string {
	return strconv.FormatUint(order, 10) + "-" + hex.EncodeToString(digest)
}

// Order is that of a version; 0, which is before all others, where it has none. Controllers of
// v0.1 counted.
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
