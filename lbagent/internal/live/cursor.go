// SPDX-License-Identifier: Apache-2.0

package live

import (
	"strconv"
	"strings"
)

// formatCursor encodes a position in a sequence of responses. Each sequence has its own epoch.
func formatCursor(epoch string, number int) string { return epoch + "-" + strconv.Itoa(number) }

func parseCursor(cursor, epoch string) (number int, known bool) {
	of, place, found := strings.Cut(cursor, "-")
	if !found || of != epoch {
		return 0, false
	}
	number, err := strconv.Atoi(place)
	return number, err == nil && number >= 0
}
