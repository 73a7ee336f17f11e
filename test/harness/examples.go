// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Example returns the manifest under a heading of docs/gateway.md.
func (c *Cluster) Example(heading string) (string, error) {
	page, err := os.ReadFile(filepath.Join(c.root, "docs", "gateway.md"))
	if err != nil {
		return "", err
	}
	manifest, found := Examples(string(page))[heading]
	if !found {
		return "", fmt.Errorf("docs/gateway.md has no manifest below the heading %q", heading)
	}
	return manifest, nil
}

// Examples returns a Markdown page's manifests by heading: indented blocks that start with apiVersion.
func Examples(page string) map[string]string {
	found := map[string]string{}
	heading, block := "", ""
	end := func() {
		if strings.HasPrefix(block, "apiVersion:") {
			if before := found[heading]; before != "" {
				block = before + "---\n" + block
			}
			found[heading] = block
		}
		block = ""
	}
	for line := range strings.Lines(page) {
		switch code, indented := strings.CutPrefix(line, "    "); {
		case indented:
			block += code
		case strings.TrimSpace(line) == "" && block != "":
			block += "\n"
		default:
			end()
			if title := strings.TrimLeft(line, "#"); title != line {
				heading = strings.TrimSpace(title)
			}
		}
	}
	end()
	return found
}
