// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
)

// Options of the controllers.
type Options struct {
	// DefaultLoadBalancer makes Services without a loadBalancerClass ours too.
	DefaultLoadBalancer bool
}

// Setup adds all controllers to a manager.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := setupServices(mgr, options.DefaultLoadBalancer); err != nil {
		return fmt.Errorf("setting up the controller of Services: %w", err)
	}
	if err := setupVIPs(ctx, mgr); err != nil {
		return fmt.Errorf("setting up the controller of VIPs: %w", err)
	}
	for name, setup := range map[string]func(ctrl.Manager) error{
		"IPPools": setupPools, "BGPPeers and BGPAdvertisements": setupRouting, "LBNodes": setupLBNodes,
	} {
		if err := setup(mgr); err != nil {
			return fmt.Errorf("setting up the controller of %s: %w", name, err)
		}
	}
	return nil
}
