// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	"k8s.io/client-go/dynamic"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/sysdump"
)

// SysdumpCluster returns the input of a dump of the cluster.
func SysdumpCluster(ctx context.Context, config Config, version string) (sysdump.Cluster, error) {
	restConfig, clients, err := config.clients()
	if err != nil {
		return sysdump.Cluster{}, err
	}
	// Requests to about a hundred nodes run at once.
	restConfig.QPS, restConfig.Burst = 100, 200
	objects, err := dynamic.NewForConfig(restConfig)
	if err != nil {
		return sysdump.Cluster{}, fmt.Errorf("create client for %s: %w", restConfig.Host, err)
	}
	if _, err := clients.Discovery().ServerVersion(); err != nil {
		return sysdump.Cluster{}, config.explain(restConfig.Host, err)
	}
	of := sysdump.Cluster{Objects: objects, Clients: clients, Namespace: config.Namespace, Version: version}
	agents, err := FindAgents(ctx, config)
	if err != nil {
		of.Why = err
	} else {
		of.Agents = agents
	}
	return of, nil
}
