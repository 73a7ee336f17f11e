// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// argumentsOf maps an object and a container to the value with additional arguments.
var argumentsOf = map[[2]string]string{
	{"millrace-operator", "operator"}: "operator",
	{"millrace-agent", "lbagent"}:     "agent",
	{"millrace-gateway", "gateway"}:   "gateway",
	{"millrace-liveapi", "liveapi"}:   "liveapi",
}

// mark marks labels, images and arguments, which depend on values.
func mark(object *unstructured.Unstructured) error {
	metadata, _, err := unstructured.NestedMap(object.Object, "metadata")
	if err != nil {
		return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
	}
	all, _ := metadata["labels"].(map[string]any)
	if all == nil {
		all = map[string]any{}
	}
	all[labels] = true
	metadata["labels"] = all
	object.Object["metadata"] = metadata
	pod, found, err := unstructured.NestedMap(object.Object, "spec", "template", "spec")
	if err != nil || !found {
		return err
	}
	pod[onlyIf(".Values.imagePullSecrets", "imagePullSecrets")] = block(".Values.imagePullSecrets")
	for _, list := range []string{"initContainers", "containers"} {
		containers, _ := pod[list].([]any)
		for _, item := range containers {
			container, ok := item.(map[string]any)
			if !ok {
				return fmt.Errorf("%s %s: %s is no list of containers", object.GetKind(), object.GetName(), list)
			}
			if err := markContainer(object.GetName(), container); err != nil {
				return err
			}
		}
	}
	return unstructured.SetNestedMap(object.Object, pod, "spec", "template", "spec")
}

func markContainer(object string, container map[string]any) error {
	image, _ := container["image"].(string)
	name, ours := strings.CutPrefix(image, Development.Registry+"/")
	name, tagged := strings.CutSuffix(name, ":"+Development.App)
	if !ours || !tagged {
		return fmt.Errorf("%s: image %q is not of this project", object, image)
	}
	container["image"] = value(fmt.Sprintf(`include "millrace.image" (list . %q)`, name))
	container[onlyIf(".Values.images.pullPolicy", "imagePullPolicy")] = value(".Values.images.pullPolicy")
	containerName, _ := container["name"].(string)
	if of := argumentsOf[[2]string{object, containerName}]; of != "" {
		arguments, _ := container["args"].([]any)
		container["args"] = append(arguments, items(".Values."+of+".args"))
	}
	return nil
}
