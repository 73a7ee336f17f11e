// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/reserve"
)

// maxTries limits retries after the chosen address was taken by another client.
const maxTries = 20

// Reserve creates a VIP with a free address of a pool, for a Service or, with an empty name, for any that
// requests it. The name is the address, so the API server rejects used addresses.
func Reserve(ctx context.Context, config Config, pool, family string, service types.NamespacedName) (netip.Addr, error) {
	restConfig, reader, err := config.client()
	if err != nil {
		return netip.Addr{}, err
	}
	scheme, mapper, err := kinds()
	if err != nil {
		return netip.Addr{}, err
	}
	writer, err := client.New(restConfig, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("create client for %s: %w", restConfig.Host, err)
	}
	var pools millracev1beta1.VIPPoolList
	if err := reader.List(ctx, &pools); err != nil {
		return netip.Addr{}, config.explain(restConfig.Host, err)
	}
	object := poolNamed(pools.Items, pool)
	if object == nil {
		missing := &apierror.Missing{Kind: "VIPPool", Name: pool}
		for i := range pools.Items {
			missing.Names = append(missing.Names, pools.Items[i].Name)
		}
		return netip.Addr{}, missing
	}
	for range maxTries {
		var vips millracev1beta1.VIPList
		if err := reader.List(ctx, &vips); err != nil {
			return netip.Addr{}, config.explain(restConfig.Host, err)
		}
		address, err := reserve.Next(object, vips.Items, family)
		if err != nil {
			return netip.Addr{}, err
		}
		err = writer.Create(ctx, reservation(address, pool, service))
		if err == nil {
			return address, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return netip.Addr{}, config.explain(restConfig.Host, err)
		}
	}
	return netip.Addr{}, fmt.Errorf("other clients took the chosen address of VIPPool %s %d times: retry", pool, maxTries)
}

func poolNamed(pools []millracev1beta1.VIPPool, name string) *millracev1beta1.VIPPool {
	for i := range pools {
		if pools[i].Name == name {
			return &pools[i]
		}
	}
	return nil
}

// reservation returns a VIP that outlives its Service.
func reservation(address netip.Addr, pool string, service types.NamespacedName) *millracev1beta1.VIP {
	vip := &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(address)},
		Spec: millracev1beta1.VIPSpec{
			Address: address.String(), Pool: pool, ReclaimPolicy: millracev1beta1.ReclaimRetain,
		},
	}
	if service.Name != "" {
		vip.Spec.Claims = []millracev1beta1.VIPClaim{{Namespace: service.Namespace, Name: service.Name}}
	}
	return vip
}
