// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"
)

// Load is the report of `echo load`.
type Load struct {
	Requests    int      `json:"requests"`
	Errors      int      `json:"errors"`
	FirstErrors []string `json:"firstErrors"`
	// PerPod counts answers, Clients the client addresses that pods saw.
	PerPod  map[string]int `json:"perPod"`
	Clients map[string]int `json:"clients"`
	P50     float64        `json:"p50"`
	P99     float64        `json:"p99"`
	// Gap is the longest period of failed requests in milliseconds.
	Gap float64 `json:"gap"`
}

const clientTime = 2 * time.Minute

// loadTime bounds the load of RequestsWhile and VisitWhile.
const loadTime = 20 * time.Minute

func (c *Cluster) echo(ctx context.Context, out any, args ...string) error {
	return c.echoWithin(ctx, clientTime, out, args...)
}

func (c *Cluster) echoWithin(ctx context.Context, limit time.Duration, out any, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	raw, err := c.Exec(ctx, "client", append([]string{filepath.Join(c.root, "bin", "echo")}, args...)...)
	// The report takes precedence over the exit code, because it contains the failures.
	if jsonErr := json.Unmarshal(raw, out); jsonErr != nil {
		if err != nil {
			return err
		}
		return fmt.Errorf("echo %v: %w: %q", args, jsonErr, raw)
	}
	return nil
}

func url(vip netip.Addr, path string) string {
	return "http://" + netip.AddrPortFrom(vip, 80).String() + path
}

// Requests sends HTTP requests to port 80 of a VIP, each on a new connection.
func (c *Cluster) Requests(ctx context.Context, vip netip.Addr, count int) (Load, error) {
	return c.RequestsTo(ctx, netip.AddrPortFrom(vip, 80), count)
}

// RequestsTo is Requests to another port.
func (c *Cluster) RequestsTo(ctx context.Context, to netip.AddrPort, count int) (Load, error) {
	var load Load
	err := c.echo(ctx, &load, "load", "--url", "http://"+to.String()+"/", "--requests", strconv.Itoa(count), "--concurrency", "20", "--keepalive=false")
	return load, err
}

// RequestsFor sends HTTP requests to a VIP at a rate per second for a time.
func (c *Cluster) RequestsFor(ctx context.Context, vip netip.Addr, rate int, duration time.Duration) (Load, error) {
	return c.RequestsForWithTimeout(ctx, vip, rate, duration, 5*time.Second)
}

// RequestsForWithTimeout is RequestsFor with another request timeout.
func (c *Cluster) RequestsForWithTimeout(ctx context.Context, vip netip.Addr, rate int, duration, timeout time.Duration) (Load, error) {
	return c.RequestsToWithTimeout(ctx, netip.AddrPortFrom(vip, 80), rate, duration, timeout)
}

// RequestsToWithTimeout is RequestsForWithTimeout to another port.
func (c *Cluster) RequestsToWithTimeout(ctx context.Context, to netip.AddrPort, rate int, duration, timeout time.Duration) (Load, error) {
	var load Load
	err := c.echoWithin(ctx, max(clientTime, duration+time.Minute), &load,
		"load", "--url", "http://"+to.String()+"/", "--rate", strconv.Itoa(rate), "--duration", duration.String(),
		"--timeout", timeout.String(), "--concurrency", "200", "--keepalive=false")
	return load, err
}

// Ports is a range of ports.
type Ports struct{ First, Last uint16 }

// RequestsFromWithTimeout is RequestsToWithTimeout from a range of local ports, until ctx ends, for half
// an hour at most.
func (c *Cluster) RequestsFromWithTimeout(ctx context.Context, ports Ports, to netip.AddrPort, rate int, timeout time.Duration) (Load, error) {
	const duration = 30 * time.Minute
	var load Load
	err := c.echoWithin(ctx, duration+time.Minute, &load,
		"load", "--url", "http://"+to.String()+"/", "--rate", strconv.Itoa(rate), "--duration", duration.String(),
		"--timeout", timeout.String(), "--concurrency", "200", "--keepalive=false", "--ports", fmt.Sprintf("%d-%d", ports.First, ports.Last))
	return load, err
}

