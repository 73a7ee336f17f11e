// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// removed stands for what may be secret.
const removed = "<removed by millrace sysdump>"

// redact takes from an object what may be of a Secret, though it is none itself: values of the
// environment of containers, and the annotation in which kubectl keeps a whole object. It also takes
// what nobody reads.
func redact(object *unstructured.Unstructured) {
	annotations := object.GetAnnotations()
	if _, found := annotations["kubectl.kubernetes.io/last-applied-configuration"]; found {
		annotations["kubectl.kubernetes.io/last-applied-configuration"] = removed
		object.SetAnnotations(annotations)
	}
	object.SetManagedFields(nil)
	redactEnvironment(object.Object)
}

// redactEnvironment finds containers wherever they are: in pods and in what makes pods.
func redactEnvironment(value any) {
	switch value := value.(type) {
	case map[string]any:
		for name, item := range value {
			if list, is := item.([]any); is && name == "env" {
				redactValues(list)
				continue
			}
			redactEnvironment(item)
		}
	case []any:
		for _, item := range value {
			redactEnvironment(item)
		}
	}
}

func redactValues(variables []any) {
	for _, variable := range variables {
		if variable, is := variable.(map[string]any); is && variable["value"] != nil {
			variable["value"] = removed
		}
	}
}
