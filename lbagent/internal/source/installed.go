// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/millrace-lb/millrace/api/desired"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// +kubebuilder:rbac:groups=apps,namespace=millrace-system,resources=daemonsets,resourceNames=millrace-agent,verbs=get

const agents = "millrace-agent"

// Installed reports whether the agents' DaemonSet exists and is not being deleted.
func (c *Clients) Installed(ctx context.Context) (bool, error) {
	set := &appsv1.DaemonSet{}
	path := fmt.Sprintf("/apis/%s/namespaces/%s/daemonsets/%s", appsv1.SchemeGroupVersion, tunnelkey.Namespace, agents)
	err := c.Core.Get().AbsPath(path).Do(ctx).Into(set)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get DaemonSet %s/%s: %w", tunnelkey.Namespace, agents, err)
	}
	return set.DeletionTimestamp == nil, nil
}

// ShutsDown returns a function that reports whether kubelet's graceful node shutdown has begun.
func (c *Clients) ShutsDown(nodeName string) func(ctx context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		node := &corev1.Node{}
		if err := c.Core.Get().Resource("nodes").Name(nodeName).Do(ctx).Into(node); err != nil {
			return false, fmt.Errorf("get Node %s: %w", nodeName, err)
		}
		return desired.NodeDrainReason(node) == millracev1beta1.DrainReasonShuttingDown, nil
	}
}
