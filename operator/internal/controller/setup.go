// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/convert"
)

// Options of the controllers.
type Options struct {
	// LoadBalancerClass is the class of the Services that are ours; empty: millrace.io/lb.
	LoadBalancerClass string
	// DefaultLoadBalancer makes Services without a loadBalancerClass ours too.
	DefaultLoadBalancer bool
	// Reading says how Services are read.
	Reading convert.Reading
	// ReleaseDelay is how long the address of a Service that is deleted, or has another one
	// instead, is still announced as one to be left. Zero: not at all.
	ReleaseDelay time.Duration
}

// Setup adds the controllers to a manager, all but those of packages nodes and routing.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	if err := setupServices(mgr, options); err != nil {
		return fmt.Errorf("setting up the controller of Services: %w", err)
	}
	if err := setupVIPs(ctx, mgr); err != nil {
		return fmt.Errorf("setting up the controller of VIPs: %w", err)
	}
	for name, setup := range map[string]func(ctrl.Manager) error{
		"VIPPools": setupPools, "metrics": setupMetrics,
	} {
		if err := setup(mgr); err != nil {
			return fmt.Errorf("setting up the controller of %s: %w", name, err)
		}
	}
	return fillCaches(ctx, mgr)
}

// fillCaches has a replica that waits read what there may be much of, so that it need not once it
// leads. Its controllers do not start before (EnableWarmup): queues, and the line of those that
// wait, would grow for as long as nobody works on them.
func fillCaches(ctx context.Context, mgr ctrl.Manager) error {
	for _, object := range []client.Object{
		&corev1.Service{}, &corev1.Node{}, control.NamespaceMetadata(), &millracev1beta1.VIP{}, &millracev1beta1.VIPPool{},
		&millracev1beta1.VIPAdvertisement{}, &millracev1beta1.LBPeer{}, &millracev1beta1.LBNode{}, &millracev1beta1.LBNodeReport{},
	} {
		// The manager fills it when it starts.
		if _, err := mgr.GetCache().GetInformer(ctx, object); err != nil {
			return fmt.Errorf("setting up the cache of %T: %w", object, err)
		}
	}
	return nil
}
