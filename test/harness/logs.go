// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// KeepLogs copies the lab's logs and state to a new directory in dist/logs, which `lab down` does not
// remove.
func (c *Cluster) KeepLogs(ctx context.Context, name string) (string, error) {
	directory := filepath.Join(c.root, "dist", "logs", name+"-"+time.Now().UTC().Format("20060102-150405"))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", fmt.Errorf("keep logs: %w", err)
	}
	hosts, err := os.ReadDir(filepath.Join(c.root, ".lab"))
	if err != nil {
		return "", fmt.Errorf("keep logs: %w", err)
	}
	var errs []error
	for _, host := range hosts {
		for _, logs := range []string{"log", "var-log"} {
			source := filepath.Join(c.root, ".lab", host.Name(), logs)
			if _, err := os.Stat(source); err != nil {
				continue // not every entry is a host, and not every host a node
			}
			errs = append(errs, os.CopyFS(filepath.Join(directory, host.Name(), logs), regular{os.DirFS(source)}))
		}
	}
	return directory, errors.Join(append(errs, c.keepState(ctx, directory))...)
}

func (c *Cluster) states() map[string][]string {
	states := map[string][]string{
		"objects.txt": {"kubectl", "get", "-A", "-o", "wide", "nodes,pods,services,endpointslices,deployments,daemonsets"},
		"events.txt":  {"kubectl", "get", "-A", "events"},
		"millrace.yaml": {
			"kubectl", "get", "-o", "yaml", "vippools,vips,vipadvertisements,lbpeers,lbnodes",
		},
		"status.txt":      append([]string{"exec", "cp", "--"}, c.millrace("status")...),
		"drops.txt":       append([]string{"exec", "cp", "--"}, c.millrace("drops", "--for", "2s")...),
		"top.txt":         append([]string{"exec", "cp", "--"}, c.millrace("top", "--once")...),
		"router1.txt":     {"bgp", "router1"},
		"router1-fib.txt": {"exec", "router1", "--", "sh", "-c", "ip -4 route; ip -6 route"},
	}
	for _, node := range []string{"node1", "node2", "node3"} {
		states["maps-"+node+".txt"] = []string{"exec", node, "--", filepath.Join(c.root, "bin", "lbagent"), "dump"}
	}
	return states
}

func (c *Cluster) keepState(ctx context.Context, directory string) error {
	var errs []error
	for file, args := range c.states() {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		out, err := c.Run(ctx, args...)
		cancel()
		content := bytes.NewBuffer(out)
		if err != nil {
			// A failed command may explain the others.
			fmt.Fprintf(content, "\n%v\n", err)
		}
		head := "$ bin/lab " + strings.Join(args, " ") + "\n"
		errs = append(errs, os.WriteFile(filepath.Join(directory, file), append([]byte(head), content.Bytes()...), 0o644))
	}
	return errors.Join(errs...)
}

// regular hides symbolic links, because those in a node's logs resolve on the node only.
type regular struct{ fs.FS }

// ReadDir lists regular files and directories.
func (r regular) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(r.FS, name)
	return slices.DeleteFunc(entries, func(entry fs.DirEntry) bool {
		return !entry.IsDir() && !entry.Type().IsRegular()
	}), err
}
