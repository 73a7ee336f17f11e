// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/api/live"
)

// maxAnswer limits the size of a response in bytes; an agent with 100,000 VIPs sends less.
const maxAnswer = 64 << 20

// newClient returns a client that authenticates to agents with the certificate in directory and keeps one
// connection to each agent.
func newClient(directory string) *http.Client {
	slots, shared := make(chan struct{}, connecting), &certificates{directory: directory}
	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Client{Transport: &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			configuration, err := shared.config()
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, queryTimeout)
			defer cancel()
			return (&tls.Dialer{NetDialer: dialer, Config: configuration}).DialContext(ctx, network, address)
		},
		ForceAttemptHTTP2: true,
		// Pings detect a failed node; otherwise its connection would remain open until TCP times out.
		HTTP2:           &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
		WriteBufferSize: 1 << 10,
		IdleConnTimeout: 2 * live.WaitLimit,
	}}
}

// certificates caches the TLS configuration, which is shared by a thousand connections.
type certificates struct {
	directory string

	mu   sync.Mutex
	read []byte
	made *tls.Config
}

// config reads the certificates again, so that new connections use replaced certificates.
func (c *certificates) config() (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var files [3][]byte
	for i, name := range []string{"ca.crt", "client.crt", "client.key"} {
		content, err := os.ReadFile(filepath.Join(c.directory, name))
		if err != nil {
			return nil, fmt.Errorf("read the certificates for agents: %w", err)
		}
		files[i] = content
	}
	read := bytes.Join(files[:], []byte{0})
	if c.made != nil && bytes.Equal(read, c.read) {
		return c.made, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(files[0]) {
		return nil, fmt.Errorf("read the CA of agents: %s has no certificate", filepath.Join(c.directory, "ca.crt"))
	}
	own, err := tls.X509KeyPair(files[1], files[2])
	if err != nil {
		return nil, fmt.Errorf("read the client certificate for agents: %w", err)
	}
	c.read, c.made = read, &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: live.AgentName, RootCAs: roots,
		Certificates: []tls.Certificate{own}, NextProtos: []string{"h2", "http/1.1"},
	}
	return c.made, nil
}

// bodies pools buffers of responses, because a thousand agents respond every five seconds.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// get requests a path from an agent and decodes the JSON response. It returns an error if another node
// responds.
func (c *Collector) get(ctx context.Context, a *agent, path string, parameters url.Values, answer any) error {
	return c.fetch(ctx, a, path, parameters, func(body []byte) (node string, err error) {
		err = json.Unmarshal(body, answer)
		return nodeOf(answer), err
	})
}

// fetch requests a path from an agent and passes the body to read, which returns the name of the node in it
// and must not retain it.
func (c *Collector) fetch(
	ctx context.Context, a *agent, path string, parameters url.Values, read func(body []byte) (node string, err error),
) error {
	timeout := queryTimeout
	if path == live.PathTraffic || path == live.PathState {
		timeout = live.WaitLimit + grace
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return fmt.Errorf("query the agent of node %s: %w", a.node.Name, err)
	}
	response, err := c.client.Do(request)
	if err != nil {
		return fmt.Errorf("query the agent of node %s: %w", a.node.Name, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		line, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("query the agent of node %s: %s: %s", a.node.Name, response.Status, strings.TrimSpace(string(line)))
	}
	body, _ := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(body)
	body.Reset()
	node := ""
	if _, err = body.ReadFrom(io.LimitReader(response.Body, maxAnswer)); err == nil {
		node, err = read(body.Bytes())
	}
	if err != nil {
		return fmt.Errorf("read the answer of the agent of node %s: %w", a.node.Name, err)
	}
	if node != a.node.Name {
		return fmt.Errorf("%s is the address of node %s, but node %q answered", a.base, a.node.Name, node)
	}
	return nil
}

func nodeOf(answer any) string {
	switch answer := answer.(type) {
	case *live.State:
		return answer.Node
	case *live.Flows:
		return answer.Node
	case *live.Drops:
		return answer.Node
	}
	return ""
}
