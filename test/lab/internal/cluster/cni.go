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
	"strings"
	"time"

	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

const kindsTimeout = time.Minute

// introduceCNI creates the RBAC objects of the CNI's daemons and sets the nodes' pod networks.
func (l *Lab) introduceCNI(ctx context.Context) error {
	paths, files, err := l.Manifests()
	if err != nil {
		return err
	}
	if err := writeFiles(files, 0o644); err != nil {
		return err
	}
	for _, path := range paths {
		if err := l.apply(ctx, path); err != nil {
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

// apply creates a manifest's objects and retries while their kinds are not served yet.
func (l *Lab) apply(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, kindsTimeout)
	defer cancel()
	for {
		err := l.applyOnce(ctx, path)
		if err == nil || !strings.Contains(err.Error(), "no matches for kind") {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pollInterval):
		}
	}
}

func (l *Lab) applyOnce(ctx context.Context, path string) error {
	command := exec.CommandContext(ctx, l.Kubernetes(), "kubectl", "apply", "--server-side", "-f", path)
	command.Env = append(os.Environ(), "KUBECONFIG="+l.Kubeconfig(config.Admin), "KUBERC=off")
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := netns.Do(config.Namespace(l.Topology.ControlPlane().Name), command.Run)
	if err != nil {
		return fmt.Errorf("apply %s: %w: %s", path, err, output.Bytes())
	}
	return nil
}

// assignPodCIDRs sets the planned pod networks of a Node after its creation. The controller manager would
// assign them in order of appearance.
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
			return fmt.Errorf("assign pod networks to node %s: %w", host.Name, err)
		}
		request.Header.Set("Content-Type", "application/strategic-merge-patch+json")
		body, err := doRequest(client, request)
		if err == nil {
			return body.Close()
		}
		if !errors.Is(err, errNotFound) {
			return fmt.Errorf("assign pod networks to node %s: %w", host.Name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("there is no Node %s (%w): see %s", host.Name, ctx.Err(), l.logs(host.Name))
		case <-time.After(pollInterval):
		}
	}
}
