// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// name is that of the file in its directory.
const name = "objects"

// Store is a directory with the checkpoint of a node in one boot.
type Store struct {
	path             string
	bootID, nodeName string
}

// errDisk is why nothing is kept in a directory.
var errDisk = errors.New("it is not in a tmpfs: passwords do not go to a disk")

// Open returns the Store in a directory, which it makes where it is missing. The directory must
// be in memory (tmpfs), for two reasons: a reboot takes it away together with the pinned maps,
// and no password of a BGP session gets to a disk. There it is as safe as in the Secrets that
// the kubelet mounts: root of the node alone can read it, who can read the agent's memory too.
// One that cannot be made now may be by the next Save.
func Open(directory, bootID, nodeName string) (*Store, error) {
	s := &Store{path: filepath.Join(directory, name), bootID: bootID, nodeName: nodeName}
	if err := s.prepare(); errors.Is(err, errDisk) {
		return nil, err
	}
	return s, nil
}

// prepare makes the directory, and looks where it is.
func (s *Store) prepare() error {
	directory := filepath.Dir(s.path)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("make the directory of the checkpoint: %w", err)
	}
	var system unix.Statfs_t
	if err := unix.Statfs(directory, &system); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", directory, err)
	}
	if system.Type != unix.TMPFS_MAGIC && system.Type != unix.RAMFS_MAGIC {
		return fmt.Errorf("%s: %w", directory, errDisk)
	}
	return nil
}

// Load returns what was saved last; nil where nothing was. What cannot be read, is damaged, or
// is of another boot or node is an error, and stays until the next Save.
func (s *Store) Load() (*State, error) {
	file, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the checkpoint: %w", err)
	}
	state, err := decode(file, s.bootID, s.nodeName)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", s.path, err)
	}
	return state, nil
}

// Save replaces what was saved before. A reader finds all of the one or of the other. Without room
// for both, what was saved before stays.
func (s *Store) Save(state State) error {
	file, err := encode(state, s.bootID)
	if err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	temporary := s.path + ".new"
	// One that an agent before left half written may have other rights.
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	err = os.WriteFile(temporary, file, 0o600)
	if err == nil {
		err = os.Rename(temporary, s.path)
	}
	if err != nil {
		// The half of it would take the room that others need.
		_ = os.Remove(temporary)
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

// Remove removes what was saved in a directory, and that where it is empty.
func Remove(directory string) error {
	for _, path := range []string{filepath.Join(directory, name), filepath.Join(directory, name+".new")} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the checkpoint: %w", err)
		}
	}
	// It may be a mount, or have files of others.
	_ = os.Remove(directory)
	return nil
}
