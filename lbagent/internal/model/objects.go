// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// oldestFirst returns the objects, without nil ones, by creation time, then
// namespace and name: where two objects ask for the same, the first has it.
func oldestFirst[T interface {
	comparable
	metav1.Object
}](objects []T) []T {
	var none T
	sorted := slices.DeleteFunc(slices.Clone(objects), func(object T) bool { return object == none })
	slices.SortStableFunc(sorted, func(a, b T) int { return compareAge(a, b) })
	return sorted
}

func compareAge(a, b metav1.Object) int {
	return cmp.Or(
		a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time),
		cmp.Compare(a.GetNamespace(), b.GetNamespace()),
		cmp.Compare(a.GetName(), b.GetName()),
	)
}

var errNotUnicast = errors.New("is not a usable unicast address")

// parseAddress returns an address that packets can be sent to from elsewhere,
// never IPv4-mapped and never with a zone.
func parseAddress(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
	}
	address = address.Unmap()
	if address.Zone() != "" || !address.IsGlobalUnicast() {
		return netip.Addr{}, fmt.Errorf("%q %w", text, errNotUnicast)
	}
	return address, nil
}

// selects tells whether a selector matches the labels; an absent one matches
// everything.
func selects(selector *metav1.LabelSelector, set labels.Set) (bool, error) {
	if selector == nil {
		return true, nil
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, err
	}
	return parsed.Matches(set), nil
}
