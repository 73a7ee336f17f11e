// SPDX-License-Identifier: Apache-2.0

package parameters

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// setPlacement parses a parameter for pods. It rejects values that the API server would reject, because
// proxies would be missing without a reported problem.
func (p *Class) setPlacement(name, text string) (known bool, err error) {
	switch name {
	case PullSecrets:
		err = parseYAML(text, &p.PullSecrets, func(secret corev1.LocalObjectReference) []string {
			return validation.IsDNS1123Subdomain(secret.Name)
		})
	case NodeSelector:
		p.NodeSelector, err = parseSelector(text)
	case Tolerations:
		err = parseYAML(text, &p.Tolerations, wrongToleration)
	default:
		return false, nil
	}
	return true, err
}

// parseYAML parses a list. It does not modify into if an item is invalid.
func parseYAML[T any](text string, into *[]T, wrong func(T) []string) error {
	var list []T
	if err := yaml.UnmarshalStrict([]byte(text), &list); err != nil {
		return fmt.Errorf("it does not have the form of a pod's spec: %w", err)
	}
	for i, item := range list {
		if flaws := wrong(item); len(flaws) > 0 {
			return fmt.Errorf("item %d: %s", i+1, strings.Join(flaws, ", "))
		}
	}
	*into = list
	return nil
}

func parseSelector(text string) (map[string]string, error) {
	var selector map[string]string
	if err := yaml.UnmarshalStrict([]byte(text), &selector); err != nil {
		return nil, fmt.Errorf("it does not have the form of a pod's spec: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if flaws := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(selector[key])...); len(flaws) > 0 {
			return nil, errors.New(key + ": " + strings.Join(flaws, ", "))
		}
	}
	return selector, nil
}

// wrongToleration returns the reasons why the API server would reject a toleration (core/v1 Toleration).
func wrongToleration(toleration corev1.Toleration) (flaws []string) {
	if toleration.Key != "" {
		flaws = validation.IsQualifiedName(toleration.Key)
	}
	switch toleration.Operator {
	case corev1.TolerationOpEqual, "":
		if toleration.Key == "" {
			flaws = append(flaws, "operator must be Exists if key is empty")
		}
		flaws = append(flaws, validation.IsValidLabelValue(toleration.Value)...)
	case corev1.TolerationOpExists:
		if toleration.Value != "" {
			flaws = append(flaws, "value must be empty if operator is Exists")
		}
	default:
		flaws = append(flaws, fmt.Sprintf("operator %q is neither Equal nor Exists", toleration.Operator))
	}
	switch toleration.Effect {
	case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		flaws = append(flaws, fmt.Sprintf("unknown effect %q", toleration.Effect))
	}
	if toleration.TolerationSeconds != nil && toleration.Effect != corev1.TaintEffectNoExecute {
		flaws = append(flaws, "tolerationSeconds is for effect NoExecute")
	}
	return flaws
}
