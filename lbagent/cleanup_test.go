// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/history/recorder"
	"github.com/millrace-lb/millrace/test/isolated"
)

// A running agent restores its nftables rule, so cleanup waits for its end.
func TestCleanupWaitsForTheAgent(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	root := filepath.Join(t.TempDir(), "millrace")
	agent, err := dataplane.Lock(t.Context(), root, func() {})
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancelCause(t.Context())
	errEnded := errors.New("cleanup was canceled")
	end(errEnded)
	if err := Cleanup(ended, root, "", logr.Discard()); !errors.Is(err, errEnded) {
		t.Errorf("with a running agent: error %v, want %v", err, errEnded)
	}
	if _, err := os.Stat(root); err != nil {
		t.Errorf("with a running agent: %v", err)
	}
	if err := agent.Close(); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	recorder.New(state, recorder.Source{}, logr.Discard())
	if _, err := os.Stat(state); err != nil {
		t.Fatal(err)
	}
	if err := Cleanup(t.Context(), root, state, logr.Discard()); err != nil {
		t.Errorf("after the agent has exited: %v", err)
	}
	if _, err := os.Lstat(state); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("state after the agent has exited: %v", err)
	}
	if err := CheckClean(root); err != nil {
		t.Errorf("after the agent has exited: %v", err)
	}
}
