// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"testing"

	"pgregory.net/rapid"
)

// TestTargetPorts checks that targets are distinct, at least 1024 and never reserved.
func TestTargetPorts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.OneOf(rapid.Int32Range(1, 65535), rapid.Int32Range(8000, 9100), rapid.Int32Range(1, 1100), rapid.Int32Range(20000, 21100))
		ports := map[int32]bool{80: true, 443: true}
		for _, port := range rapid.SliceOf(some).Draw(t, "ports") {
			ports[port] = true
		}
		reserved := rapid.SliceOf(rapid.Int32Range(15000, 15010)).Draw(t, "reserved")
		taken := map[int32]bool{}
		for _, port := range reserved {
			taken[port] = true
		}
		for _, port := range TargetPorts(ports, reserved) {
			if taken[port.Target] || port.Target < 1024 || port.Target > 65535 {
				t.Fatalf("invalid or duplicate target of %d: %d", port.VIP, port.Target)
			}
			taken[port.Target] = true
			if port.VIP < 1024 && port.Target != port.VIP+8000 {
				t.Fatalf("target of %d moved to %d", port.VIP, port.Target)
			}
		}
	})
}
