// SPDX-License-Identifier: Apache-2.0

// Package slim removes from objects what nobody here reads, before they are cached.
package slim

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Meta leaves of the metadata of a cluster-scoped object what tells it, and one state of it, from
// others, and what it takes to write its status.
func Meta(object *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:              object.Name,
		UID:               object.UID,
		ResourceVersion:   object.ResourceVersion,
		Generation:        object.Generation,
		CreationTimestamp: object.CreationTimestamp,
		DeletionTimestamp: object.DeletionTimestamp,
	}
}
