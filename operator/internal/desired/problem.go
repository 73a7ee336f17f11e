// SPDX-License-Identifier: Apache-2.0

// Package desired turns objects of the API into validated configuration and a
// list of what is wrong with them. It is pure.
package desired

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Object names a cluster-scoped object of the API.
type Object struct {
	Kind, Name string
}

// Problem is something that keeps an object from being used as it is.
type Problem struct {
	Object Object
	// Field is the path of the field, such as "spec.addresses[1]".
	Field string
	// Reason is one of the reasons of the API for conditions.
	Reason string
	// Message is a sentence that begins with the field.
	Message string
}

// problems collects problems of one object.
type problems struct {
	object Object
	found  []Problem
}

func (p *problems) add(reason, field, message string) {
	p.found = append(p.found, Problem{Object: p.object, Field: field, Reason: reason, Message: field + ": " + message})
}

// selector returns what selects everything when the selector is absent.
func selector(selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(selector)
}

// Older says whether a is older than b or, within a second, before it by name.
func Older(a, b metav1.Object) bool {
	return olderFirst(a, b) < 0
}

// olderFirst orders objects by age and, within a second, by name.
func olderFirst(a, b metav1.Object) int {
	return cmp.Or(
		a.GetCreationTimestamp().Time.Compare(b.GetCreationTimestamp().Time),
		cmp.Compare(a.GetName(), b.GetName()),
	)
}
