// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/api/live"
)

// maxAnswer bounds an answer: an agent with 100,000 VIPs says less.
const maxAnswer = 64 << 20

// newClient returns one that shows the certificate of a directory to agents, and believes those that
// the directory's CA vouches for. It keeps one connection with each.
func newClient(directory string) *http.Client {
	slots := make(chan struct{}, connecting)
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Client{Transport: &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			configuration, err := readTLS(directory)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			return (&tls.Dialer{NetDialer: dialer, Config: configuration}).DialContext(ctx, network, address)
		},
		ForceAttemptHTTP2: true,
		// A node that is gone says nothing: its connection would be tried until TCP gives up.
		HTTP2:           &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
		WriteBufferSize: 1 << 10,
		IdleConnTimeout: 2 * live.WaitLimit,
	}}
}

// readTLS reads the certificates anew, so that a connection uses those that are there by now.
func readTLS(directory string) (*tls.Config, error) {
	authority, err := os.ReadFile(filepath.Join(directory, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the CA of agents: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("reading the CA of agents: %s has no certificate", filepath.Join(directory, "ca.crt"))
	}
	own, err := tls.LoadX509KeyPair(filepath.Join(directory, "client.crt"), filepath.Join(directory, "client.key"))
	if err != nil {
		return nil, fmt.Errorf("reading the certificate that agents want to see: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: live.AgentName, RootCAs: roots,
		Certificates: []tls.Certificate{own}, NextProtos: []string{"h2", "http/1.1"},
	}, nil
}

// get asks an agent and reads its answer, which has to be of its node.
func (c *Collector) get(ctx context.Context, a *agent, path string, parameters url.Values, answer any) error {
	timeout := askTimeout
	if path == live.PathTraffic || path == live.PathState {
		timeout = live.WaitLimit + grace
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return fmt.Errorf("asking the agent of node %s: %w", a.node.Name, err)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return fmt.Errorf("asking the agent of node %s: %w", a.node.Name, err)
	}
	defer response.Body.Close()
	body := io.LimitReader(response.Body, maxAnswer)
	if response.StatusCode != http.StatusOK {
		line, _ := io.ReadAll(io.LimitReader(body, 1<<10))
		return fmt.Errorf("the agent of node %s answers %s: %s", a.node.Name, response.Status, strings.TrimSpace(string(line)))
	}
	if err := json.NewDecoder(body).Decode(answer); err != nil {
		return fmt.Errorf("reading the answer of the agent of node %s: %w", a.node.Name, err)
	}
	// The end of the body, so that a connection of HTTP/1.1 can be used again.
	if _, err := io.Copy(io.Discard, body); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("reading the answer of the agent of node %s: %w", a.node.Name, err)
	}
	if name := nodeOf(answer); name != a.node.Name {
		return fmt.Errorf("%s is to be of node %s, and answers as node %q", a.base, a.node.Name, name)
	}
	return nil
}

func nodeOf(answer any) string {
	switch answer := answer.(type) {
	case *live.Traffic:
		return answer.Node
	case *live.State:
		return answer.Node
	case *live.Flows:
		return answer.Node
	case *live.Drops:
		return answer.Node
	}
	return ""
}
