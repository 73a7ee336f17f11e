// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Token is a service account's token as a client of the API server uses it.
type Token struct {
	cluster    *Cluster
	kubeconfig string
}

// UseToken returns the client of a token. Remove deletes the file that keeps it.
func (c *Cluster) UseToken(token string) (*Token, error) {
	// In the lab's own directory, which is seen from the control plane's host too.
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

// Kubectl runs kubectl with the token and the given standard input.
func (t *Token) Kubectl(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	return t.cluster.run(ctx, strings.NewReader(stdin), append([]string{"kubectl", "--kubeconfig=" + t.kubeconfig}, args...)...)
}

// Remove forgets the token.
func (t *Token) Remove() error { return os.Remove(t.kubeconfig) }
