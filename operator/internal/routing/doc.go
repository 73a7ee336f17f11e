// SPDX-License-Identifier: Apache-2.0

// Package routing writes the statuses of LBPeers and VIPAdvertisements and emits events about BGP sessions.
package routing

import (
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
)

// Setup adds the controllers to a manager.
func Setup(mgr ctrl.Manager) error {
	if err := setupObjects(mgr); err != nil {
		return fmt.Errorf("set up the controller of LBPeers and VIPAdvertisements: %w", err)
	}
	if err := setupSessions(mgr); err != nil {
		return fmt.Errorf("set up the controller of BGP sessions: %w", err)
	}
	if err := setupCounts(mgr); err != nil {
		return fmt.Errorf("set up the controller of session counts: %w", err)
	}
	return nil
}
