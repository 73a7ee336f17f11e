// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const gatewayAPIVersion = "gateway.networking.k8s.io/bundle-version"

func (c *Cluster) installGatewayAPI(ctx context.Context) error {
	var kinds metav1.PartialObjectMetadataList
	if err := c.Get(ctx, &kinds, "customresourcedefinitions"); err != nil {
		return err
	}
	for _, kind := range kinds.Items {
		if strings.HasSuffix(kind.Name, ".gateway.networking.k8s.io") {
			fmt.Fprintf(c.progress, "Gateway API %s is there\n", kind.Annotations[gatewayAPIVersion])
			return nil
		}
	}
	if _, err := c.Kubectl(ctx, "create", "-k", filepath.Join(c.root, "config", "gateway-api", "experimental")); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinition",
		"gatewayclasses.gateway.networking.k8s.io", "gateways.gateway.networking.k8s.io", "httproutes.gateway.networking.k8s.io")
	return err
}
