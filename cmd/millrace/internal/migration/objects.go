// SPDX-License-Identifier: Apache-2.0

// Package migration provides the common parts of converting other load balancers' objects: a parser, and
// constructors for objects of Millrace.
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

// Read parses a stream of YAML or JSON objects or lists, as printed by kubectl, and passes each object to
// take, until take returns an error. The owner, such as "MetalLB", is used in errors.
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

// each calls take for an object, or for the items of a list.
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

// Decode decodes an object, and appends it to all. Fields that T does not have are reported in notes, so
// that nothing is lost silently; nil notes are for kinds of which only some fields are needed. Statuses are
// ignored.
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
