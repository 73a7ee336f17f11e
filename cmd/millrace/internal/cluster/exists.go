// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
)

// CheckNamespace returns an *apierror.Missing if the namespace does not exist, and nil if that is unknown:
// the next request reports other errors.
func CheckNamespace(ctx context.Context, config Config, name string) error {
	restConfig, reader, err := config.client()
	if err != nil {
		return nil //nolint:nilerr // The next request returns it.
	}
	err = reader.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
	if err == nil {
		return nil
	}
	if missing := (*apierror.Missing)(nil); errors.As(config.explainServer(ctx, restConfig.Host, err), &missing) {
		return missing
	}
	return nil
}

// CheckVIP returns an *apierror.Missing if no listed VIP has the address.
func CheckVIP(ctx context.Context, config Config, address netip.Addr) error {
	vips, err := VIPs(ctx, config)
	if err != nil {
		return nil //nolint:nilerr // A user may see the traffic of a namespace without a right to list VIPs.
	}
	existing := make([]string, 0, len(vips))
	for i := range vips {
		existing = append(existing, vips[i].Spec.Address)
	}
	if !slices.Contains(existing, address.String()) {
		return &apierror.Missing{Kind: "VIP", Name: address.String(), Names: existing}
	}
	return nil
}

// HasPeer returns an error if an LBPeer does not exist.
func HasPeer(ctx context.Context, config Config, names []string) error {
	var peers millracev1beta1.LBPeerList
	if err := readList(ctx, config, &peers); err != nil {
		return err
	}
	existing := make([]string, 0, len(peers.Items))
	for i := range peers.Items {
		existing = append(existing, peers.Items[i].Name)
	}
	for _, name := range names {
		if !slices.Contains(existing, name) {
			return &apierror.Missing{Kind: "LBPeer", Name: name, Names: existing}
		}
	}
	return nil
}
