// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// workload is the value that configures a workload, and the container that the container options apply to.
type workload struct{ value, container string }

var workloads = map[string]workload{
	"millrace-operator": {"operator", "operator"},
	"millrace-agent":    {"agent", "lbagent"},
	"millrace-gateway":  {"gateway", "gateway"},
	"millrace-liveapi":  {"liveapi", "liveapi"},
}

// labelsOf maps a kind to the value with its additional labels.
var labelsOf = map[string]string{
	"PodMonitor": ".Values.monitors.labels", "ServiceMonitor": ".Values.monitors.labels", "PrometheusRule": ".Values.rules.labels",
}

// mark marks the labels, images and arguments that depend on values.
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
	if of := labelsOf[object.GetKind()]; of != "" {
		all[entries(of)] = true
	}
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
	if of, is := workloads[object.GetName()]; is && (object.GetKind() == "Deployment" || object.GetKind() == "DaemonSet") {
		markWorkload(object, pod, ".Values."+of.value+".")
	}
	return unstructured.SetNestedMap(object.Object, pod, "spec", "template", "spec")
}

// markWorkload marks the options of a pod. A value replaces that of config/. Annotations and labels are
// added.
func markWorkload(object *unstructured.Unstructured, pod map[string]any, values string) {
	for _, key := range []string{"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"} {
		replace(pod, key, values+key)
	}
	pod["priorityClassName"] = value(fmt.Sprintf("%spriorityClassName | default %q", values, pod["priorityClassName"]))
	spec, _ := object.Object["spec"].(map[string]any)
	if replicas, found := spec["replicas"]; found {
		spec["replicas"] = value(fmt.Sprintf("%sreplicas | default %v", values, replicas))
	}
	template, _ := spec["template"].(map[string]any)
	metadata, _ := template["metadata"].(map[string]any)
	for key, of := range map[string]string{"annotations": "podAnnotations", "labels": "podLabels"} {
		if present, _ := metadata[key].(map[string]any); present != nil {
			present[entries(values+of)] = true
		} else {
			metadata[onlyIf(values+of, key)] = block(values + of)
		}
	}
}

// replace marks a key whose value is replaced by that of an expression, unless the latter is empty.
func replace(in map[string]any, key, expression string) {
	present, found := in[key]
	if !found {
		in[onlyIf(expression, key)] = block(expression)
		return
	}
	delete(in, key)
	in[orElse(expression, key)] = present
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
	if of := workloads[object]; of.container == containerName {
		values := ".Values." + of.value + "."
		for key, list := range map[string]string{"args": "extraArgs", "env": "extraEnv"} {
			present, _ := container[key].([]any)
			container[key] = append(present, items(values+list))
		}
		replace(container, "resources", values+"resources")
	}
	return nil
}
