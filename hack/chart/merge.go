// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// merge returns base with the conditional additions of extended, which must contain base unchanged.
func merge(base, extended any, condition string) (any, error) {
	switch extended := extended.(type) {
	case map[string]any:
		if base, ok := base.(map[string]any); ok {
			return mergeMaps(base, extended, condition)
		}
	case []any:
		if base, ok := base.([]any); ok {
			return mergeLists(base, extended, condition)
		}
	}
	if !reflect.DeepEqual(base, extended) {
		return nil, fmt.Errorf("%v becomes %v: a component may only add", base, extended)
	}
	return base, nil
}

func mergeMaps(base, extended map[string]any, condition string) (map[string]any, error) {
	result := map[string]any{}
	for key, item := range base {
		if _, found := extended[key]; found {
			continue
		}
		if !marked(key) {
			return nil, fmt.Errorf("%s is removed: a component may only add", key)
		}
		result[key] = item
	}
	for key, item := range extended {
		previous, found := base[key]
		if !found {
			result[onlyIf(condition, key)] = item
			continue
		}
		merged, err := merge(previous, item, condition)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		result[key] = merged
	}
	return result, nil
}

// mergeLists adds marks to a list after its unmarked items.
func mergeLists(base, extended []any, condition string) (any, error) {
	var result, marks []any
	for _, item := range base {
		if isMarked(item) {
			marks = append(marks, item)
			continue
		}
		if len(extended) == len(result) {
			return nil, fmt.Errorf("item %v is removed: a component may only add", item)
		}
		merged, err := merge(item, extended[len(result)], condition)
		if err != nil {
			return nil, fmt.Errorf("item %d: %w", len(result), err)
		}
		result = append(result, merged)
	}
	for _, item := range extended[len(result):] {
		item, err := markItem(item, condition)
		if err != nil {
			return nil, err
		}
		marks = append(marks, item)
	}
	return append(result, marks...), nil
}

func isMarked(item any) bool {
	switch item := item.(type) {
	case string:
		return marked(item)
	case map[string]any:
		for key := range item {
			if strings.Contains(key, "@@item ") {
				return true
			}
		}
	}
	return false
}

func markItem(item any, condition string) (any, error) {
	switch item := item.(type) {
	case string:
		return itemIf(condition, item), nil
	case map[string]any:
		result := maps.Clone(item)
		first := slices.Min(slices.Collect(maps.Keys(item)))
		delete(result, first)
		result[itemIf(condition, first)] = item[first]
		return result, nil
	}
	return nil, fmt.Errorf("item %v: only texts and maps can be added", item)
}
