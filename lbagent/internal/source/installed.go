// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/millrace-lb/millrace/api/tunnelkey"
)

// +kubebuilder:rbac:groups=apps,namespace=millrace-system,resources=daemonsets,resourceNames=millrace-agent,verbs=get

// agents is the name of the DaemonSet of the agents.
const agents = "millrace-agent"

// Installed reports whether the DaemonSet of the agents is there, and is to stay.
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
