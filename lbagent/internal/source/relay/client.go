// SPDX-License-Identifier: Apache-2.0

// Package relay watches EndpointSlices by a relay, and by the API server where no relay answers
// (api/relay). With thousands of agents the API server alone could not say quickly enough what
// changes.
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
	// answerTimeout is how long a relay may take to begin its answer: it may wait for what this
	// agent knows already.
	answerTimeout = 6 * time.Second
	// Where no relay answers, the API server is asked for firstInstead, then for twice as long each
	// time until insteadFor, and for up to twice that. At an installation relays come after agents.
	firstInstead, insteadFor = 5 * time.Second, time.Minute
	// caFile is that of who may have signed a relay's certificate.
	caFile = "ca.crt"
)

// errExpired says that a relay does not know any more what came after a resource version.
var errExpired = errors.New("the relay has forgotten what came after that resource version")

// Client asks relays.
type Client struct {
	base   *url.URL
	http   *http.Client
	logger logr.Logger
	// state is whether a relay answers, as of the last time that one was asked.
	state atomic.Int32
	// instead is insteadFor, but for tests.
	instead time.Duration
}

// States of a Client.
const (
	stateUnasked = iota
	stateConnected
	stateWithout
)

// Connected reports whether a relay tells what changes, and not the API server.
func (c *Client) Connected() bool { return c.state.Load() == stateConnected }

// note logs that a relay answers, where err is nil, or does not, if that is news.
func (c *Client) note(err error) {
	if err == nil {
		if c.state.Swap(stateConnected) != stateConnected {
			c.logger.Info("A relay tells what changes of EndpointSlices")
		}
		return
	}
	if c.state.Swap(stateWithout) != stateWithout {
		c.logger.Info("No relay answers: the API server is asked for EndpointSlices", "error", err.Error())
	}
}

// NewClient returns one of the relays at a URL, such as "https://millrace-liveapi.millrace-system.svc".
// The directory has ca.crt, which may come and change. token is the file of a token for relay.Audience: a relay
// that an attacker controls gets no token that the API server accepts.
func NewClient(base, directory, token, userAgent string, logger logr.Logger) (*Client, error) {
	parsed, err := url.Parse(base)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" {
		return nil, fmt.Errorf("--relay: %q is no URL of https (as https://millrace-liveapi.millrace-system.svc)", base)
	}
	// Each stream has a connection of its own: so agents spread over relays anew, each time.
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
		instead: insteadFor,
	}, nil
}

// dial connects to a relay with a certificate that the directory's CA vouches for.
func dial(ctx context.Context, network, address, directory string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(directory, caFile))
	if err != nil {
		return nil, fmt.Errorf("read who may have signed the relay's certificate: %w (--live-certificates)", err)
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

// open returns the stream of what was asked for, which ends with the context, and how long nothing
// may come of it.
func (c *Client) open(ctx context.Context, asked relay.Request) (io.ReadCloser, time.Duration, error) {
	target := c.base.JoinPath(relay.PathEndpointSlices)
	target.RawQuery = asked.Values().Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return nil, 0, fmt.Errorf("ask the relay: %w", err)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, 0, fmt.Errorf("ask the relay: %w", err)
	}
	switch response.StatusCode {
	case http.StatusOK:
		return response.Body, relay.Silence(response.Header), nil
	case http.StatusGone:
		err = errExpired
	default:
		line, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		err = fmt.Errorf("the relay answers %s: %s", response.Status, strings.TrimSpace(string(line)))
	}
	return nil, 0, errors.Join(err, response.Body.Close())
}
