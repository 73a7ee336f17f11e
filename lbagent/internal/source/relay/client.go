// SPDX-License-Identifier: Apache-2.0

// Package relay watches EndpointSlices through a relay (api/relay), and through the API server if no relay
// answers. Relays exist because the API server alone cannot notify thousands of agents fast enough.
package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/millrace-lb/millrace/api/relay"
)

const (
	dialTimeout = 2 * time.Second
	// answerTimeout bounds the time until a response begins: a relay may first have to catch up with this
	// agent's version.
	answerTimeout = 6 * time.Second
	// If no relay answers, the API server is used for minFallback, doubled up to maxFallback, plus jitter of
	// the same duration. During installation, relays start after agents.
	minFallback, maxFallback = 5 * time.Second, time.Minute
	caFile                   = "ca.crt"
)

var errExpired = errors.New("the relay no longer has that resource version")

// Client is a client of relays.
type Client struct {
	base     *url.URL
	http     *http.Client
	logger   logr.Logger
	state    atomic.Int32
	fallback time.Duration
}

// States of a Client.
const (
	stateUnknown = iota
	stateConnected
	stateFallback
)

// Connected reports whether EndpointSlices are watched through a relay.
func (c *Client) Connected() bool { return c.state.Load() == stateConnected }

func (c *Client) record(err error) {
	if err == nil {
		if c.state.Swap(stateConnected) != stateConnected {
			c.logger.Info("Watching EndpointSlices through a relay")
		}
		return
	}
	if c.state.Swap(stateFallback) != stateFallback {
		c.logger.Info("No response from a relay: watching EndpointSlices through the API server", "error", err.Error())
	}
}

// NewClient returns a client of the relays at a URL, such as "https://millrace-liveapi.millrace-system.svc".
// The directory contains ca.crt, which may be missing and change. token is the file with a token for
// relay.Audience only, so that a compromised relay gets no token for the API server.
func NewClient(base, directory, token, userAgent string, logger logr.Logger) (*Client, error) {
	parsed, err := url.Parse(base)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" {
		return nil, fmt.Errorf("--relay: %q is not an https URL (such as https://millrace-liveapi.millrace-system.svc)", base)
	}
	// One connection per stream distributes agents over relays at each attempt.
	var transport http.RoundTripper = &http.Transport{
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return dial(ctx, network, address, directory)
		},
		DisableKeepAlives: true, ResponseHeaderTimeout: answerTimeout,
	}
	if transport, err = rest.HTTPWrappersForConfig(&rest.Config{BearerTokenFile: token, UserAgent: userAgent}, transport); err != nil {
		return nil, fmt.Errorf("set up the connection to %s: %w", base, err)
	}
	return &Client{
		base: parsed, http: &http.Client{Transport: transport}, logger: logger,
		fallback: maxFallback,
	}, nil
}

func dial(ctx context.Context, network, address, directory string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(directory, caFile))
	if err != nil {
		return nil, fmt.Errorf("read the CA of the relay: %w (--live-certificates)", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("read %s in %s: it has no certificate (--live-certificates)", caFile, directory)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, ServerName: host, RootCAs: roots}}).
		DialContext(ctx, network, address)
}

// open returns the requested stream, which ends with ctx, and the maximum time between its events.
func (c *Client) open(ctx context.Context, query relay.Request) (io.ReadCloser, time.Duration, error) {
	target := c.base.JoinPath(relay.PathEndpointSlices)
	target.RawQuery = query.Values().Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return nil, 0, fmt.Errorf("query the relay: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("query the relay: %w", err)
	}
	switch response.StatusCode {
	case http.StatusOK:
		return response.Body, relay.EventTimeout(response.Header), nil
	case http.StatusGone:
		err = errExpired
	default:
		line, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		err = fmt.Errorf("the relay responded with %s: %s", response.Status, strings.TrimSpace(string(line)))
	}
	return nil, 0, errors.Join(err, response.Body.Close())
}
