// SPDX-License-Identifier: Apache-2.0

package slim

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// EndpointSliceMeta returns the part of an EndpointSlice's metadata that agents read.
func EndpointSliceMeta(object *metav1.ObjectMeta) metav1.ObjectMeta {
	meta := Meta(object)
	meta.Namespace = object.Namespace
	if service, ofService := object.Labels[discoveryv1.LabelServiceName]; ofService {
		meta.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	}
	if _, confirmed := object.Annotations[millracev1beta1.AnnotationConfirmRemoval]; confirmed {
		meta.Annotations = map[string]string{millracev1beta1.AnnotationConfirmRemoval: ""}
	}
	return meta
}
