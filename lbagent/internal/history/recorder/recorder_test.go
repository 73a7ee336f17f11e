// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
)

// TestNoHistory checks that without a history passes are accepted, and that queries return the reason.
func TestNoHistory(t *testing.T) {
	occupied := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(occupied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, directory := range []string{"", filepath.Dir(occupied)} {
		r := New(directory, Source{}, logr.Discard())
		r.Observe(time.Now(), &model.Model{}, &status.Observation{}, nil)
		if history, err := r.Query(&consoleapi.HistoryQuery{}); err == nil {
			t.Errorf("directory %q: history %+v, want an error", directory, history)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Run(ended, "v1"); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("directory %q: %v", directory, err)
		}
		if got := r.Metrics(); got.Bytes != 0 || got.Unwritten != 0 || len(got.Dropped) != 0 {
			t.Errorf("directory %q: metrics %+v, want %+v", directory, got, metrics.History{})
		}
	}
}

// TestHistoryLater checks that a history that could not be opened is opened once there is room.
func TestHistoryLater(t *testing.T) {
	occupied := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(occupied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := New(filepath.Dir(occupied), Source{}, logr.Discard())
	if r.open() || r.records() {
		t.Error("records history to a file instead of a directory")
	}
	if err := os.Remove(occupied); err != nil {
		t.Fatal(err)
	}
	if !r.open() || r.open() || !r.records() {
		t.Error("does not record history")
	}
	defer r.close()
	if _, err := r.Query(&consoleapi.HistoryQuery{}); err != nil {
		t.Error(err)
	}
}
