// SPDX-License-Identifier: Apache-2.0

// Command operator assigns addresses to Services of type LoadBalancer.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/internal/program"
	"github.com/millrace-lb/millrace/operator"
)

var version string

func main() {
	program.Main("operator", run)
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	if len(arguments) > 0 && arguments[0] == "uninstall" {
		return runUninstall(ctx, arguments[1:], stdout, stderr)
	}
	flags := program.Flags("operator", stderr)
	configuration := register(flags)
	if done, err := program.Parse(flags, arguments, version, stdout); done || err != nil {
		return err
	}

	logger := logr.FromSlogHandler(slog.NewJSONHandler(stderr, nil))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	var err error
	if configuration.REST, err = ctrl.GetConfig(); err != nil {
		return fmt.Errorf("finding the API server: %w: run in a cluster or give --kubeconfig", err)
	}
	return operator.Run(ctx, *configuration, logger)
}

func register(flags *flag.FlagSet) *operator.Config {
	c := &operator.Config{}
	flags.BoolVar(&c.LeaderElect, "leader-elect", false, "let one of several replicas work and the others wait")
	flags.StringVar(&c.LeaderElectionNamespace, "leader-election-namespace", "",
		"namespace of the Lease of the leader (default: that of the pod)")
	flags.StringVar(&c.LoadBalancerClass, "load-balancer-class", millracev1beta1.Class,
		"loadBalancerClass of the Services that are served")
	flags.BoolVar(&c.DefaultLoadBalancer, "default-class", false, "serve Services without a loadBalancerClass too")
	flags.StringVar(&c.AnnotationsOf, "annotations-of", "",
		"read also the annotations of these load balancers that mean the same as ours: metallb, cilium, kube-vip, with commas between")
	flags.BoolVar(&c.Adopt, "adopt", false,
		"give Services the addresses that another load balancer has written to their status, and no others")
	flags.DurationVar(&c.ReleaseDelay, "release-delay", 10*time.Second,
		"how long the address of a Service that is deleted or moved is still announced, with the community GRACEFUL_SHUTDOWN; 0: not at all")
	flags.StringVar(&c.MetricsAddress, "metrics-bind-address", ":8080", "address to serve metrics on; 0: none")
	flags.BoolVar(&c.MetricsSecure, "metrics-secure", true,
		"serve metrics over TLS, and only to users who may get /metrics; false: plain HTTP for everybody")
	flags.StringVar(&c.MetricsCertDir, "metrics-cert-dir", "",
		"directory with tls.crt and tls.key for metrics (default: a certificate that signs itself)")
	flags.StringVar(&c.ProbeAddress, "health-probe-bind-address", ":8081", "address to serve /healthz and /readyz on; 0: none")
	flags.StringVar(&c.WebhookAddress, "webhook-bind-address", "0",
		"address to serve warnings about objects to the API server on; 0: none")
	flags.StringVar(&c.WebhookCertDir, "webhook-cert-dir", "/run/millrace-webhook", "directory with tls.crt and tls.key for that")
	flags.BoolVar(&c.WebhookSelfSigned, "webhook-self-signed", false,
		"make and renew that certificate, in the Secret millrace-webhook, and have the API server trust it")
	flags.BoolVar(&c.LiveSelfSigned, "live-self-signed", false,
		"make and renew the certificates of the aggregated API live.millrace.io and of agents, and have the API server trust them")
	flags.DurationVar(&c.TunnelKeyLifetime, "tunnel-key-lifetime", 30*24*time.Hour,
		"age at which the key that authenticates packets between nodes is replaced; 0: never")
	flags.DurationVar(&c.TunnelKeyNodeTimeout, "tunnel-key-node-timeout", 24*time.Hour,
		"how long each phase of a change of that key waits for a node that does not confirm it")
	config.RegisterFlags(flags)
	return c
}
