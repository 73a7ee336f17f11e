// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/bpf"
)

// setHash gives the programs the constants of their hash.
func setHash(spec *ebpf.CollectionSpec, constants flowhash.Constants) error {
	for name, value := range map[string]any{
		bpf.DatapathVarClientMultipliers:  constants.Client,
		bpf.DatapathVarVipMultipliers:     constants.VIP,
		bpf.DatapathVarPortsMultiplier:    constants.Ports,
		bpf.DatapathVarProtocolMultiplier: constants.Protocol,
		bpf.DatapathVarFrontendMultiplier: constants.Frontend,
		bpf.DatapathVarHashAddend:         constants.Addend,
	} {
		// No error has a value in it.
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s of the BPF programs: %w", name, err)
		}
	}
	return nil
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
	_, seed, err = readSchema(m)
	if err != nil {
		// It is not ours to read: Open builds the maps again.
		return seed, false, nil //nolint:nilerr // As above.
	}
	return seed, true, nil
}

// encodeSchema is the content of the map with the schema.
func encodeSchema(seed flowhash.Seed) []byte {
	content := binary.NativeEndian.AppendUint32(nil, schemaVersion)
	if seed == (flowhash.Seed{}) {
		return content
	}
	return append(content, seed[:]...)
}

// readSchema reads it.
func readSchema(m *ebpf.Map) (version uint32, seed flowhash.Seed, err error) {
	content := make([]byte, m.ValueSize())
	if err := m.Lookup(uint32(0), content); err != nil {
		return 0, seed, err
	}
	if len(content) != len(encodeSchema(seed)) && len(content) != 4+flowhash.SeedSize {
		return 0, seed, fmt.Errorf("it has %d bytes", len(content))
	}
	copy(seed[:], content[4:])
	return nativeUint32(content), seed, nil
}
