// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

// lowPortOffset is added to ports below 1024, so that the target port of 443 is 8443.
const lowPortOffset = 8000

// firstSparePort is the first target port for ports whose usual target port is taken or reserved.
const firstSparePort = 20000

// TargetPorts maps VIP ports to ports of the proxy. A port keeps its target when other ports change, unless
// spare targets collide.
func TargetPorts(ports map[int32]bool, reserved []int32) []model.Port {
	taken := map[int32]bool{}
	for _, port := range reserved {
		taken[port] = true
	}
	sorted := slices.Sorted(maps.Keys(ports))
	targets := make(map[int32]int32, len(sorted))
	var moved []int32
	for _, port := range sorted {
		target := port
		if port < 1024 {
			target += lowPortOffset
		} else if port < lowPortOffset+1024 && port > lowPortOffset {
			moved = append(moved, port)
			continue
		}
		if taken[target] {
			moved = append(moved, port)
			continue
		}
		taken[target] = true
		targets[port] = target
	}
	for _, port := range moved {
		target := firstSparePort + port%lowPortOffset
		for taken[target] {
			target++
		}
		taken[target] = true
		targets[port] = target
	}
	found := make([]model.Port, 0, len(sorted))
	for _, port := range sorted {
		found = append(found, model.Port{
			Name: fmt.Sprintf("tcp-%d", port), VIP: port, Target: targets[port], Protocol: corev1.ProtocolTCP,
		})
	}
	return found
}
