// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// structGen generates a structure with these fields and sizes in random order, with gaps.
func structGen(t *rapid.T, sizes map[string]uint32, names []string) Type {
	var out Type
	for _, name := range rapid.Permutation(names).Draw(t, "order") {
		out.Size += uint32(rapid.IntRange(0, 3).Draw(t, "gap"))
		out.Fields = append(out.Fields, Field{Name: name, Offset: out.Size, Type: Type{Size: sizes[name]}})
		out.Size += sizes[name]
	}
	return out
}

func numberOf(b []byte, f Field) uint64 {
	number := make([]byte, 8)
	copy(number, b[f.Offset:f.Offset+f.Type.Size])
	return binary.LittleEndian.Uint64(number)
}

// Common fields keep their values regardless of offset and size, and new ones are zero.
func TestConvertKeepsFields(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := []string{"a", "b", "c", "d", "e"}
		draw := func(label string) Type {
			sizes := map[string]uint32{}
			for _, name := range all {
				sizes[name] = rapid.SampledFrom([]uint32{1, 2, 4, 8}).Draw(t, label+name)
			}
			return structGen(t, sizes, rapid.SliceOfNDistinct(rapid.SampledFrom(all), 1, 5, rapid.ID).Draw(t, label))
		}
		from, to := draw("from"), draw("to")
		converter, err := NewConverter(Map{Value: from}, Map{Value: to})
		if err != nil {
			t.Fatal(err)
		}
		value := make([]byte, from.Size)
		for _, field := range from.Fields {
			// A byte fits everywhere.
			value[field.Offset] = rapid.Byte().Draw(t, "number")
		}
		got, err := converter.Value(value)
		if err != nil || len(got) != int(to.Size) {
			t.Fatalf("Convert = %v, %v; want %d bytes", got, err, to.Size)
		}
		for _, field := range to.Fields {
			want := uint64(0)
			i := slices.IndexFunc(from.Fields, func(f Field) bool { return f.Name == field.Name })
			if i >= 0 {
				want = numberOf(value, from.Fields[i])
			}
			if number := numberOf(got, field); number != want {
				t.Errorf("field %s is %d, want %d", field.Name, number, want)
			}
		}
	})
}

func TestConvertNested(t *testing.T) {
	element := func(size uint32) *Type {
		return &Type{Size: size, Fields: []Field{{Name: "n", Offset: size - 2, Type: Type{Size: 2}}}}
	}
	from := Type{Size: 8, Elements: 2, Element: element(4)}
	to := Type{Size: 18, Elements: 3, Element: element(6)}
	converter, err := NewConverter(Map{Value: from}, Map{Value: to})
	if err != nil {
		t.Fatal(err)
	}
	got, err := converter.Value([]byte{9, 9, 1, 2, 9, 9, 3, 4})
	want := []byte{0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 0, 0}
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := NewConverter(Map{Value: to}, Map{Value: from}); err == nil {
		t.Error("no error although elements would be lost")
	}
}

func TestConvertRefuses(t *testing.T) {
	number, network := Type{Size: 4}, Type{Size: 4, Network: true}
	for name, types := range map[string][2]Type{
		"other byte order": {number, network},
		"longer":           {network, {Size: 8, Network: true}},
		"structure":        {number, {Size: 4, Fields: []Field{{Name: "a", Type: number}}}},
		"array":            {{Size: 4, Elements: 1, Element: &number}, number},
		"field of a field": {{Size: 4, Fields: []Field{{Name: "a", Type: number}}}, {Size: 4, Fields: []Field{{Name: "a", Type: network}}}},
	} {
		if _, err := NewConverter(Map{Key: types[0]}, Map{Key: types[1]}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	converter, err := NewConverter(Map{Key: Type{Size: 2}}, Map{Key: Type{Size: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if key, err := converter.Key([]byte{1, 1}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v, %v; want %v", key, err, ErrTooLarge)
	}
}
