// SPDX-License-Identifier: Apache-2.0

package builder

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestSameResource checks that a change of any field, at any depth, is detected. Only resources with equal names are
// compared.
func TestSameResource(t *testing.T) {
	for name, message := range map[string]*resource.Resource{
		"listener": {Kind: &resource.Resource_Listener{Listener: &resource.Listener{}}},
		"group": {Kind: &resource.Resource_RouteGroup{RouteGroup: &resource.RouteGroup{
			Rules: []*resource.Rule{{Match: &resource.Match{}, Backends: []*resource.WeightedBackend{{}}}},
		}}},
		"backend": {Kind: &resource.Resource_Backend{Backend: &resource.Backend{}}},
	} {
		t.Run(name, func(t *testing.T) {
			checkFields(t, message, message.ProtoReflect(), name)
		})
	}
}

// checkFields changes each field of part, a part of whole, and of the messages that part contains.
func checkFields(t *testing.T, whole *resource.Resource, part protoreflect.Message, path string) {
	t.Helper()
	fields := part.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if part == whole.ProtoReflect() && field.Name() == "name" {
			continue
		}
		at := path + "." + string(field.Name())
		switch {
		case field.IsList() && part.Has(field) && field.Message() != nil:
			checkFields(t, whole, part.Get(field).List().Get(0).Message(), at)
			continue
		case !field.IsList() && part.Has(field) && field.Message() != nil:
			checkFields(t, whole, part.Get(field).Message(), at)
			continue
		case field.ContainingOneof() != nil && part.WhichOneof(field.ContainingOneof()) != nil:
			continue
		}
		before := proto.CloneOf(whole)
		part.Set(field, changedValue(part, field))
		if sameResource(before, whole) || sameResource(whole, before) {
			t.Errorf("%s: a change is not detected", at)
		}
		part.Clear(field)
	}
}

// changedValue returns a value other than the default.
func changedValue(of protoreflect.Message, field protoreflect.FieldDescriptor) protoreflect.Value {
	value := of.NewField(field)
	switch {
	case field.IsMap():
		return value
	case field.IsList():
		value.List().Append(scalar(field, value.List().NewElement()))
		return value
	case field.Message() != nil:
		return value
	}
	return scalar(field, value)
}

func scalar(field protoreflect.FieldDescriptor, zero protoreflect.Value) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("a")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte("a"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(field.Enum().Values().Get(field.Enum().Values().Len() - 1).Number())
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(1)
	}
	return zero
}
