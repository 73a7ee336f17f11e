// SPDX-License-Identifier: Apache-2.0

package convert

import (
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// Reason returns the condition reason of the API.
func Reason(reason ipam.Reason) string {
	switch reason {
	case ipam.PoolExhausted:
		return millracev1beta1.ReasonPoolExhausted
	case ipam.AddressInUse, ipam.AddressFull:
		return millracev1beta1.ReasonAddressInUse
	case ipam.AddressNotInPool:
		return millracev1beta1.ReasonAddressNotInPool
	case ipam.PortConflict:
		return millracev1beta1.ReasonPortConflict
	case ipam.QuotaExceeded:
		return millracev1beta1.ReasonQuotaExceeded
	case ipam.NoAddressToAdopt:
		return millracev1beta1.ReasonNoAddressToAdopt
	case ipam.NotRequested:
		return millracev1beta1.ReasonInvalid
	}
	return millracev1beta1.ReasonNoMatchingPool
}
