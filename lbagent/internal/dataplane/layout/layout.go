// SPDX-License-Identifier: Apache-2.0

// Package layout describes the layout of a map's keys and values and converts entries between layouts by
// field name, so that an agent can use maps pinned by an older or newer version.
package layout

import (
	"fmt"
	"reflect"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Map is the layout of a map's entries.
type Map struct {
	Key   Type `json:"key"`
	Value Type `json:"value"`
	// Meaning is incremented when equal bytes change their meaning, which requires a special converter.
	Meaning int `json:"meaning,omitempty"`
}

// Type is a number, an array or a structure.
type Type struct {
	// Size is in bytes.
	Size uint32 `json:"size"`
	// Network is true for numbers in network byte order, whose size cannot change.
	Network bool `json:"network,omitempty"`
	// Elements is the length of an array, Element the type of its elements.
	Elements uint32 `json:"elements,omitempty"`
	Element  *Type  `json:"element,omitempty"`
	// Fields are the members of a structure, ordered by offset.
	Fields []Field `json:"fields,omitempty"`
}

// Field is a member of a structure.
type Field struct {
	Name string `json:"name"`
	// Offset is in bytes.
	Offset uint32 `json:"offset"`
	Type   Type   `json:"type"`
}

// Equal reports whether two maps have the same layout and meaning.
func Equal(a, b Map) bool { return reflect.DeepEqual(a, b) }

// Of returns the layout of a compiled map.
func Of(spec *ebpf.MapSpec) (Map, error) {
	key, err := typeOf(spec.Key, false)
	if err != nil {
		return Map{}, fmt.Errorf("key: %w", err)
	}
	value, err := typeOf(spec.Value, false)
	if err != nil {
		return Map{}, fmt.Errorf("value: %w", err)
	}
	return Map{Key: key, Value: value}, nil
}

func typeOf(t btf.Type, network bool) (Type, error) {
	switch t := t.(type) {
	case nil:
		// A ring buffer has neither key nor value.
		return Type{}, nil
	case *btf.Typedef:
		return typeOf(t.Type, network || len(t.Name) > 4 && t.Name[:4] == "__be")
	case *btf.Const:
		return typeOf(t.Type, network)
	case *btf.Volatile:
		return typeOf(t.Type, network)
	case *btf.Int:
		return Type{Size: t.Size, Network: network}, nil
	case *btf.Enum:
		return Type{Size: t.Size}, nil
	case *btf.Array:
		element, err := typeOf(t.Type, false)
		return Type{Size: element.Size * t.Nelems, Elements: t.Nelems, Element: &element}, err
	case *btf.Struct:
		return structOf(t)
	default:
		return Type{}, fmt.Errorf("%T %s cannot be described", t, t.TypeName())
	}
}

func structOf(t *btf.Struct) (Type, error) {
	out := Type{Size: t.Size}
	for _, member := range t.Members {
		if member.Name == "pad" || member.Name == "reserved" {
			continue
		}
		if member.BitfieldSize != 0 {
			return Type{}, fmt.Errorf("field %s of %s is one of bits", member.Name, t.Name)
		}
		field, err := typeOf(member.Type, false)
		if err != nil {
			return Type{}, fmt.Errorf("field %s of %s: %w", member.Name, t.Name, err)
		}
		out.Fields = append(out.Fields, Field{Name: member.Name, Offset: member.Offset.Bytes(), Type: field})
	}
	return out, nil
}
