// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
)

// oldestFirst returns the non-nil objects by creation time, namespace and name. Of conflicting objects, the
// first applies.
func oldestFirst[T interface {
	comparable
	metav1.Object
}](objects []T) []T {
	var none T
	sorted := slices.DeleteFunc(slices.Clone(objects), func(object T) bool { return object == none })
	slices.SortStableFunc(sorted, func(a, b T) int { return desired.CompareAge(a, b) })
	return sorted
}
