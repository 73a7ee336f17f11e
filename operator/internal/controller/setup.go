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

// Options configures the controllers.
type Options struct {
	LoadBalancerClass string
	// DefaultLoadBalancer also serves Services without a loadBalancerClass.
	DefaultLoadBalancer bool
	Parser              convert.Parser
	// ReleaseDelay is how long a released address is still announced with low preference, or 0.
	ReleaseDelay time.Duration
}

// Setup adds the controllers to a manager, except those of packages nodes and routing.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options) error {
	announcements := newAnnouncements()
	if err := setupServices(mgr, options, announcements); err != nil {
		return fmt.Errorf("set up the controller of Services: %w", err)
	}
	if err := setupVIPs(ctx, mgr, announcements); err != nil {
		return fmt.Errorf("set up the controller of VIPs: %w", err)
	}
	for name, setup := range map[string]func(ctrl.Manager) error{
		"VIPPools": setupPools, "metrics": setupMetrics,
	} {
		if err := setup(mgr); err != nil {
			return fmt.Errorf("set up the controller of %s: %w", name, err)
		}
	}
	return fillCaches(ctx, mgr)
}

// fillCaches makes standby replicas cache the numerous objects, so that a new leader does not list them.
// EnableWarmup would start controllers, whose queues grow without workers.
func fillCaches(ctx context.Context, mgr ctrl.Manager) error {
	for _, object := range []client.Object{
		&corev1.Service{}, &corev1.Node{}, control.NamespaceMetadata(), &millracev1beta1.VIP{}, &millracev1beta1.VIPPool{},
		&millracev1beta1.VIPAdvertisement{}, &millracev1beta1.LBPeer{}, &millracev1beta1.LBNode{}, &millracev1beta1.LBNodeReport{},
	} {
		if _, err := mgr.GetCache().GetInformer(ctx, object); err != nil {
			return fmt.Errorf("set up the cache of %T: %w", object, err)
		}
	}
	return nil
}
