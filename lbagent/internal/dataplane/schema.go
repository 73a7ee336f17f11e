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

// schemaFormat is the format of the schema. Maps with another one are rebuilt.
const schemaFormat uint32 = 1

const schemaHead = 4 + flowhash.SeedSize

type schema struct {
	seed    flowhash.Seed
	layouts map[string]layout.Map
}

// meanings overrides layout.Map.Meaning by map name.
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

// PinnedSeed returns the seed of the pinned maps and whether any are pinned. The next Open can use the maps
// only with this seed. The caller must hold the Lock.
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
		return seed, false, fmt.Errorf("load pinned map %s: %w; is it on a bpf file system, and does the process have CAP_BPF?", path, err)
	}
	defer m.Close()
	s, err := readSchema(m)
	if err != nil {
		// Open rebuilds maps with an unreadable schema.
		return seed, false, nil //nolint:nilerr // As above.
	}
	return s.seed, true, nil
}
