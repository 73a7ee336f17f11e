// SPDX-License-Identifier: Apache-2.0

// Package kustomize runs the version of kustomize that is pinned in hack/tools.
package kustomize

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Build returns the output of kustomize for a directory, which is relative to root.
func Build(ctx context.Context, root, directory string) ([]byte, error) {
	command := exec.CommandContext(ctx, "go", "tool", "-modfile=hack/tools/kustomize/go.mod", "kustomize", "build", directory)
	command.Dir = root
	var complaints bytes.Buffer
	command.Stderr = &complaints
	content, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("kustomize build %s: %w: %s", directory, err, strings.TrimSpace(complaints.String()))
	}
	return content, nil
}
