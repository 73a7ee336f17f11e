// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/operator/internal/desired"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// maxNamed is how many addresses or Services a text names.
const maxNamed = 5

// poolReconciler writes the status of all IPPools at once: whether one is
// valid depends on the others.
type poolReconciler struct {
	client client.Client
}

func setupPools(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("ippool").
		Watches(&millracev1alpha1.IPPool{}, gathered()).
		Watches(&millracev1alpha1.VIP{}, gathered()).
		Complete(&poolReconciler{client: mgr.GetClient()})
}

// Reconcile writes what changed in the statuses of pools.
func (r *poolReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	list := &millracev1alpha1.IPPoolList{}
	if err := r.client.List(ctx, list); err != nil {
		return ctrl.Result{}, fmt.Errorf("listing IPPools: %w", err)
	}
	vips, err := r.vips(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	pools, found := desired.Pools(list.Items)
	usable := map[string]*desired.Pool{}
	for i := range pools {
		usable[pools[i].Name] = &pools[i]
	}
	problems := byObject(found)
	var failed []error
	for i := range list.Items {
		object := &list.Items[i]
		base := object.DeepCopy()
		usage := desired.UsageOf(object.Name, usable[object.Name], vips)
		object.Status.Assigned, object.Status.Free = usage.Assigned, usage.Free
		setReady(&object.Status.Conditions, readyCondition(object.Generation, problems[object.Name], strayNote(usage.Stray)))
		err := patchStatus(ctx, r.client, base, object, func(p *millracev1alpha1.IPPool) any { return p.Status })
		failed = append(failed, client.IgnoreNotFound(err))
	}
	return ctrl.Result{}, errors.Join(failed...)
}

func (r *poolReconciler) vips(ctx context.Context) ([]ipam.VIP, error) {
	list := &millracev1alpha1.VIPList{}
	if err := r.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing VIPs: %w", err)
	}
	vips := make([]ipam.VIP, 0, len(list.Items))
	for i := range list.Items {
		if address, ok := addressOf(&list.Items[i]); ok {
			vips = append(vips, vipOf(address, &list.Items[i]))
		}
	}
	return vips, nil
}

func strayNote(stray []netip.Addr) string {
	if len(stray) == 0 {
		return ""
	}
	var names []string
	for _, address := range stray[:min(len(stray), maxNamed)] {
		names = append(names, address.String())
	}
	if len(stray) > maxNamed {
		names = append(names, "...")
	}
	return fmt.Sprintf("%d assigned addresses are not in the pool any longer and stay until they are released: %s",
		len(stray), strings.Join(names, ", "))
}
