// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// isSecret excludes certificates, which are public, and short or common values.
func isSecret(key string, value []byte) bool {
	_, err := time.Parse(time.RFC3339Nano, string(value))
	return len(value) >= 16 && err != nil && !strings.HasSuffix(key, ".crt")
}

// The archive contains the state of agents, API server and kubelets and no content of Secrets.
func TestSysdump(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	out, err := cluster.Millrace(t.Context(), "sysdump", "--file", file)
	must(t, err)
	if strings.TrimSpace(out) != file {
		t.Errorf("output = %q", out)
	}
	var secrets corev1.SecretList
	must(t, cluster.Get(t.Context(), &secrets, "secrets", "-A"))
	content, err := os.Open(file)
	must(t, err)
	defer content.Close()
	compressed, err := gzip.NewReader(content)
	must(t, err)
	sizes, compared := map[string]int{}, 0
	for i := range secrets.Items {
		for key, value := range secrets.Items[i].Data {
			if isSecret(key, value) {
				compared++
			}
		}
	}
	if compared == 0 {
		t.Fatal("the cluster has no Secret to compare")
	}
	for archive := tar.NewReader(compressed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		text, err := io.ReadAll(archive)
		must(t, err)
		sizes[strings.TrimPrefix(header.Name, "millrace-sysdump/")] = len(text)
		for i := range secrets.Items {
			for key, value := range secrets.Items[i].Data {
				encoded := []byte(base64.StdEncoding.EncodeToString(value))
				if isSecret(key, value) && (bytes.Contains(text, value) || bytes.Contains(text, encoded)) {
					t.Errorf("%s contains %s of Secret %s", header.Name, key, secrets.Items[i].Name)
				}
			}
		}
	}
	for _, name := range []string{
		"versions.json", "events.txt", "objects/vips.yaml", "objects/lbnodereports.yaml", "objects/daemonsets.yaml", "objects/nodes.yaml",
		"nodes/node1/maps.json", "nodes/node2/vips.json", "nodes/node3/drops.json", "nodes/node1/preflight.json", "nodes/node1/bgp-routes.json",
		"nodes/node2/history.json",
	} {
		if sizes[name] == 0 {
			t.Errorf("%s is missing: %v", name, sizes)
		}
	}
	logs := 0
	for name := range sizes {
		if strings.HasPrefix(name, "logs/millrace-agent-") && strings.HasSuffix(name, "/lbagent.log") {
			logs++
		}
	}
	if _, missing := sizes["missing.txt"]; logs != 3 || missing {
		t.Errorf("logs of %d agents, want 3; missing.txt exists: %t", logs, missing)
	}
}
