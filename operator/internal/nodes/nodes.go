// SPDX-License-Identifier: Apache-2.0

// Package nodes implements the controllers of LBNodes, of LBNodeReports of nodes that are not ready, and of the
// tunnel keys.
package nodes

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/millrace-lb/millrace/operator/internal/rotation"
)

const (
	actionNumber = "AssignNodeID"
	actionRotate = "RotateTunnelKey"
)

// workers is the number of concurrent reconciliations, which mostly wait for the API server.
const workers = 8

// Options configures the controllers.
type Options struct {
	Namespace string
	TunnelKey rotation.Settings
}

// Setup adds the controllers of nodes to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := setupLBNodes(ctx, mgr, options.Namespace); err != nil {
		return fmt.Errorf("set up the controller of LBNodes: %w", err)
	}
	if err := setupReports(mgr); err != nil {
		return fmt.Errorf("set up the controller of LBNodeReports: %w", err)
	}
	if err := setupTunnelKey(mgr, options.TunnelKey); err != nil {
		return fmt.Errorf("set up the controller of the tunnel's key: %w", err)
	}
	return nil
}
