// SPDX-License-Identifier: Apache-2.0

// Command gateway compiles Ingresses and Gateway API objects into configurations for proxies, and deploys the
// proxies.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/internal/program"
	"github.com/millrace-lb/millrace/gateway/controller"
)

var version string

func main() {
	program.Main("gateway", run)
}

func run(ctx context.Context, arguments []string, stdout, stderr io.Writer) error {
	flags := program.Flags("gateway", stderr)
	configuration := register(flags)
	if done, err := program.Parse(flags, arguments, version, stdout); done || err != nil {
		return err
	}
	if configuration.ProxyImage == "" && configuration.PodName == "" {
		return errors.New("no image for proxies: set --proxy-image, or --pod-name in a cluster")
	}

	logger := logr.FromSlogHandler(slog.NewJSONHandler(stderr, nil))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	var err error
	if configuration.REST, err = ctrl.GetConfig(); err != nil {
		return fmt.Errorf("configure the API client: %w: run in a cluster or set --kubeconfig", err)
	}
	return controller.Run(ctx, *configuration, logger)
}

func register(flags *flag.FlagSet) *controller.Config {
	c := &controller.Config{
		ProxyCPU:         resource.MustParse("100m"),
		ProxyMemory:      resource.MustParse("128Mi"),
		ProxyMemoryLimit: resource.MustParse("1Gi"),
		NamespaceBytes:   resource.MustParse("64Mi"),
		ProxyBytes:       resource.MustParse("256Mi"),
	}
	flags.BoolVar(&c.LeaderElect, "leader-elect", false, "elect the replica that writes; all replicas serve")
	flags.StringVar(&c.Namespace, "namespace", "millrace-system", "namespace of the controller and of the shared proxies")
	flags.StringVar(&c.LoadBalancerClass, "load-balancer-class", millracev1beta1.Class,
		"loadBalancerClass of the proxies' Services, like the operator's flag")
	flags.StringVar(&c.ServeAddress, "xds-bind-address", ":15443", "listen address for proxies")
	flags.StringVar(&c.ControllerAddress, "controller-address", "",
		"host:port of the controller for proxies (default: the cluster address of its Service)")
	flags.StringVar(&c.ProxyImage, "proxy-image", "", "image of the proxies (default: the image of container lbproxy in the controller's pod)")
	flags.StringVar(&c.PodName, "pod-name", "", "name of the controller's pod")
	flags.StringVar(&c.ProxyPullPolicy, "proxy-image-pull-policy", "", "pull policy of the proxies' image (default: the cluster's)")
	quantity(flags, &c.ProxyCPU, "proxy-cpu", "CPU request of each proxy")
	quantity(flags, &c.ProxyMemory, "proxy-memory", "memory request of each proxy")
	quantity(flags, &c.ProxyMemoryLimit, "proxy-memory-limit", "memory limit of each proxy")
	quantity(flags, &c.NamespaceBytes, "max-namespace-configuration", "maximum configuration in bytes of one owner's proxies from objects of one namespace")
	quantity(flags, &c.ProxyBytes, "max-proxy-configuration", "maximum configuration in bytes of one owner's proxies from objects of all namespaces")
	flags.StringVar(&c.MetricsAddress, "metrics-bind-address", ":8080", "listen address for metrics; 0: disabled")
	flags.BoolVar(&c.MetricsSecure, "metrics-secure", true,
		"serve metrics over TLS to users who may get /metrics; false: plain HTTP without authentication")
	flags.StringVar(&c.MetricsCertDir, "metrics-cert-dir", "",
		"directory with tls.crt and tls.key for metrics (default: a self-signed certificate)")
	flags.StringVar(&c.ProbeAddress, "health-probe-bind-address", ":8081", "listen address for /healthz and /readyz; 0: disabled")
	program.RegisterKubeconfig(flags, config.RegisterFlags)
	return c
}

func quantity(flags *flag.FlagSet, into *resource.Quantity, name, usage string) {
	flags.Func(name, fmt.Sprintf("%s (default %s)", usage, into.String()), func(text string) (err error) {
		*into, err = resource.ParseQuantity(text)
		return err
	})
}
