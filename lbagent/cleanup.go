// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/history/recorder"
	"github.com/millrace-lb/millrace/lbagent/internal/natexempt"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

// Cleanup uninstalls Millrace from the node: it detaches the programs from all interfaces and removes the
// maps, the nftables rule, the managed neighbour entries, the history and the checkpoint. It first waits for
// the agent to terminate, which would restore them.
func Cleanup(ctx context.Context, pinRoot, stateDir string, logger logr.Logger) error {
	lock, err := lockDataplane(ctx, pinRoot, logger)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err = dataplane.Remove(pinRoot); err != nil {
		err = fmt.Errorf("remove the data plane below %s: %w", pinRoot, err)
	}
	if stateDir != "" {
		err = errors.Join(err, recorder.Remove(stateDir), checkpoint.Remove(stateDir))
	}
	return errors.Join(err, natexempt.Remove(), netdev.RemoveNeighbours())
}

// CheckClean returns an error while anything that Cleanup removes is present.
func CheckClean(pinRoot string) error {
	_, err := os.Lstat(pinRoot)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.Join(checkTable(), checkNeighbours())
	case err != nil:
		return fmt.Errorf("look for maps of the data plane at %s: %w", pinRoot, err)
	}
	return fmt.Errorf("maps of the data plane are still pinned at %s: run cleanup after the agent has exited", pinRoot)
}

func checkTable() error {
	left, err := natexempt.Exists()
	if left {
		err = fmt.Errorf("the table %s is still in nftables: run cleanup after the agent has exited", natexempt.Table)
	}
	return err
}

func checkNeighbours() error {
	kept, err := netdev.ManagedNeighbours()
	if len(kept) > 0 {
		err = fmt.Errorf("the kernel still keeps %d neighbours resolved, such as %s: run cleanup after the agent has exited",
			len(kept), kept[0].Address)
	}
	return err
}
