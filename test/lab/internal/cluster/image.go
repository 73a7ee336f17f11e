// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// LoadImage imports an image archive into all running nodes; stopped ones import it when they boot.
func (l *Lab) LoadImage(ctx context.Context, archive string) error {
	release, err := lockLab()
	if err != nil {
		return err
	}
	defer release()
	kept, err := l.keepImage(archive)
	if err != nil {
		return err
	}
	hosts, err := l.Hosts()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, host := range hosts {
		if host.Role == topology.RoleNode && host.Pid != 0 {
			group.Go(func() error { return l.importImage(ctx, host.Name, kept) })
		}
	}
	return group.Wait()
}

func (l *Lab) importImage(ctx context.Context, node, archive string) error {
	// Entering a node cannot be reverted, so another process does it.
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("import image %s: find own program: %w", archive, err)
	}
	output, err := exec.CommandContext(ctx, self, "--state", l.dir, "exec", node, "--",
		"ctr", "-n", "k8s.io", "images", "import", "--local", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import image %s on %s: %w: %s", archive, node, err, output)
	}
	return nil
}

// keepImage copies an archive for nodes that boot later. Names start with a number to preserve the loading
// order, so that the last archive of an image wins.
func (l *Lab) keepImage(archive string) (string, error) {
	if err := os.MkdirAll(l.ImageDir(), 0o755); err != nil {
		return "", fmt.Errorf("keep image: %w", err)
	}
	last, older, err := l.keptImages(filepath.Base(archive))
	if err != nil {
		return "", err
	}
	source, err := os.Open(archive)
	if err != nil {
		return "", fmt.Errorf("keep image: %w", err)
	}
	defer source.Close()
	draft, err := os.CreateTemp(l.ImageDir(), ".draft-*")
	if err != nil {
		return "", fmt.Errorf("keep image: %w", err)
	}
	defer os.Remove(draft.Name())
	_, err = io.Copy(draft, source)
	if err := errors.Join(err, draft.Close()); err != nil {
		return "", fmt.Errorf("keep image %s: %w", archive, err)
	}
	kept := filepath.Join(l.ImageDir(), fmt.Sprintf("%05d-%s", last+1, filepath.Base(archive)))
	if err := os.Rename(draft.Name(), kept); err != nil {
		return "", fmt.Errorf("keep image: %w", err)
	}
	for _, file := range older {
		if err := os.Remove(file); err != nil {
			return "", fmt.Errorf("forget older image: %w", err)
		}
	}
	return kept, nil
}

// keptImages returns the highest number and the archives that a new one of this name replaces.
func (l *Lab) keptImages(name string) (last int, older []string, err error) {
	entries, err := os.ReadDir(l.ImageDir())
	if err != nil {
		return 0, nil, fmt.Errorf("list images: %w", err)
	}
	for _, entry := range entries {
		digits, rest, _ := strings.Cut(entry.Name(), "-")
		number, err := strconv.Atoi(digits)
		if err != nil {
			continue // a partial copy
		}
		last = max(last, number)
		if rest == name {
			older = append(older, filepath.Join(l.ImageDir(), entry.Name()))
		}
	}
	return last, older, nil
}
