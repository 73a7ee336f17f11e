// SPDX-License-Identifier: Apache-2.0

package distribution

import "testing"

func TestVersion(t *testing.T) {
	if got := NewVersion(1234, []byte{0xab, 1}); got != "1234-ab01" {
		t.Errorf("version %s", got)
	}
	for version, want := range map[string]uint64{
		"1234-ab01": 1234, "0-ab": 0, "": 0, "17": 0, "-ab": 0, "x-ab": 0, "18446744073709551616-ab": 0,
	} {
		if got := Order(version); got != want {
			t.Errorf("Order(%q) = %d; want %d", version, got, want)
		}
	}
}
