// SPDX-License-Identifier: Apache-2.0

// Package slim removes unused fields from objects before they are cached.
package slim

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Meta returns the part of the metadata that identifies a cluster-scoped object and that is needed to write
// its status.
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