// RequestsWhile sends HTTP requests at a rate per second until f returns. The timeout of 15 s covers TCP
// retransmissions on a loaded machine.
func (c *Cluster) RequestsWhile(ctx context.Context, vip netip.Addr, rate int, f func(context.Context) error) (Load, error) {
	loadCtx, end := context.WithCancel(ctx)
	defer end()
	loaded := make(chan error, 1)
	var load Load
	go func() {
		var err error
		// An interrupted client finishes its requests and reports.
		load, err = c.RequestsForWithTimeout(loadCtx, vip, rate, loadTime, 15*time.Second)
		loaded <- err
	}()
	err := f(ctx)
	end()
	err = errors.Join(err, <-loaded)
	return load, err
}

// Datagrams sends UDP datagrams to port 80 of a VIP.
func (c *Cluster) Datagrams(ctx context.Context, vip netip.Addr, count int) (Load, error) {
	return c.DatagramsTo(ctx, netip.AddrPortFrom(vip, 80), count)
}

// DatagramsTo is Datagrams to another port.
func (c *Cluster) DatagramsTo(ctx context.Context, to netip.AddrPort, count int) (Load, error) {
	var load Load
	err := c.echo(ctx, &load, "udp", "--to", to.String(), "--count", strconv.Itoa(count))
	return load, err
}

// UnansweredDatagrams sends two datagrams per second and expects no answer.
func (c *Cluster) UnansweredDatagrams(ctx context.Context, to netip.AddrPort, duration time.Duration) error {
	var load Load
	err := c.echo(ctx, &load, "udp", "--to", to.String(), "--rate", "2", "--duration", duration.String(), "--timeout", "100ms")
	if err == nil && load.Requests > load.Errors {
		err = fmt.Errorf("%d datagrams to %s were answered", load.Requests-load.Errors, to)
	}
	return err
}

// Check returns an error after failed requests, if a pod saw another client address, or if a pod answered
// less than half or more than double its equal share.
func (l Load) Check(pods int, client netip.Addr) error {
	if l.Errors != 0 {
		return fmt.Errorf("%d of %d requests failed: %q", l.Errors, l.Requests, l.FirstErrors)
	}
	if len(l.PerPod) != pods {
		return fmt.Errorf("%d pods answered, want %d: %v", len(l.PerPod), pods, l.PerPod)
	}
	share := float64(l.Requests) / float64(pods)
	for pod, count := range l.PerPod {
		if float64(count) < share/2 || float64(count) > share*2 {
			return fmt.Errorf("pod %s answered %d of %d requests, an equal share is %.0f: %v", pod, count, l.Requests, share, l.PerPod)
		}
	}
	if len(l.Clients) != 1 || l.Clients[client.String()] != l.Requests {
		return fmt.Errorf("pods saw clients %v, want only %s", l.Clients, client)
	}
	return nil
}

// Transfer is the report of `echo fetch` and `echo upload`.
type Transfer struct {
	Bytes int64 `json:"bytes"`
	// SHA256 is the hex sum of received bytes, Want of sent bytes.
	SHA256 string `json:"sha256"`
	Want   string `json:"want"`
}

// Download fetches bytes through a VIP and verifies their sum.
func (c *Cluster) Download(ctx context.Context, vip netip.Addr, bytes int64) error {
	return c.transfer(ctx, bytes, "fetch", "--url", url(vip, fmt.Sprintf("/bytes?n=%d&seed=1", bytes)))
}

// Upload sends bytes through a VIP and verifies their sum.
func (c *Cluster) Upload(ctx context.Context, vip netip.Addr, bytes int64) error {
	return c.transfer(ctx, bytes, "upload", "--url", url(vip, "/sum"), "--bytes", strconv.FormatInt(bytes, 10))
}

func (c *Cluster) transfer(ctx context.Context, bytes int64, args ...string) error {
	var transfer Transfer
	if err := c.echo(ctx, &transfer, args...); err != nil {
		return err
	}
	if transfer.Bytes != bytes || transfer.SHA256 == "" || transfer.SHA256 != transfer.Want {
		return fmt.Errorf("%s: %d bytes with SHA-256 %q arrived, want %d with %q", args[0], transfer.Bytes, transfer.SHA256, bytes, transfer.Want)
	}
	return nil
}
