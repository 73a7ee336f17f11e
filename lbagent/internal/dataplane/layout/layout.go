// SPDX-License-Identifier: Apache-2.0

// Package layout says where the fields of a map's keys and values are, and carries entries from
// one layout to another by the names of the fields. So an agent reads the maps that another version
// of it has pinned, older or newer.
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
	// Meaning grows where the same bytes come to mean something else. Such a change needs a
	// converter of its own.
	Meaning int `json:"meaning,omitempty"`
}

// Type is a number, an array or a structure.
type Type struct {
	// Size is in bytes.
	Size uint32 `json:"size"`
	// Network is true for numbers in the order of the network. They do not change in size.
	Network bool `json:"network,omitempty"`
	// Elements is how many an array has, Element what they are.
	Elements uint32 `json:"elements,omitempty"`
	Element  *Type  `json:"element,omitempty"`
	// Fields are those of a structure, by their offset.
	Fields []Field `json:"fields,omitempty"`
}

// Field is one of a structure.
type Field struct {
	Name string `json:"name"`
	// Offset is in bytes.
	Offset uint32 `json:"offset"`
	Type   Type   `json:"type"`
}

// Equal reports whether the maps have the same layout and meaning.
func Equal(a, b Map) bool { return reflect.DeepEqual(a, b) }

// Of describes a map as it was compiled.
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
			// They hold nothing.
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
