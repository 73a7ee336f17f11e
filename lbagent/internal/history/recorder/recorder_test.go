// SPDX-License-Identifier: Apache-2.0

package recorder

import (
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

// Where no history can be kept, passes are taken all the same, and those who ask hear why.
func TestNoHistory(t *testing.T) {
	occupied := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(occupied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, directory := range []string{"", filepath.Dir(occupied)} {
		r := New(directory, Source{}, logr.Discard())
		r.See(time.Now(), &model.Model{}, &status.Observation{}, nil)
		if history, err := r.Ask(&consoleapi.HistoryQuery{}); err == nil {
			t.Errorf("directory %q: history %+v, want an error", directory, history)
		}
		if err := r.Run(t.Context(), "v1"); err != nil {
			t.Errorf("directory %q: %v", directory, err)
		}
		if got := r.Metrics(); got.Bytes != 0 || got.Unwritten != 0 || len(got.LeftOut) != 0 {
			t.Errorf("directory %q: metrics %+v, want %+v", directory, got, metrics.History{})
		}
	}
}
