// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"bufio"
	"errors"
	"fmt"
	"io"
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
	file, err := os.CreateTemp(filepath.Dir(s.Path), filepath.Base(s.Path)+".new-*")
	if err != nil {
		return err
	}
	if err = errors.Join(write(file, update, versions), file.Close()); err == nil {
		err = os.Rename(file.Name(), s.Path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replace %s: %w", s.Path, err), os.Remove(file.Name()))
	}
	return nil
}

// write writes a response resource by resource: parts of a message one after another are the
// message. All at once would take as much memory again as the configuration has.
func write(to io.Writer, update Update, versions map[string]string) error {
	buffered := bufio.NewWriter(to)
	var message []byte
	add := func(part *discovery.DeltaDiscoveryResponse) (err error) {
		if message, err = (proto.MarshalOptions{}).MarshalAppend(message[:0], part); err == nil {
			_, err = buffered.Write(message)
		}
		return err
	}
	if err := add(&discovery.DeltaDiscoveryResponse{TypeUrl: TypeURL, SystemVersionInfo: update.Version}); err != nil {
		return err
	}
	packed := &anypb.Any{TypeUrl: TypeURL}
	one := &discovery.Resource{Resource: packed}
	part := &discovery.DeltaDiscoveryResponse{Resources: []*discovery.Resource{one}}
	for name, r := range update.Resources {
		var err error
		if packed.Value, err = (proto.MarshalOptions{}).MarshalAppend(packed.Value[:0], r); err != nil {
			return fmt.Errorf("write the resource %q: %w", name, err)
		}
		one.Name, one.Version = name, versions[name]
		if err := add(part); err != nil {
			return err
		}
	}
	return buffered.Flush()
}
