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

const name = "objects"

// Store is a directory with the checkpoint of a node in one boot.
type Store struct {
	path             string
	bootID, nodeName string
}

var errDisk = errors.New("it is not on a tmpfs: passwords are not written to disk")

// Open returns the Store in a directory, which must be in memory (tmpfs), so that a reboot removes it with
// the pinned maps and no BGP password reaches a disk. Only root can read the file. If the directory cannot
// be created, the next Save tries again.
func Open(directory, bootID, nodeName string) (*Store, error) {
	s := &Store{path: filepath.Join(directory, name), bootID: bootID, nodeName: nodeName}
	if err := s.prepare(); errors.Is(err, errDisk) {
		return nil, err
	}
	return s, nil
}

func (s *Store) prepare() error {
	directory := filepath.Dir(s.path)
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return fmt.Errorf("create the directory of the checkpoint: %w", err)
	}
	var system unix.Statfs_t
	if err := unix.Statfs(directory, &system); err != nil {
		return fmt.Errorf("stat the file system of %s: %w", directory, err)
	}
	if system.Type != unix.TMPFS_MAGIC && system.Type != unix.RAMFS_MAGIC {
		return fmt.Errorf("%s: %w", directory, errDisk)
	}
	return nil
}

// Load returns the saved state, or nil. A file that is unreadable, damaged, or of another boot or node is
// an error, and remains until the next Save.
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

// Save replaces the saved state atomically. If there is no room for both, the previous state remains.
func (s *Store) Save(state State) error {
	file, err := encode(state, s.bootID)
	if err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	temporary := s.path + ".new"
	// A partial file of a previous agent may have other permissions.
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	err = os.WriteFile(temporary, file, 0o600)
	if err == nil {
		err = os.Rename(temporary, s.path)
	}
	if err != nil {
		_ = os.Remove(temporary)
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	return nil
}

// Remove removes the saved state of a directory, and the directory if it is empty.
func Remove(directory string) error {
	for _, path := range []string{filepath.Join(directory, name), filepath.Join(directory, name+".new")} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the checkpoint: %w", err)
		}
	}
	// It may be a mount point, or contain other files.
	_ = os.Remove(directory)
	return nil
}
