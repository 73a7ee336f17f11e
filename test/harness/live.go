// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// InstallLive installs the aggregated API live.millrace.io and waits until it covers all nodes.
func (c *Cluster) InstallLive(ctx context.Context) error {
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(c.root, "config", "lab-live")); err != nil {
		return err
	}
	if err := c.RolledOut(ctx, "millrace-system", "deployment/millrace-operator", "deployment/millrace-liveapi", "daemonset/millrace-agent"); err != nil {
		return err
	}
	return Eventually(ctx, 3*time.Minute, func(ctx context.Context) error {
		// A change of a pod makes the kubelet mount the agents' Secret at once instead of after minutes.
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

// RemoveLive runs the commands of the section Uninstall in docs/live.md, with the overlay without the API
// between them. more are added to the commands that delete objects.
func (c *Cluster) RemoveLive(ctx context.Context, more ...string) error {
	page, err := os.ReadFile(filepath.Join(c.root, "docs", "live.md"))
	if err != nil {
		return err
	}
	blocks := commands(string(page), "Uninstall")
	if len(blocks) != 2 {
		return fmt.Errorf("docs/live.md: Uninstall has %d blocks of commands, want one before the overlay is applied and one after it", len(blocks))
	}
	overlay := []string{"kubectl", "apply", "--server-side", "-k", filepath.Join(c.root, "config", "lab")}
	for _, command := range slices.Concat(blocks[0], [][]string{overlay}, blocks[1]) {
		if slices.Contains(command, "delete") {
			command = append(command, more...)
		}
		if command[0] != "kubectl" {
			err = errors.Join(err, fmt.Errorf("docs/live.md: %s is no command of kubectl", strings.Join(command, " ")))
			continue
		}
		_, failed := c.Kubectl(ctx, command[1:]...)
		err = errors.Join(err, failed)
	}
	return errors.Join(err, c.RolledOut(ctx, "millrace-system", "deployment/millrace-operator", "daemonset/millrace-agent"))
}

func commands(page, section string) (blocks [][][]string) {
	_, text, _ := strings.Cut(page, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	inside := false
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", "")) {
		command, indented := strings.CutPrefix(line, "    ")
		if indented && !inside {
			blocks = append(blocks, nil)
		}
		if inside = indented; inside {
			last := len(blocks) - 1
			blocks[last] = append(blocks[last], strings.Fields(command))
		}
	}
	return blocks
}
