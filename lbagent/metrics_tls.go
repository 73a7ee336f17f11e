// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/millrace-lb/millrace/api/serving"
	"github.com/millrace-lb/millrace/lbagent/internal/metrics"
	"github.com/millrace-lb/millrace/lbagent/internal/source"
)

// metricsProtection returns TLS and authorization for the metrics. A watcher of the certificate runs in group.
func metricsProtection(ctx context.Context, group *errgroup.Group, config Config, clients *source.Clients) (metrics.Protection, error) {
	if !config.MetricsSecure {
		return metrics.Protection{}, nil
	}
	filter, err := clients.Reviewed()
	if err != nil {
		return metrics.Protection{}, err
	}
	protection := metrics.Protection{
		TLS:    &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
		Filter: filter,
	}
	if config.MetricsCertDir == "" {
		certificate, err := serving.SelfSigned(config.NodeName)
		if err != nil {
			return metrics.Protection{}, fmt.Errorf("create a certificate for metrics: %w", err)
		}
		protection.TLS.Certificates = []tls.Certificate{certificate}
		return protection, nil
	}
	watcher, err := certwatcher.New(filepath.Join(config.MetricsCertDir, "tls.crt"), filepath.Join(config.MetricsCertDir, "tls.key"))
	if err != nil {
		return metrics.Protection{}, fmt.Errorf("read the certificate in --metrics-cert-dir: %w", err)
	}
	protection.TLS.GetCertificate = watcher.GetCertificate
	group.Go(func() error { return watcher.Start(ctx) })
	return protection, nil
}
