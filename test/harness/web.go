// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/test/echo/visited"
)

// InstallGateway installs Gateway API and config/gateway, whose images Install has loaded.
func (c *Cluster) InstallGateway(ctx context.Context) error {
	if err := c.installGatewayAPI(ctx); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-k", filepath.Join(c.root, "config", "lab-gateway")); err != nil {
		return err
	}
	return c.RolledOut(ctx, "millrace-system", "deployment/millrace-gateway")
}

// Site is a host behind a VIP.
type Site struct {
	Host string
	VIP  netip.Addr
	// CA is the certificates that the client trusts, in PEM; without any it speaks plain HTTP.
	CA string
}

// arguments are those of `echo load`. Each request has a connection of its own.
func (s Site) arguments(more ...string) []string {
	scheme, port := "http", uint16(80)
	if s.CA != "" {
		scheme, port = "https", 443
	}
	return append([]string{
		"load", "--url", scheme + "://" + s.Host + "/", "--connect", netip.AddrPortFrom(s.VIP, port).String(),
		"--ca", s.CA, "--forwarded", "--keepalive=false",
	}, more...)
}

// Visit sends requests to a site; its report counts the clients that proxies name.
func (c *Cluster) Visit(ctx context.Context, site Site, count int) (Load, error) {
	var load Load
	err := c.echo(ctx, &load, site.arguments("--requests", strconv.Itoa(count))...)
	return load, err
}

// VisitWhile sends requests to a site at a rate per second until f has returned.
func (c *Cluster) VisitWhile(ctx context.Context, site Site, rate int, f func(context.Context) error) (Load, error) {
	loadCtx, end := context.WithCancel(ctx)
	defer end()
	loaded := make(chan error, 1)
	var load Load
	go func() {
		// An interrupted client finishes what it has begun and reports.
		loaded <- c.echo(loadCtx, &load, site.arguments("--rate", strconv.Itoa(rate), "--duration", clientTime.String(),
			"--timeout", (15*time.Second).String(), "--concurrency", "200")...)
	}()
	err := f(ctx)
	end()
	return load, errors.Join(err, <-loaded)
}

// WebOptions say what requests are made, all with TLS.
type WebOptions struct {
	VIPs []netip.Addr
	// Host answers requests and WebSockets, GRPCHost streams of gRPC.
	Host, GRPCHost string
	// CA is the certificates that the client trusts, in PEM.
	CA string
	// Rate is in requests per second and kind (visited).
	Rate int
}

// WebClient is a client that makes requests of all kinds, and keeps streams open.
type WebClient struct{ *reporter }

// StartWeb starts such a client, and returns when each kind has been answered. End ends it, and so
// does the end of ctx.
func (c *Cluster) StartWeb(ctx context.Context, options WebOptions) (*WebClient, error) {
	var to []string
	for _, vip := range options.VIPs {
		to = append(to, netip.AddrPortFrom(vip, 443).String())
	}
	started, err := c.startReporter(ctx, "web", "--to", strings.Join(to, ","), "--host", options.Host,
		"--grpc-host", options.GRPCHost, "--ca", options.CA, "--rate", strconv.Itoa(options.Rate))
	if err != nil {
		return nil, err
	}
	var first visited.Report
	return &WebClient{started}, started.next(&first)
}

// Check reports on the requests since the last check, when all of them have ended.
func (w *WebClient) Check() (visited.Report, error) {
	var report visited.Report
	err := w.check(&report)
	return report, err
}
