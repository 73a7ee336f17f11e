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
	if len(arguments) > 0 {
		switch arguments[0] {
		case "uninstall":
			return runUninstall(ctx, arguments[1:], stdout, stderr)
		case "check":
			return runCheck(ctx, arguments[1:], stdout, stderr)
		}
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
		return fmt.Errorf("configure the API client: %w: run in a cluster or set --kubeconfig", err)
	}
	return operator.Run(ctx, *configuration, logger)
}

func register(flags *flag.FlagSet) *operator.Config {
	c := &operator.Config{}
	flags.BoolVar(&c.LeaderElect, "leader-elect", false, "elect the replica that works; the others wait")
	flags.StringVar(&c.LeaderElectionNamespace, "leader-election-namespace", "",
		"namespace of the leader's Lease (default: the pod's)")
	flags.StringVar(&c.LoadBalancerClass, "load-balancer-class", millracev1beta1.Class,
		"loadBalancerClass of the Services to serve")
	flags.BoolVar(&c.DefaultLoadBalancer, "default-class", false, "also serve Services without a loadBalancerClass")
	flags.StringVar(&c.AnnotationsOf, "annotations-of", "",
		"also read the equivalent annotations of these load balancers, separated by commas: metallb, cilium, kube-vip")
	flags.BoolVar(&c.AdoptOnly, "adopt-only", false,
		"assign to Services only the addresses that another load balancer has written to their status")
	flags.DurationVar(&c.ReleaseDelay, "release-delay", 10*time.Second,
		"time for which the address of a deleted or moved Service is still announced, with the community GRACEFUL_SHUTDOWN; 0: disabled")
	flags.StringVar(&c.MetricsAddress, "metrics-bind-address", ":8080", "listen address for metrics; 0: disabled")
	flags.BoolVar(&c.MetricsSecure, "metrics-secure", true,
		"serve metrics over TLS to users who may get /metrics; false: plain HTTP without authentication")
	flags.StringVar(&c.MetricsCertDir, "metrics-cert-dir", "",
		"directory with tls.crt and tls.key for metrics (default: a self-signed certificate)")
	flags.StringVar(&c.ProbeAddress, "health-probe-bind-address", ":8081", "listen address for /healthz and /readyz; 0: disabled")
	flags.StringVar(&c.WebhookAddress, "webhook-bind-address", "0",
		"listen address for the webhook, which warns about objects and sets defaults; 0: disabled")
	flags.StringVar(&c.WebhookCertDir, "webhook-cert-dir", "/run/millrace-webhook", "directory with tls.crt and tls.key for the webhook")
	flags.BoolVar(&c.WebhookSelfSigned, "webhook-self-signed", false,
		"issue and renew the webhook certificate in the Secret millrace-webhook, and set caBundle")
	flags.BoolVar(&c.LiveSelfSigned, "live-self-signed", false,
		"issue and renew the certificates of the aggregated API live.millrace.io and of agents, and set caBundle")
	flags.DurationVar(&c.TunnelKeyLifetime, "tunnel-key-lifetime", 30*24*time.Hour,
		"lifetime of the key that authenticates packets between nodes; 0: never replaced")
	flags.DurationVar(&c.TunnelKeyNodeTimeout, "tunnel-key-node-timeout", 24*time.Hour,
		"time limit for the confirmation of a node in each phase of the key's rotation")
	program.RegisterKubeconfig(flags, config.RegisterFlags)
	return c
}
