// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// dialTimeout and tcpKeepalive are client-go's values.
const (
	dialTimeout  = 30 * time.Second
	tcpKeepalive = 30 * time.Second
)

// connections are the open connections to the API server. With HTTP/2, all requests and watches share one; a
// new one is added if requests time out.
type connections struct {
	// turn serializes requests that establish the first connection.
	turn chan struct{}

	mu   sync.Mutex
	open []*connection
	// answers is true once a response was received over an open connection.
	answers bool
}

func newConnections() *connections { return &connections{turn: make(chan struct{}, 1)} }

type connection struct {
	net.Conn
	of *connections
}

// Close closes and removes the connection.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.open = slices.DeleteFunc(c.of.open, func(other *connection) bool { return other == c })
	c.of.answers = c.of.answers && len(c.of.open) > 0
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: tcpKeepalive}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tracked := &connection{conn, c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, tracked)
	return tracked, nil
}

func (c *connections) closePrevious() { c.close(1) }

func (c *connections) closeAll() { c.close(0) }

func (c *connections) close(but int) {
	c.mu.Lock()
	previous := slices.Clone(c.open[:max(0, len(c.open)-but)])
	c.mu.Unlock()
	for _, conn := range previous {
		_ = conn.Close()
	}
}

func (c *connections) client(config *rest.Config) (*http.Client, pinger, error) {
	config = rest.CopyConfig(config)
	config.Dial = c.dial
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return singleDial{next, c} })
	made, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, pinger{}, fmt.Errorf("set up the connection to %s: %w", config.Host, err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, pinger{}, fmt.Errorf("set up the connection to %s: %w", config.Host, err)
	}
	return made, pinger{made, base, c}, nil
}

// singleDial delays requests until a ping has established the first connection. Otherwise, each request would
// establish its own: a dozen TLS handshakes per agent when the API server returns. Unlike a request, a ping is
// not queued by the API server.
type singleDial struct {
	http.RoundTripper
	of *connections
}

// RoundTrip implements http.RoundTripper.
func (o singleDial) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := o.connect(request); err != nil {
		if request.Body != nil {
			_ = request.Body.Close()
		}
		return nil, err
	}
	return o.RoundTripper.RoundTrip(request)
}

func (o singleDial) connect(request *http.Request) error {
	if o.of.hasResponse() {
		return nil
	}
	ctx := request.Context()
	select {
	case o.of.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-o.of.turn }()
	if o.of.hasResponse() {
		return nil
	}
	ping, err := newPing(ctx, request.URL)
	if err != nil {
		return err
	}
	response, err := o.RoundTripper.RoundTrip(ping)
	if err != nil {
		return fmt.Errorf("connect to the API server: %w", err)
	}
	o.of.recordResponse()
	return response.Body.Close()
}

func (c *connections) hasResponse() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers
}

func (c *connections) recordResponse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers = len(c.open) > 0
}

// newPing returns an OPTIONS request with target "*" (RFC 9110, section 9.3.7). The API server's HTTP library
// answers it directly, so that API Priority and Fairness does not queue it and it costs no more than an HTTP/2
// PING.
func newPing(ctx context.Context, of *url.URL) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodOptions, of.Scheme+"://"+of.Host, nil)
	if err != nil {
		return nil, fmt.Errorf("ping the API server: %w", err)
	}
	request.URL.Path = "*"
	return request, nil
}

type pinger struct {
	client *http.Client
	url    *url.URL
	over   *connections
}

func (p pinger) ping(ctx context.Context) error {
	request, err := newPing(ctx, p.url)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return fmt.Errorf("ping the API server: %w", err)
	}
	_ = response.Body.Close()
	return nil
}

// awaitResponse pings until any response arrives. It returns the last error once ctx is done.
func (p pinger) awaitResponse(ctx context.Context) error {
	return repeat(ctx, p.ping)
}

func (p pinger) reconnect(ctx context.Context) error {
	return repeat(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, pingTimeout)
		defer cancel()
		defer p.over.closeAll()
		return p.ping(ctx)
	})
}

func repeat(ctx context.Context, try func(context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pingPause):
		}
	}
}
