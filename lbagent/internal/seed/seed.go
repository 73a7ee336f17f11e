// SPDX-License-Identifier: Apache-2.0

// Package seed determines the node's seed of the flow hash, which must be equal on all nodes.
package seed

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
)

const (
	// readTimeout bounds one read of the Secret.
	readTimeout   = 2 * time.Second
	retryInterval = time.Second
)

// ForNode returns the seed of the Secret or, if it cannot be read, that of the pinned maps. Without either
// it waits until ctx is done.
func ForNode(
	ctx context.Context, pinRoot string, read func(context.Context) (*tunnelkey.State, error), logger logr.Logger,
) (flowhash.Seed, error) {
	pinned, found, err := dataplane.PinnedSeed(pinRoot)
	if err != nil {
		return pinned, err
	}
	var had *flowhash.Seed
	if found {
		had = &pinned
	}
	return choose(ctx, had, read, logger)
}

// choose waits for the Secret if pinned is nil. With a guessed seed, this node would send the connections of
// other nodes to other endpoints.
func choose(
	ctx context.Context, pinned *flowhash.Seed, read func(context.Context) (*tunnelkey.State, error), logger logr.Logger,
) (flowhash.Seed, error) {
	said := ""
	for {
		limited, cancel := context.WithTimeout(ctx, readTimeout)
		state, err := read(limited)
		cancel()
		switch {
		case err == nil && pinned != nil && *pinned != state.Seed:
			logger.Info("The Secret has another seed of the flow hash: the maps are rebuilt", "pinned", *pinned, "secret", state.Seed)
			return state.Seed, nil
		case err == nil:
			return state.Seed, nil
		case pinned != nil:
			logger.Info("Continuing with the seed of the pinned maps", "pinned", *pinned, "reason", err.Error())
			return *pinned, nil
		case err.Error() != said:
			said = err.Error()
			logger.Info("Waiting for the seed of the flow hash: this node has no pinned maps", "reason", said)
		}
		timer := time.NewTimer(retryInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return flowhash.Seed{}, context.Cause(ctx)
		case <-timer.C:
		}
	}
}
