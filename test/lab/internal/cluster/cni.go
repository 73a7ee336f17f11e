// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// introduceCNI gives the cluster what the daemons of its CNI wait for: their rights, and
// each node's pod networks.
func (l *Lab) introduceCNI(ctx context.Context) error {
	manifests, err := l.Manifests()
	if err != nil {
		return err
	}
	if err := writeFiles(manifests, 0o644); err != nil {
		return err
	}
	for _, manifest := range manifests {
		if err := l.apply(ctx, manifest.Path); err != nil {
			return err
		}
	}
	if !l.CNI.NeedsPodCIDRs() {
		return nil
	}
	client, err := l.client()
	if err != nil {
		return err
	}
	for _, node := range l.Topology.WithRole(topology.RoleNode) {
		if err := l.assignPodCIDRs(ctx, client, node); err != nil {
			return err
		}
	}
	return nil
}

// apply creates the objects of a manifest.
func (l *Lab) apply(ctx context.Context, path string) error {
	command := exec.CommandContext(ctx, l.Kubernetes(), "kubectl", "apply", "-f", path)
	command.Env = append(os.Environ(), "KUBECONFIG="+l.Kubeconfig(config.Admin), "KUBERC=off")
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := netns.Do(config.Namespace(l.Topology.ControlPlane().Name), command.Run)
	if err != nil {
		return fmt.Errorf("apply %s: %w: %s", path, err, output.Bytes())
	}
	return nil
}

// assignPodCIDRs writes the planned pod networks into a Node, once its kubelet has made it. The
// controller manager would give them out in the order in which nodes appear.
func (l *Lab) assignPodCIDRs(ctx context.Context, client *http.Client, host topology.Host) error {
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"podCIDR": host.PodCIDRs[0], "podCIDRs": host.PodCIDRs,
	}})
	if err != nil {
		return fmt.Errorf("encode pod networks of %s: %w", host.Name, err)
	}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodPatch, l.Server()+"/api/v1/nodes/"+host.Name, bytes.NewReader(patch))
		if err != nil {
			return fmt.Errorf("give node %s its pod networks: %w", host.Name, err)
		}
		request.Header.Set("Content-Type", "application/strategic-merge-patch+json")
		body, err := ask(client, request)
		if err == nil {
			return body.Close()
		}
		if !errors.Is(err, errNotFound) {
			return fmt.Errorf("give node %s its pod networks: %w", host.Name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("there is no Node %s (%w): see %s", host.Name, ctx.Err(), l.logs(host.Name))
		case <-time.After(pollInterval):
		}
	}
}
