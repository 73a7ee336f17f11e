// SPDX-License-Identifier: Apache-2.0

package desired

import "strings"

// Nearest returns the name with the smallest edit distance to given, ignoring case, or "" if all distances
// exceed a third of its length.
func Nearest(given string, names []string) string {
	found, least := "", max(1, (len(given)+1)/3)+1
	for _, name := range names {
		if d := distance(strings.ToLower(given), strings.ToLower(name)); d < least {
			found, least = name, d
		}
	}
	return found
}

func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
