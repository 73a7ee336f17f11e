// SPDX-License-Identifier: Apache-2.0

// Package desired turns objects of the API into typed values, or into a list of
// what is wrong with them. Operator and agent both use it, so that they agree on
// what an object means. It is pure.
//
// ParsePool, ParsePeer, ParseAdvertisement and ParseVIP read one object each and
// return all its problems, as an admission webhook needs it. Pools, Peers and
// Advertisements also hold the objects of a kind against each other.
package desired

import (
	"cmp"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Object names an object of the API.
type Object struct {
	Kind string
	// Namespace is empty for a cluster-scoped object.
	Namespace, Name string
}

// Problem is something that keeps an object, or a part of it, from being used.
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

// invalid adds a field that cannot be used.
func (p *problems) invalid(field, format string, arguments ...any) {
	p.add(millracev1beta1.ReasonInvalid, field, fmt.Sprintf(format, arguments...))
}

// selector reads a selector. An absent one selects everything; it returns nil for
// an invalid one.
func (p *problems) selector(field string, selector *metav1.LabelSelector) labels.Selector {
	if selector == nil {
		return labels.Everything()
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		p.invalid(field, "%v", err)
		return nil
	}
	return parsed
}

// within reads a number that must be from lowest to highest.
func (p *problems) within(field string, value, lowest, highest int64) int64 {
	if value < lowest || value > highest {
		p.invalid(field, "%d is not between %d and %d", value, lowest, highest)
	}
	return value
}

// Older reports whether a is older than b or, within a second, before it by name.
func Older(a, b metav1.Object) bool {
	return CompareAge(a, b) < 0
}

// CompareAge orders objects of a kind by creation time, then namespace and name:
// where two ask for the same, the first has it.
func CompareAge(a, b metav1.Object) int {
	return cmp.Or(
		a.GetCreationTimestamp().Time.Compare(b.GetCreationTimestamp().Time),
		cmp.Compare(a.GetNamespace(), b.GetNamespace()),
		cmp.Compare(a.GetName(), b.GetName()),
	)
}
