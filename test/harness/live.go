// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// InstallLive changes the installation to the one with the aggregated API live.millrace.io, and waits
// until that answers for all nodes.
func (c *Cluster) InstallLive(ctx context.Context) error {
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(c.root, "config", "lab-live")); err != nil {
		return err
	}
	if err := c.RolledOut(ctx, "millrace-system", "deployment/millrace-operator", "deployment/millrace-liveapi", "daemonset/millrace-agent"); err != nil {
		return err
	}
	return Eventually(ctx, 3*time.Minute, func(ctx context.Context) error {
		// The kubelets mount the Secret of agents at once where their pods change. Without it they
		// take a minute or two.
		_, err := c.Kubectl(ctx, "-n", "millrace-system", "annotate", "pods", "--overwrite",
			"-l", "app.kubernetes.io/component=agent", "millrace.test/mounted="+time.Now().Format("150405.000"))
		if err != nil {
			return err
		}
		_, complaints, err := c.WarnedGet(ctx, "servicetraffic", "-A")
		if err == nil && complaints != "" {
			err = fmt.Errorf("kubectl says %s", complaints)
		}
		return err
	})
}

// RemoveLive takes it away again: the APIService first, since no namespace can be deleted while it
// leads nowhere.
func (c *Cluster) RemoveLive(ctx context.Context) error {
	if _, err := c.Kubectl(ctx, "delete", "--ignore-not-found", "apiservice/v1alpha1.live.millrace.io"); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "delete", "--ignore-not-found", "clusterrole/millrace-liveapi", "clusterrole/millrace-live-viewer",
		"clusterrole/millrace-live-certificates", "clusterrolebinding/millrace-liveapi",
		"clusterrolebinding/millrace-liveapi-auth-delegator", "clusterrolebinding/millrace-live-certificates")
	_, there := c.Kubectl(ctx, "-n", "kube-system", "delete", "--ignore-not-found", "rolebinding/millrace-liveapi-authentication-reader")
	_, applied := c.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(c.root, "config", "lab"))
	rolledOut := c.RolledOut(ctx, "millrace-system", "deployment/millrace-operator", "daemonset/millrace-agent")
	_, here := c.Kubectl(ctx, "-n", "millrace-system", "delete", "--ignore-not-found", "deployment/millrace-liveapi",
		"service/millrace-liveapi", "poddisruptionbudget/millrace-liveapi", "networkpolicy/millrace-liveapi",
		"serviceaccount/millrace-liveapi", "role/millrace-live-certificates", "rolebinding/millrace-live-certificates",
		"secret/millrace-live-certificates", "secret/millrace-live-api", "secret/millrace-live-agents")
	return errors.Join(err, there, applied, rolledOut, here)
}
