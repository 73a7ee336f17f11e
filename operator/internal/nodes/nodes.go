// SPDX-License-Identifier: Apache-2.0

// Package nodes keeps what the operator says of nodes: their LBNodes with ids, their LBNodeReports where
// the agent cannot, and the keys of the tunnel between them.
package nodes

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millrace-lb/millrace/operator/internal/rotation"
)

// Actions of events about nodes.
const (
	actionNumber = "AssignNodeID"
	actionRotate = "RotateTunnelKey"
)

// workers is how many nodes are reconciled at once. They wait for the API server.
const workers = 8

// Options of the controllers of nodes.
type Options struct {
	// Namespace is where the operator keeps what must outlive it.
	Namespace string
	// TunnelKey says when the key of the tunnel is replaced.
	TunnelKey rotation.Settings
}

// Setup adds the controllers of nodes to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := setupLBNodes(ctx, mgr, options.Namespace); err != nil {
		return fmt.Errorf("setting up the controller of LBNodes: %w", err)
	}
	if err := setupReports(mgr); err != nil {
		return fmt.Errorf("setting up the controller of LBNodeReports: %w", err)
	}
	if err := setupTunnelKey(mgr, options.TunnelKey); err != nil {
		return fmt.Errorf("setting up the controller of the tunnel's key: %w", err)
	}
	return nil
}
