// SPDX-License-Identifier: Apache-2.0

// Package migration parses other load balancers' objects and constructs objects of Millrace.
package migration

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
)

// Meta is embedded in the types of objects.
type Meta struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
}

// Object is an object of another load balancer.
type Object struct {
	APIVersion, Kind string

	fields map[string]any
}

// Read passes each YAML or JSON object to take until it returns an error. The owner, such as "MetalLB", is
// used in errors.
func Read(r io.Reader, owner string, take func(Object) error) error {
	decoder := yaml.NewYAMLOrJSONDecoder(r, 4096)
	for {
		var fields map[string]any
		err := decoder.Decode(&fields)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s's objects: %w", owner, err)
		}
		if err := each(fields, take); err != nil {
			return fmt.Errorf("read %s's objects: %w", owner, err)
		}
	}
}

func each(fields map[string]any, take func(Object) error) error {
	if len(fields) == 0 {
		return nil
	}
	items, isList := fields["items"].([]any)
	if !isList {
		object := Object{fields: fields}
		object.APIVersion, _ = fields["apiVersion"].(string)
		object.Kind, _ = fields["kind"].(string)
		return take(object)
	}
	for _, item := range items {
		if one, ok := item.(map[string]any); ok {
			if err := each(one, take); err != nil {
				return err
			}
		}
	}
	return nil
}

// ErrForeign returns the error about an object of another project.
func (o Object) ErrForeign() error { return fmt.Errorf("%s %q is not supported", o.APIVersion, o.Kind) }

// Decode appends an object to all. Fields that T lacks are reported in notes, unless nil, so that nothing
// is lost silently. Statuses are ignored.
func Decode[T any](object Object, all *[]T, notes *Notes) error {
	fields := maps.Clone(object.fields)
	for _, known := range []string{"apiVersion", "kind", "status"} {
		delete(fields, known)
	}
	var one T
	var unknown []error
	raw, err := json.Marshal(fields)
	if err == nil {
		unknown, err = kjson.UnmarshalStrict(raw, &one)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", object.Kind, err)
	}
	if notes == nil {
		unknown = nil
	}
	for _, field := range unknown {
		metadata, _ := fields["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		notes.Add(object.Kind, name, "%s: the field is left out", strings.TrimSpace(field.Error()))
	}
	*all = append(*all, one)
	return nil
}
