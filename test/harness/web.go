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

	"github.com/millrace-lb/millrace/test/echo/webreport"
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
	// CA has the trusted certificates in PEM; empty: plain HTTP.
	CA string
}

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

// Visit sends requests to a site; the report counts forwarded client addresses.
func (c *Cluster) Visit(ctx context.Context, site Site, count int) (Load, error) {
	var load Load
	err := c.echo(ctx, &load, site.arguments("--requests", strconv.Itoa(count))...)
	return load, err
}

// VisitWhile sends requests to a site at a rate per second until f returns.
func (c *Cluster) VisitWhile(ctx context.Context, site Site, rate int, f func(context.Context) error) (Load, error) {
	loadCtx, end := context.WithCancel(ctx)
	defer end()
	loaded := make(chan error, 1)
	var load Load
	go func() {
		// An interrupted client finishes its requests and reports.
		loaded <- c.echoWithin(loadCtx, loadTime+time.Minute, &load, site.arguments("--rate", strconv.Itoa(rate), "--duration", loadTime.String(),
			"--timeout", (15*time.Second).String(), "--concurrency", "200")...)
	}()
	err := f(ctx)
	end()
	return load, errors.Join(err, <-loaded)
}

// WebOptions configure StartWeb, which uses TLS.
type WebOptions struct {
	VIPs []netip.Addr
	// Host serves requests and WebSockets, GRPCHost gRPC streams.
	Host, GRPCHost string
	CA             string
	// Rate is in requests per second and kind (package visited).
	Rate int
}

// WebClient is a client with all kinds of requests and persistent streams.
type WebClient struct{ *reporter }

// StartWeb starts a WebClient and returns once each kind has an answer. End or the end of ctx stops it.
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
	var first webreport.Report
	return &WebClient{started}, started.next(&first)
}

// Check returns the report since the previous check, once its requests have ended.
func (w *WebClient) Check() (webreport.Report, error) {
	var report webreport.Report
	err := w.check(&report)
	return report, err
}
