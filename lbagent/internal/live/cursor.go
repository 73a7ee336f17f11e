// SPDX-License-Identifier: Apache-2.0

package live

import (
	"strconv"
	"strings"
)

// cursorOf names a place in a row of answers. Another row has another epoch.
func cursorOf(epoch string, number int) string { return epoch + "-" + strconv.Itoa(number) }

// numberIn is the place of a cursor, where it is of the epoch.
func numberIn(cursor, epoch string) (number int, known bool) {
	of, place, found := strings.Cut(cursor, "-")
	if !found || of != epoch {
		return 0, false
	}
	number, err := strconv.Atoi(place)
	return number, err == nil && number >= 0
}
