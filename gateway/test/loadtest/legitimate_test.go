// SPDX-License-Identifier: Apache-2.0

package loadtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"
)

type legitimateClient struct {
	name    string
	client  *http.Client
	address string
	// took are response times, failed the errors of requests. Failed requests count with the timeout.
	took   []time.Duration
	failed map[string]int
	ended  chan struct{}
}

// newClients starts clients that send up to 50 requests a second until the context ends.
func (w *world) newClients(ctx context.Context) []*legitimateClient {
	https := "https://" + hostname + "/"
	found := []*legitimateClient{
		newClient("HTTP/1.1", w.plain, "http://"+hostname+"/", nil),
		newClient("HTTP/1.1 over TLS", w.secure, https, nil),
		newClient("HTTP/1.1 over a new TLS connection each time", w.secure, https,
			func(transport *http.Transport) { transport.DisableKeepAlives = true }),
		newClient("HTTP/2", w.secure, https, func(transport *http.Transport) {
			transport.Protocols.SetHTTP1(false)
			transport.Protocols.SetHTTP2(true)
		}),
	}
	for _, each := range found {
		go each.run(ctx)
	}
	return found
}

func newClient(name, proxy, address string, change func(*http.Transport)) *legitimateClient {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, proxy)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		Protocols:       new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true)
	if change != nil {
		change(transport)
	}
	return &legitimateClient{
		name: name, client: &http.Client{Transport: transport, Timeout: waitTimeout}, address: address,
		failed: map[string]int{}, ended: make(chan struct{}),
	}
}

func (c *legitimateClient) run(ctx context.Context) {
	defer close(c.ended)
	defer c.client.CloseIdleConnections()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		began := time.Now()
		err := c.request(ctx)
		took := time.Since(began)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			c.failed[err.Error()]++
			took = waitTimeout
		}
		c.took = append(c.took, took)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (c *legitimateClient) request(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.address, nil)
	if err != nil {
		return err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// slow returns the 99th percentile of response times after the client has ended.
func (c *legitimateClient) slow(t *testing.T) time.Duration {
	t.Helper()
	<-c.ended
	if len(c.took) == 0 {
		t.Fatalf("%s: no response", c.name)
	}
	slices.Sort(c.took)
	return c.at(0.99)
}

func (c *legitimateClient) at(part float64) time.Duration {
	return c.took[int(part*float64(len(c.took)-1))].Round(100 * time.Microsecond)
}

func (c *legitimateClient) String() string {
	return fmt.Sprintf("%s: %d requests, p50 %s, p99 %s, most %s; failed %v",
		c.name, len(c.took), c.at(0.5), c.at(0.99), c.at(1), c.failed)
}
