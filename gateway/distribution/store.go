// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Store keeps a proxy's last configuration in a file, so that a proxy that restarts while no
// controller answers serves as before. It holds private keys: the directory belongs on a
// memory-backed volume of the pod.
type Store struct {
	// Path of the file; its directory must exist.
	Path string
}

// Load returns what was saved, nil where nothing was.
func (s *Store) Load() (*discovery.DeltaDiscoveryResponse, error) {
	content, err := os.ReadFile(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	kept := &discovery.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(content, kept); err != nil {
		return nil, fmt.Errorf("read %s: %w", s.Path, err)
	}
	return kept, nil
}

// Save replaces what was saved. A crash leaves either the former or the new content.
func (s *Store) Save(update Update, versions map[string]string) error {
	kept := &discovery.DeltaDiscoveryResponse{TypeUrl: TypeURL, SystemVersionInfo: update.Version}
	for name, r := range update.Resources {
		packed, err := anypb.New(r)
		if err != nil {
			return fmt.Errorf("write the resource %q: %w", name, err)
		}
		kept.Resources = append(kept.Resources, &discovery.Resource{Name: name, Version: versions[name], Resource: packed})
	}
	content, err := proto.Marshal(kept)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(s.Path), filepath.Base(s.Path)+".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), s.Path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", s.Path, err), os.Remove(file.Name()))
	}
	return nil
}
