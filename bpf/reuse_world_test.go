// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/millrace-lb/millrace/bpf"
)

// variables are the load-time differences of the programs.
type variables struct {
	ticksPerSecond uint32
	serviceProxy   bpf.DatapathServiceProxyMode
	overQuota      bool
	seeded         bool
}

// unused contains loaded programs of finished tests. A test takes them and empties their maps, because
// verification takes seconds and emptying milliseconds.
var unused = map[variables]*world{}

// takeUnused returns nil if no unused world has these variables.
func takeUnused(t testing.TB, v variables) *world {
	t.Helper()
	w := unused[v]
	if w == nil {
		return nil
	}
	delete(unused, v)
	for _, m := range w.allMaps() {
		empty(t, m)
	}
	return w
}

// giveBack retains w for the next test, or closes it if a world with the same variables is already
// retained.
func giveBack(w *world, v variables) {
	if unused[v] == nil {
		unused[v] = w
		return
	}
	w.Close()
	if w.tracing != nil {
		w.tracing.Close()
	}
}

func empty(t testing.TB, m *ebpf.Map) {
	t.Helper()
	var err error
	switch m.Type() {
	case ebpf.Array:
		err = zero(m)
	case ebpf.PerCPUArray:
		err = zeroPerCPU(m)
	case ebpf.RingBuf:
		err = drain(m)
	default:
		err = deleteAll(m)
	}
	if err != nil {
		t.Fatalf("clear map %v: %v", m, err)
	}
}

func zero(m *ebpf.Map) error {
	keys := make([]uint32, m.MaxEntries())
	for i := range keys {
		keys[i] = uint32(i)
	}
	value := reflect.ArrayOf(int(m.ValueSize()), reflect.TypeFor[byte]())
	values := reflect.MakeSlice(reflect.SliceOf(value), len(keys), len(keys))
	_, err := m.BatchUpdate(keys, values.Interface(), nil)
	return err
}

func zeroPerCPU(m *ebpf.Map) error {
	values := make([][]byte, ebpf.MustPossibleCPU())
	for i := range values {
		values[i] = make([]byte, m.ValueSize())
	}
	for key := range m.MaxEntries() {
		if err := m.Put(key, values); err != nil {
			return err
		}
	}
	return nil
}

func drain(m *ebpf.Map) error {
	reader, err := ringbuf.NewReader(m)
	if err != nil {
		return err
	}
	defer reader.Close()
	reader.SetDeadline(time.Unix(1, 0))
	for err == nil {
		_, err = reader.Read()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

func deleteAll(m *ebpf.Map) error {
	var keys [][]byte
	for {
		var last any
		if len(keys) > 0 {
			last = keys[len(keys)-1]
		}
		key, err := m.NextKeyBytes(last)
		if err != nil {
			return err
		}
		if key == nil {
			break
		}
		keys = append(keys, key)
	}
	for _, key := range keys {
		if err := m.Delete(key); err != nil {
			return err
		}
	}
	return nil
}
