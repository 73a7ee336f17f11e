// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Token is a client with a service account's token.
type Token struct {
	cluster    *Cluster
	kubeconfig string
}

// UseToken returns a client. Remove deletes its file.
func (c *Cluster) UseToken(token string) (*Token, error) {
	// The lab's directory is visible on the control plane's host.
	file, err := os.CreateTemp(filepath.Join(c.root, ".lab"), "token-*.kubeconfig")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	_, err = fmt.Fprintf(file, `apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://198.51.100.2:6443", certificate-authority: %q}}]
users: [{name: holder, user: {token: %q}}]
contexts: [{name: lab, context: {cluster: lab, user: holder}}]
current-context: lab
`, filepath.Join(c.root, ".lab", "pki", "ca.crt"), token)
	return &Token{cluster: c, kubeconfig: file.Name()}, err
}

// Kubectl runs kubectl with the token and stdin.
func (t *Token) Kubectl(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	return t.cluster.run(ctx, strings.NewReader(stdin), append([]string{"kubectl", "--kubeconfig=" + t.kubeconfig}, args...)...)
}

// Remove deletes the kubeconfig with the token.
func (t *Token) Remove() error { return os.Remove(t.kubeconfig) }
