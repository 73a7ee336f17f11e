// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane/layout"
)

// schemaFormat specifies the format of the map with the schema. The agent rebuilds the maps if the pinned
// schema has another format.
const schemaFormat uint32 = 1

// schemaHead is how many bytes are before the layouts: the format, and the seed.
const schemaHead = 4 + flowhash.SeedSize

// schema says what the pinned maps hold: by which seed of the hash they were filled, and the layout
// of each, by name.
type schema struct {
	seed    flowhash.Seed
	layouts map[string]layout.Map
}

// meanings specifies the meaning of maps, by name (layout.Map.Meaning). The default is zero.
var meanings = map[string]int{}

func newSchema(spec *ebpf.CollectionSpec, seed flowhash.Seed) (*schema, error) {
	s := &schema{seed: seed, layouts: map[string]layout.Map{}}
	for name, m := range mapSpecs(spec) {
		described, err := layout.Of(m)
		if err != nil {
			return nil, fmt.Errorf("describe map %s: %w", name, err)
		}
		described.Meaning = meanings[name]
		s.layouts[name] = described
	}
	return s, nil
}

// create makes the map with the schema.
func (s *schema) create() (*ebpf.Map, error) {
	content := binary.NativeEndian.AppendUint32(nil, schemaFormat)
	content = append(content, s.seed[:]...)
	layouts, err := json.Marshal(s.layouts)
	if err != nil {
		return nil, fmt.Errorf("encode the layouts of the maps: %w", err)
	}
	content = append(content, layouts...)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: schemaMap, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(content)), MaxEntries: 1})
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", schemaMap, err)
	}
	if err := m.Put(uint32(0), content); err != nil {
		return nil, errors.Join(fmt.Errorf("write map %s: %w", schemaMap, err), m.Close())
	}
	return m, nil
}

// readSchema reads it.
func readSchema(m *ebpf.Map) (*schema, error) {
	content := make([]byte, m.ValueSize())
	if err := m.Lookup(uint32(0), content); err != nil {
		return nil, fmt.Errorf("read map %s: %w", schemaMap, err)
	}
	if len(content) < schemaHead {
		return nil, fmt.Errorf("map %s has %d bytes", schemaMap, len(content))
	}
	if format := nativeUint32(content); format != schemaFormat {
		return nil, fmt.Errorf("the pinned maps have a schema of format %d, this agent reads %d", format, schemaFormat)
	}
	s := &schema{seed: flowhash.Seed(content[4:schemaHead])}
	if err := json.Unmarshal(content[schemaHead:], &s.layouts); err != nil {
		return nil, fmt.Errorf("read the layouts of the pinned maps: %w", err)
	}
	return s, nil
}

// PinnedSeed returns the seed by which the pinned maps were filled, zero for none, and whether
// there are any. It is what the next Open needs to go on with them. Nobody else may have the data
// plane open.
func PinnedSeed(pinRoot string) (seed flowhash.Seed, found bool, err error) {
	if err := recoverDirectories(pinRoot); err != nil {
		return seed, false, err
	}
	path := filepath.Join(pinRoot, mapDirectory, schemaMap)
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return seed, false, nil
	}
	if err != nil {
		return seed, false, fmt.Errorf("load pinned map %s: %w; is it on a bpf file system, and has the process CAP_BPF?", path, err)
	}
	defer m.Close()
	s, err := readSchema(m)
	if err != nil {
		// It is not ours to read: Open builds the maps again.
		return seed, false, nil //nolint:nilerr // As above.
	}
	return s.seed, true, nil
}
