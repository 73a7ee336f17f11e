// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/layout"
)

// batchSize is the number of entries per system call, at least the longest chain of a hash bucket.
const batchSize = 4096

type batch struct{ keys, values reflect.Value }

func newBatch(m *ebpf.Map, size int) batch {
	slice := func(entry uint32) reflect.Value {
		return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(entry), reflect.TypeFor[byte]())), size, size)
	}
	return batch{keys: slice(m.KeySize()), values: slice(m.ValueSize())}
}

func (b batch) each(m *ebpf.Map, visit func(n int) error) error {
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, b.keys.Interface(), b.values.Interface(), nil)
		done := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !done {
			return fmt.Errorf("read: %w", err)
		}
		if err := visit(n); err != nil || done {
			return err
		}
	}
}

// convert converts the first n entries and returns their number. LRUs skip values that do not fit.
func (b batch) convert(n int, converter *layout.Converter, to *ebpf.Map) (out batch, count int, err error) {
	if converter == nil {
		return b, n, nil
	}
	out = newBatch(to, n)
	for i := range n {
		key, err := converter.Key(b.keys.Index(i).Bytes())
		var value []byte
		if err == nil {
			value, err = converter.Value(b.values.Index(i).Bytes())
		}
		if errors.Is(err, layout.ErrTooLarge) && to.Type() == ebpf.LRUHash {
			continue
		}
		if err != nil {
			return batch{}, 0, fmt.Errorf("convert an entry: %w", err)
		}
		copy(out.keys.Index(count).Bytes(), key)
		copy(out.values.Index(count).Bytes(), value)
		count++
	}
	return out, count, nil
}

// copyMap copies all entries. Entries that do not fit are an error, except in an LRU.
func copyMap(from, to *ebpf.Map, converter *layout.Converter, how ebpf.MapUpdateFlags) error {
	if from.Type() == ebpf.PerCPUArray {
		return copyCounters(from, to, converter)
	}
	read := newBatch(from, batchSize)
	return read.each(from, func(n int) error {
		b, n, err := read.convert(n, converter, to)
		if err != nil {
			return err
		}
		if from.Type() == ebpf.Array {
			return copyPlaces(b, n, to)
		}
		for i := range n {
			err := to.Update(b.keys.Index(i).Addr().Interface(), b.values.Index(i).Addr().Interface(), how)
			if errors.Is(err, ebpf.ErrKeyExist) {
				continue
			}
			if err != nil {
				return tooSmall(err, to)
			}
		}
		return nil
	})
}

// copyPlaces copies entries of an array. Those beyond its end must be zero, which means unused.
func copyPlaces(b batch, n int, to *ebpf.Map) error {
	zero := make([]byte, to.ValueSize())
	fit := 0
	for ; fit < n; fit++ {
		key := b.keys.Index(fit).Addr().Interface().(*[4]byte)
		if nativeUint32(key[:]) >= to.MaxEntries() {
			break
		}
	}
	for i := fit; i < n; i++ {
		if !bytes.Equal(b.values.Index(i).Bytes(), zero) {
			return tooSmall(unix.E2BIG, to)
		}
	}
	if fit == 0 {
		return nil
	}
	_, err := to.BatchUpdate(b.keys.Slice(0, fit).Interface(), b.values.Slice(0, fit).Interface(), nil)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// copyCounters skips counters beyond the end, which have no owner.
func copyCounters(from, to *ebpf.Map, converter *layout.Converter) error {
	for i := range min(from.MaxEntries(), to.MaxEntries()) {
		var values [][]byte
		if err := from.Lookup(i, &values); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		for cpu := range values {
			if converter == nil {
				break
			}
			var err error
			if values[cpu], err = converter.Value(values[cpu]); err != nil {
				return fmt.Errorf("convert a value: %w", err)
			}
		}
		if err := to.Put(i, values); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}

func tooSmall(err error, to *ebpf.Map) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w: its content does not fit the new size of %d entries; start with the previous limits, or larger ones",
			ErrFull, to.MaxEntries())
	}
	return fmt.Errorf("write: %w", err)
}
