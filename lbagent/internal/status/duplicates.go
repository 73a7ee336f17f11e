// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/dad"
)

// duplicates returns the first hosts, starting with hosts that VIPs wait for.
func duplicates(holders []dad.Holder) []millracev1beta1.DuplicateAddress {
	sorted := slices.Clone(holders)
	slices.SortStableFunc(sorted, func(a, b dad.Holder) int { return compareBool(!a.Withheld, !b.Withheld) })
	var out []millracev1beta1.DuplicateAddress
	for _, holder := range sorted[:min(len(sorted), maxDuplicates)] {
		out = append(out, millracev1beta1.DuplicateAddress{
			Address: holder.Address.String(), Interface: holder.Interface,
			HardwareAddress: holder.HardwareAddr.String(), Withheld: holder.Withheld,
		})
	}
	return out
}
