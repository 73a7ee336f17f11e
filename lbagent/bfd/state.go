// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd/engine"
)

// state is the content of the file, which does not outlive a boot and contains no secret.
type state struct {
	// Until is the end of the peers' detection time.
	Until    time.Time
	Sessions []engine.Saved
}

// reserved is the preallocated size in bytes, enough for 64 sessions.
const reserved = 64 << 10

func next(path string) string { return path + ".new" }

// reserve preallocates the file: a failed save would reset the sessions of peers, which were asked to wait.
func reserve(path string) error {
	if info, err := os.Stat(next(path)); err == nil && info.Size() >= reserved {
		return nil
	}
	if err := os.WriteFile(next(path), make([]byte, reserved), 0o600); err != nil {
		return fmt.Errorf("reserve space for saved sessions: %w", err)
	}
	return nil
}

func save(path string, sessions []engine.Saved, until time.Time) error {
	content, err := json.Marshal(state{until, sessions})
	if err != nil {
		return fmt.Errorf("encode sessions: %w", err)
	}
	// Overwritten in place, which retains the allocation.
	file, err := os.OpenFile(next(path), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("save sessions for the next process: %w", err)
	}
	_, err = file.WriteAt(content, 0)
	if err := errors.Join(err, file.Truncate(int64(len(content))), file.Close()); err != nil {
		return fmt.Errorf("save sessions for the next process: %w", err)
	}
	if err := os.Rename(next(path), path); err != nil {
		return fmt.Errorf("save sessions for the next process: %w", err)
	}
	return nil
}

// load returns the sessions of the previous process and deletes the file, because they are valid only once.
func load(path string, now time.Time) ([]engine.Saved, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read saved sessions: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return nil, fmt.Errorf("remove saved sessions: %w", err)
	}
	var saved state
	if err := json.Unmarshal(content, &saved); err != nil {
		return nil, fmt.Errorf("decode saved sessions in %s: %w", path, err)
	}
	if now.After(saved.Until) {
		return nil, nil
	}
	return saved.Sessions, nil
}
