// SPDX-License-Identifier: Apache-2.0

package controller

import "testing"

func TestDisplayed(t *testing.T) {
	for free, want := range map[int64]string{
		0: "0", 1<<31 - 1: "2147483647", 1<<32 - 6: "2^32", 1<<48 - 2: "2^48", 1<<53 - 3: "2^53",
	} {
		if got := displayed(free); got != want {
			t.Errorf("displayed(%d) = %s, want %s", free, got, want)
		}
	}
}
