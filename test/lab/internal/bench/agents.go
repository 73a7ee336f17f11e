// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
)

// transmitFlag enables XDP transmission on veths. The lab's links have XDP programs at their far ends.
const transmitFlag = "--veth-transmit"

// operation is a JSON patch operation (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value string `json:"value,omitempty"`
}

func (b *bench) letXDPSend(ctx context.Context) error {
	var agents appsv1.DaemonSet
	if err := b.cluster.Get(ctx, &agents, "-n", "millrace-system", "daemonset", "millrace-agent"); err != nil {
		return err
	}
	add, remove := flagPatches(agents.Spec.Template.Spec.Containers[0].Args)
	if add == nil {
		return nil
	}
	fmt.Fprintln(b.out, "letting the agents send by XDP …")
	b.letKernelSend = func(ctx context.Context) error { return b.patchAgents(ctx, remove) }
	return b.patchAgents(ctx, add)
}

// flagPatches returns patches that add the flag to the first container and remove it, or nil if it is set.
func flagPatches(args []string) (add, remove []operation) {
	const path = "/spec/template/spec/containers/0/args/"
	if slices.Contains(args, transmitFlag) {
		return nil, nil
	}
	last := fmt.Sprintf("%s%d", path, len(args))
	return []operation{{"add", path + "-", transmitFlag}}, []operation{{"test", last, transmitFlag}, {"remove", last, ""}}
}

func (b *bench) patchAgents(ctx context.Context, patch []operation) error {
	raw, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, err = b.cluster.Kubectl(ctx, "-n", "millrace-system", "patch", "daemonset", "millrace-agent", "--type=json", "-p", string(raw))
	if err != nil {
		return err
	}
	return b.cluster.RolledOut(ctx, "millrace-system", "daemonset/millrace-agent")
}
