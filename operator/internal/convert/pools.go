// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// Pools keeps the order of pools.
func Pools(pools []desired.Pool) []ipam.Pool {
	converted := make([]ipam.Pool, 0, len(pools))
	for i := range pools {
		pool := &pools[i]
		converted = append(converted, ipam.Pool{
			Name:        pool.Name,
			Priority:    pool.Priority,
			Selective:   pool.Selective(),
			AutoAssign:  pool.AutoAssign,
			Addresses:   ipam.NewAddresses(pool.Addresses),
			SharedByAll: pool.SharedByAll,
		})
	}
	return converted
}
