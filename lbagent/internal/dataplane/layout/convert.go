// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bytes"
	"errors"
	"fmt"
)

// ErrTooLarge is returned if a number does not fit into a narrower field.
var ErrTooLarge = errors.New("number out of range")

// Converter converts entries: new fields are zero, removed ones dropped, native numbers may change size.
type Converter struct {
	key, value fieldCopier
	// Gone lists the removed fields.
	Gone []string
}

// NewConverter returns an error if the meaning or a field's kind changed.
func NewConverter(from, to Map) (*Converter, error) {
	if from.Meaning != to.Meaning {
		return nil, fmt.Errorf("its meaning is %d, not %d", from.Meaning, to.Meaning)
	}
	key, err := newFieldCopier("key", &from.Key, &to.Key)
	if err != nil {
		return nil, err
	}
	value, err := newFieldCopier("value", &from.Value, &to.Value)
	if err != nil {
		return nil, err
	}
	return &Converter{key: key, value: value, Gone: append(key.gone, value.gone...)}, nil
}

// Key converts a key, or returns ErrTooLarge.
func (c *Converter) Key(from []byte) ([]byte, error) { return c.key.move(from) }

// Value converts a value, or returns ErrTooLarge.
func (c *Converter) Value(from []byte) ([]byte, error) { return c.value.move(from) }

// fieldCopier copies the parts of a type of size bytes between their offsets in both layouts.
type fieldCopier struct {
	size  uint32
	parts []byteRange
	gone  []string
}

type byteRange struct{ from, fromSize, to, toSize uint32 }

func newFieldCopier(name string, from, to *Type) (fieldCopier, error) {
	m := fieldCopier{size: to.Size}
	err := m.add(name, from, to, 0, 0)
	return m, err
}

func (m *fieldCopier) add(name string, from, to *Type, fromOffset, toOffset uint32) error {
	switch {
	case from.Fields != nil && to.Fields != nil:
		return m.addFields(name, from, to, fromOffset, toOffset)
	case from.Element != nil && to.Element != nil:
		if from.Elements > to.Elements {
			return fmt.Errorf("%s has %d elements, not %d", name, to.Elements, from.Elements)
		}
		for i := range from.Elements {
			err := m.add(name, from.Element, to.Element, fromOffset+i*from.Element.Size, toOffset+i*to.Element.Size)
			if err != nil {
				return err
			}
		}
		return nil
	case from.Fields != nil || to.Fields != nil || from.Element != nil || to.Element != nil:
		return fmt.Errorf("%s has another type", name)
	case from.Network != to.Network || to.Network && from.Size != to.Size:
		return fmt.Errorf("%s has another size or order", name)
	}
	m.parts = append(m.parts, byteRange{from: fromOffset, fromSize: from.Size, to: toOffset, toSize: to.Size})
	return nil
}

func (m *fieldCopier) addFields(name string, from, to *Type, fromOffset, toOffset uint32) error {
	previous := map[string]*Field{}
	for i := range from.Fields {
		previous[from.Fields[i].Name] = &from.Fields[i]
	}
	for i := range to.Fields {
		field := &to.Fields[i]
		before := previous[field.Name]
		if before == nil {
			continue
		}
		delete(previous, field.Name)
		err := m.add(name+"."+field.Name, &before.Type, &field.Type, fromOffset+before.Offset, toOffset+field.Offset)
		if err != nil {
			return err
		}
	}
	for gone := range previous {
		m.gone = append(m.gone, name+"."+gone)
	}
	return nil
}

// move requires little endian, as the programs do: the first bytes of a number are the lowest.
func (m *fieldCopier) move(from []byte) ([]byte, error) {
	out := make([]byte, m.size)
	for _, part := range m.parts {
		number := from[part.from : part.from+part.fromSize]
		n := copy(out[part.to:part.to+part.toSize], number)
		if len(bytes.Trim(number[n:], "\x00")) > 0 {
			return nil, ErrTooLarge
		}
	}
	return out, nil
}
