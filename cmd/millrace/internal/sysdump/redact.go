// SPDX-License-Identifier: Apache-2.0

package sysdump

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// removed replaces values that may be secret.
const removed = "<removed by millrace sysdump>"

// redact removes values that may be copies of secrets: environment variables, and kubectl's annotation with
// the last applied object. It also removes managedFields.
func redact(object *unstructured.Unstructured) {
	annotations := object.GetAnnotations()
	if _, found := annotations["kubectl.kubernetes.io/last-applied-configuration"]; found {
		annotations["kubectl.kubernetes.io/last-applied-configuration"] = removed
		object.SetAnnotations(annotations)
	}
	object.SetManagedFields(nil)
	redactEnvironment(object.Object)
}

// redactEnvironment handles containers at any depth: in pods and in pod templates.
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
